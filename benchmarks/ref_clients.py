"""Reference load clients: how cheap can a Python client be, and how expensive is a usual one?

    python benchmarks/ref_clients.py lazy|aiohttp URL CONCURRENCY REQUESTS TOKENS

`lazy`: a bare asyncio protocol on uvloop that only stamps (time, bytes) and splits afterwards: no framing checks, errors, timeouts, TLS.
`aiohttp`: the library, parsing as it reads. Prints JSON: chunks, wall and CPU seconds, TTFT and ITL in ms as [mean, p50, p99].
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

now = time.perf_counter
Sent = tuple[float, list[float]]


def has_content(line: bytes) -> bool:
    """A true JSON parse, as an honest client must do."""
    choices = json.loads(line)["choices"]
    return bool(choices and (choices[0].get("delta", {}).get("content") or choices[0].get("text")))


def body(tokens: int) -> bytes:
    """The request of every client."""
    return json.dumps(
        {
            "model": "mock",
            "stream": True,
            "max_tokens": tokens,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": "hello " * 16}],
        }
    ).encode()


class Lazy(asyncio.Protocol):
    """Stamps what arrives; an answer is over when the last chunk of length 0 is seen."""

    def __init__(self, numbers: Iterator[int], request: bytes, done: asyncio.Future[int], out: list[Any]) -> None:
        self.numbers, self.request, self.done, self.out = numbers, request, done, out

    def connection_made(self, transport: Any) -> None:
        """asyncio: connected."""
        self.transport = transport
        self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: gone."""
        if not self.done.done():
            self.done.set_result(0)

    def ask(self) -> None:
        """The next request, or the end."""
        if next(self.numbers, None) is None:
            self.transport.close()
            return
        self.sent = now()
        self.raw: list[tuple[float, bytes]] = []
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        self.raw.append((now(), data))
        if data.endswith(b"0\r\n\r\n"):
            self.out.append((self.sent, self.raw))
            self.ask()


async def lazy(url: str, concurrency: int, requests: int, tokens: int) -> list[Any]:
    """(sent, [(time, bytes)]) of each answer."""
    parts, numbers, out = urlsplit(url), iter(range(requests)), []
    sent = body(tokens)
    head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.hostname}\r\ncontent-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    waiting = []
    for _ in range(concurrency):
        done: asyncio.Future[int] = loop.create_future()
        waiting.append(done)
        await loop.create_connection(lambda d=done: Lazy(numbers, head.encode() + sent, d, out), parts.hostname, parts.port)
    await asyncio.gather(*waiting)
    return out


def parsed(raw: list[Any]) -> list[Sent]:
    """Stamps of chunks with text."""
    out = []
    for sent, pieces in raw:
        stamps = []
        for at, data in pieces:
            stamps += [at for line in data.split(b"\n") if line.startswith(b"data: {") and has_content(line[6:])]
        out.append((sent, stamps))
    return out


async def aiohttp_client(url: str, concurrency: int, requests: int, tokens: int) -> list[Sent]:
    """Stamps of chunks with text."""
    import aiohttp

    numbers, out, data = iter(range(requests)), [], body(tokens)

    async def one(session: aiohttp.ClientSession) -> None:
        for _ in numbers:
            sent, stamps, rest = now(), [], b""
            async with session.post(url, data=data, headers={"content-type": "application/json"}) as answer:
                async for piece in answer.content.iter_any():
                    at = now()
                    *events, rest = (rest + piece).split(b"\n\n")
                    stamps += [at for e in events if e.startswith(b"data: {") and has_content(e[6:])]
            out.append((sent, stamps))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(one(session) for _ in range(concurrency)))
    return out


def three(values: list[float]) -> list[float]:
    """Mean, p50, p99."""
    ordered = sorted(values)
    return [sum(ordered) / len(ordered), ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]]


def main() -> None:
    """One run."""
    kind, url, numbers = sys.argv[1], sys.argv[2], [int(a) for a in sys.argv[3:6]]
    begin, before = now(), resource.getrusage(resource.RUSAGE_SELF)
    if kind == "lazy":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            raw = runner.run(lazy(url, *numbers))
        wall = now() - begin
        found = parsed(raw)
    else:
        found = asyncio.run(aiohttp_client(url, *numbers))
        wall = now() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    gaps = [1e3 * (b - a) for _, stamps in found for a, b in itertools.pairwise(stamps)]
    print(
        json.dumps(
            {
                "kind": kind,
                "requests": len(found),
                "chunks": sum(len(s) for _, s in found),
                "wall_s": wall,
                "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                "ttft_ms": three([1e3 * (s[0] - sent) for sent, s in found]),
                "itl_ms": three(gaps),
            }
        )
    )


if __name__ == "__main__":
    main()
