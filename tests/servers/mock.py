"""A server that knows the truth: OpenAI-compatible, fixed cadence, true times logged; misbehaves on demand.

    python -m tests.servers.mock --port 0 --ttft-ms 50 --itl-ms 10     prints "port N" when it listens

GET /stats?reset=1 → what was really written: requests, chunks, TTFT and gaps (ms), its own CPU seconds. A request chooses its
misbehaviour by the model name, `mock:word,word`: no-done no-usage none-content role-first reasoning crlf split burst jitter stall
error-400 error-500 error-stream cut hang close length-body serial newlines loop bang special fffd empty think-open. A raw
asyncio.Protocol, so that its own cost stays below any client's.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import resource
import time
from pathlib import Path
from typing import Any

now = time.perf_counter
TEXTS = {
    "newlines": ["\n\n"] * 40, "loop": [" and so on"] * 60, "bang": ["!"] * 60, "fffd": ["\ufffd", " text"] * 10,
    "special": ["Hello", "<｜end▁of▁sentence｜>", "<|im_end|>"] * 3, "think-open": ["<think>", "\n", "hmm"] * 5,
}  # fmt: skip


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def frame(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


class Mock:
    """Settings and records of one mock server."""

    def __init__(
        self, ttft_ms: float = 50, itl_ms: float = 10, tokens: int = 128, kind: str = "mock", metrics: str = ""
    ) -> None:
        self.ttft, self.itl, self.tokens, self.kind, self.metrics = ttft_ms / 1e3, itl_ms / 1e3, tokens, kind, metrics
        self.done: list[tuple[float, list[float], int]] = []
        self.asked = 0
        self.cpu0 = cpu()
        self.busy_until = 0.0
        self.random = random.Random(7)
        self._cache: dict[Any, bytes] = {}

    def stats(self, reset: bool) -> dict[str, Any]:
        ttft = sorted(1e3 * (ts[0] - t0) for t0, ts, _ in self.done if ts)
        gaps = sorted(1e3 * (b - a) for _, ts, _ in self.done for a, b in itertools.pairwise(ts))

        def three(v: list[float]) -> list[float]:
            return [sum(v) / len(v), v[len(v) // 2], v[min(len(v) - 1, int(0.99 * len(v)))]] if v else []

        out = {
            "asked": self.asked,  # answers that the client cut included
            "requests": len(self.done),
            "chunks": sum(len(ts) for _, ts, _ in self.done),
            "cpu_s": cpu() - self.cpu0,
            "ttft_ms": three(ttft),
            "gap_ms": three(gaps),
        }
        if reset:
            self.done.clear()
            self.cpu0 = cpu()
        return out

    def event(self, chat: bool, text: str | None, **more: Any) -> bytes:
        """One framed event; the plain ones are made once."""
        key = (chat, text, *sorted(more.items())) if "usage" not in more else None
        if key is None or key not in self._cache:
            made = self._make(chat, text, **more)
            if key is None:
                return made
            self._cache[key] = made
        return self._cache[key]

    def _make(
        self,
        chat: bool,
        text: str | None,
        field: str = "content",
        role: bool = False,
        finish: str | None = None,
        usage: Any = None,
    ) -> bytes:
        data: dict[str, Any] = {
            "id": "chatcmpl-mock0000000000000000000000000000",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": "mock",
        }
        delta: dict[str, Any] = {"role": "assistant"} if role else {}
        if text is not None or not role:
            delta[field] = text
        if usage is not None:
            data |= {"choices": [], "usage": usage}
        elif chat:
            data["choices"] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        else:
            data["choices"] = [{"index": 0, "text": text or "", "logprobs": None, "finish_reason": finish}]
        return b"data: " + json.dumps(data).encode() + b"\n\n"


class Talk(asyncio.Protocol):
    """One connection."""

    def __init__(self, mock: Mock) -> None:
        self.mock, self.buffer, self.open = mock, b"", True

    def connection_made(self, transport: Any) -> None:
        self.transport, self.loop = transport, asyncio.get_running_loop()

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].decode("latin-1")
            lower = head.lower()
            at = lower.find("content-length:")
            size = int(lower[at + 15 :].split("\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + size:
                return
            body, self.buffer = self.buffer[end + 4 : end + 4 + size], self.buffer[end + 4 + size :]
            self.handle(head.split(" ", 2)[1], body)

    def answer(self, data: Any, status: str = "200 OK", kind: str = "application/json") -> None:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.transport.write(
            f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )

    def handle(self, path: str, body: bytes) -> None:
        mock = self.mock
        if path.startswith("/stats"):
            return self.answer(mock.stats("reset=1" in path))
        if path.startswith("/old/"):
            return self.transport.write(
                f"HTTP/1.1 307 Temporary Redirect\r\nlocation: /{path[5:]}\r\ncontent-length: 0\r\n\r\n".encode()
            )
        if path.endswith("/models"):
            return self.answer({"object": "list", "data": [{"id": "mock", "owned_by": mock.kind, "max_model_len": 4096}]})
        if path == "/metrics" and mock.metrics:
            return self.answer(mock.metrics.encode(), kind="text/plain")
        if path in ("/health", "/ping"):
            return self.answer(b"", kind="text/plain")
        if "completions" not in path:
            return self.answer({"error": "not found"}, "404 Not Found")
        asked = json.loads(body)
        return self.complete("chat" in path, asked, now())

    def complete(self, chat: bool, asked: dict[str, Any], t0: float) -> None:
        mock = self.mock
        words = set(str(asked.get("model", "")).partition(":")[2].split(",")) - {""}
        for status, text in (("400", "Bad Request"), ("500", "Internal Server Error")):
            if f"error-{status}" in words:
                return self.answer({"error": {"message": f"mock says {status}", "type": text}}, f"{status} {text}")
        if "hang" in words:
            return None
        if "close" in words:
            return self.transport.close()
        count = asked.get("max_completion_tokens") or asked.get("max_tokens") or mock.tokens
        said = next((TEXTS[w] for w in words if w in TEXTS), None)
        texts = [said[i % len(said)] for i in range(count)] if said else [" the"] * count
        if "empty" in words:
            texts = []
        usage = {"prompt_tokens": 16, "completion_tokens": len(texts), "total_tokens": 16 + len(texts)}
        wait = mock.ttft
        if "serial" in words:
            begin = max(now(), mock.busy_until)
            wait += begin - now()
            mock.busy_until = begin + mock.ttft + mock.itl * (count - 1)
        if not asked.get("stream"):
            message = {"message": {"role": "assistant", "content": "".join(texts)}} if chat else {"text": "".join(texts)}
            whole = {
                "id": "x",
                "object": "chat.completion",
                "model": "mock",
                "choices": [{"index": 0, "finish_reason": "length", **message}],
                "usage": usage,
            }
            self.loop.call_later(wait + mock.itl * (count - 1), lambda: self.open and self.answer(whole))
            return None
        if "error-stream" in words:
            body = b'data: {"error": {"message": "mock broke while streaming", "code": 500}}\n\n'
            return self.answer(body, kind="text/event-stream")
        wants = (asked.get("stream_options") or {}).get("include_usage") and "no-usage" not in words
        self.loop.call_at(
            self.loop.time() + wait, self.next, chat, texts, 0, usage if wants else None, t0, [], self.loop.time() + wait, words
        )
        return None

    def next(
        self, chat: bool, texts: list[str], k: int, usage: Any, t0: float, stamps: list[float], due: float, words: set[str]
    ) -> None:
        mock = self.mock
        if not self.open:
            return
        out = b""
        if k == 0:
            mock.asked += 1
            out = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
            if "role-first" in words:
                out += frame(mock.event(chat, None, role=True))
        last = k >= len(texts) - 1
        if texts:
            field = "reasoning" if "reasoning" in words and k < len(texts) // 2 else "content"
            finish = ("stop" if "stop" in words else "length") if last else None
            event = mock.event(chat, texts[k], field=field, role=k == 0 and "role-first" not in words, finish=finish)
            if "none-content" in words and not last:
                event += mock.event(chat, None)
            if "crlf" in words:
                event = event.replace(b"\n", b"\r\n")
            out += self.framed(event, words)
        if k == 0 and not texts:
            out += frame(mock.event(chat, None, finish="stop"))
        if "burst" not in words or last:
            held = getattr(self, "held", b"")
            self.held = b""
            self.transport.write(held + out)
            stamps.append(now())
        else:
            self.held = getattr(self, "held", b"") + out
        if "cut" in words and k == len(texts) // 2:
            return self.transport.close()
        if not last:
            due += mock.itl
            if "jitter" in words:
                due += mock.random.uniform(-0.5, 0.5) * mock.itl
            if "stall" in words and k == len(texts) // 2:
                due += 0.3
            self.loop.call_at(due, self.next, chat, texts, k + 1, usage, t0, stamps, due, words)
            return None
        tail = b""
        if usage:
            tail += frame(mock.event(chat, None, usage=usage))
        if "no-done" not in words:
            tail += frame(b"data: [DONE]\n\n")
        self.transport.write(tail + b"0\r\n\r\n")
        mock.done.append((t0, stamps, len(texts)))
        return None

    @staticmethod
    def framed(event: bytes, words: set[str]) -> bytes:
        if "split" not in words:
            return frame(event)
        third = len(event) // 3
        return frame(event[:third]) + frame(event[third : 2 * third]) + frame(event[2 * third :])


async def serve(mock: Mock, port: int, tls: Any = None) -> None:
    """Listens on loopback until cancelled; prints the port."""
    server = await asyncio.get_running_loop().create_server(lambda: Talk(mock), "127.0.0.1", port, backlog=1024, ssl=tls)
    print("port", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=50)
    parser.add_argument("--itl-ms", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--kind", default="mock")
    parser.add_argument("--metrics", default="", help="file served as /metrics")
    parser.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"))
    a = parser.parse_args()
    try:
        import uvloop

        uvloop.install()
    except ImportError:
        pass
    tls = None
    if a.tls:
        import ssl

        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*a.tls)
    text = Path(a.metrics).read_text(encoding="utf-8") if a.metrics else ""
    asyncio.run(serve(Mock(a.ttft_ms, a.itl_ms, a.tokens, a.kind, text), a.port, tls))


if __name__ == "__main__":
    main()
