"""The HTTP load client: asyncio protocols that stamp bytes at arrival. Framing is a library's (httptools), parsed when an
answer may be complete; events and JSON are parsed after the run, so that the hot path costs two list appends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import httptools

now = time.perf_counter
_LAST_CHUNK = b"0\r\n\r\n"
BATCH = 16
"""Pieces that are framed together: many streams end at the same moment, and framing whole answers then would hold up all others."""
MAX_BODY = 16 << 20
"""Bytes of one answer after which it is dropped and called an error: no text of a small model is that long (32,000 tokens are 10 MB)."""
MAX_HEAD = 1 << 20
RETRY_S = 0.1
"""Seconds after a failure until a client of a closed loop asks again: without it, a server that restarts for a second is refused 5,000 times."""
BUSY = (429, 503)
"""Statuses of a server that has no room now. Its clients come back later, as those of real users do: after `Retry-After`, else `BUSY_S`."""
BUSY_S = (0.2, 2.0)
"""Seconds that a client waits after the first such answer, doubled with each further one, and at most."""
LONGEST_RETRY_S = 60.0
"""The longest `Retry-After` that a client waits for."""
FILES = 65536
"""Open files that a load may need: an open loop against a server that stands still has one per arrival."""


@dataclass(slots=True)
class Answer:
    """One request as it went over the wire. Times are `time.perf_counter` seconds.

    `due` is when it should have been sent; latencies count from there, so a client that falls behind its schedule cannot hide
    waiting. `pieces` are (arrival, body bytes) after framing. `error` is "" or one of
    refused, timeout, disconnected, truncated, tls, protocol, too-long, too-many-files (the client's own limit), cancelled.
    """

    number: int
    due: float
    sent: float = 0.0
    ended: float = 0.0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    error: str = ""
    detail: str = ""
    reused: bool = False
    lag: float = 0.0
    """Seconds after `due` at which the client came to it; connecting is not counted, as the way to a far server is no slow client."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to ask. `headers` go with every request (authorization is never reported)."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 120.0
    verify_tls: bool = True

    def request(self, body: bytes, path: str = "", method: str = "POST") -> bytes:
        """The bytes of one request."""
        length = b"Content-Length: %d\r\n" % len(body) if method == "POST" else b""
        return self._head(path, method) + length + b"\r\n" + body

    @lru_cache(64)  # noqa: B019  (a target lives as long as its run)
    def _head(self, path: str, method: str) -> bytes:
        parts = urlsplit(self.url)
        where = path or parts.path or "/"
        if parts.query and not path:
            where += f"?{parts.query}"
        host = parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        port = f":{parts.port}" if parts.port else ""
        lines = [
            f"{method} {where} HTTP/1.1",
            f"Host: {host}{port}",
            "Accept: text/event-stream, application/json",
            "User-Agent: dstune",
        ]
        lines += [f"{k}: {v}" for k, v in self.headers]
        if method == "POST":
            lines.append("Content-Type: application/json")
        return ("\r\n".join(lines) + "\r\n").encode("latin-1")


class _Head:
    """Collects one response's status, headers and body through httptools."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.stamp = 0.0
        self.complete = False
        self.head_done = False
        self.keeps = True
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.head_done = True
        self.answer.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.answer.pieces.append((self.stamp, body))

    def on_message_complete(self) -> None:
        if self.answer.status < 200:  # 100 Continue, 103 Early Hints: the answer itself is still to come
            self.head_done = False
            self.answer.headers.clear()
            return
        self.complete = True
        self.keeps = self.parser.should_keep_alive()


class Connection(asyncio.Protocol):
    """One keep-alive connection; `ask` sends a request and waits for its whole answer."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.used = False
        self._raw: list[tuple[float, bytes]] = []
        self._fed = 0
        self._size = 0
        self._lazy = False
        self._head: _Head | None = None
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came. The hot path: stamp, keep, and look whether this may be the end."""
        self._raw.append((now(), data))
        if self._lazy and not data.endswith(_LAST_CHUNK) and len(self._raw) < BATCH:
            return
        self._feed()

    def peek(self, answer: Answer) -> None:
        """Puts what has arrived of a running answer into it."""
        if self._head is not None and self._head.answer is answer:
            self._feed()

    def _feed(self) -> None:
        head = self._head
        if head is None:
            return
        try:
            for stamp, data in self._raw[self._fed :]:
                head.stamp = stamp
                self._size += len(data)
                head.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish("protocol", str(error))
            return
        self._raw.clear()
        self._fed = 0
        if head.complete:
            self._finish()
        elif self._size > (MAX_BODY if head.head_done else MAX_HEAD):
            answer = head.answer
            self._finish("too-long")
            del answer.pieces[:]
            answer.headers.clear()
        elif head.head_done:
            self._lazy = head.answer.headers.get("transfer-encoding", "").lower().endswith("chunked")

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: gone. An answer without length ends here rightly; any other is truncated."""
        self.closed = True
        head = self._head
        if head is None:
            return
        self._feed()
        if self._head is None:
            return
        headers = head.answer.headers
        if head.head_done and "content-length" not in headers and "chunked" not in headers.get("transfer-encoding", ""):
            self._finish()
        else:
            self._finish("truncated" if head.head_done else "disconnected", str(error or ""))

    def _finish(self, error: str = "", detail: str = "") -> None:
        head, self._head = self._head, None
        if head is None:
            return
        answer = head.answer
        answer.ended = self._raw[-1][0] if self._raw else (answer.pieces[-1][0] if answer.pieces else now())
        answer.error, answer.detail = error, detail
        if error or not head.keeps:
            self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Ends the connection."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    async def ask(self, request: bytes, answer: Answer, timeout_s: float) -> None:
        """Sends and waits; the outcome stands in `answer`. `timeout_s` counts from now."""
        assert self.transport is not None
        loop = asyncio.get_running_loop()
        self._head, self._waiter = _Head(answer), loop.create_future()
        self._raw.clear()
        self._fed = self._size = 0
        self._lazy = False
        answer.reused, self.used = self.used, True
        answer.sent = now()
        self.transport.write(request)
        timer = loop.call_later(timeout_s, self._expire)
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._feed()
            self._finish("cancelled")
            raise
        finally:
            timer.cancel()

    def _expire(self) -> None:
        self._feed()
        self._finish("timeout")


class Pool:
    """Connections to one target, reused; opened when none is free."""

    def __init__(self, target: Target) -> None:
        self.target = target
        parts = urlsplit(target.url)
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._free: list[Connection] = []
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context()
            if not target.verify_tls:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE
        self.opened = 0
        self._all: list[Connection] = []

    def peek(self, answer: Answer) -> None:
        """Puts what has arrived of a running answer into it."""
        for connection in self._all:
            connection.peek(answer)

    async def _connection(self, answer: Answer, fresh: bool = False) -> Connection | None:
        while self._free and not fresh:
            kept = self._free.pop()
            if not kept.closed:
                return kept
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(min(10.0, self.target.timeout_s)):
                _, made = await loop.create_connection(Connection, self._host, self._port, ssl=self._tls)
        except ssl.SSLError as error:
            answer.error, answer.detail = "tls", str(error)
        except TimeoutError:
            answer.error, answer.detail = "timeout", "connect"
        except OSError as error:
            own = error.errno in (errno.EMFILE, errno.ENFILE)
            answer.error, answer.detail = "too-many-files" if own else "refused", error.strerror or str(error)
        else:
            self.opened += 1
            self._all = [c for c in self._all if not c.closed] + [made]
            return made
        answer.sent = answer.ended = now()
        return None

    async def open(self, count: int) -> None:
        """Connects `count` times ahead, so that no answer of a closed loop pays for it. A refusal shows with the first request."""
        found = await asyncio.gather(*(self._connection(Answer(-1, now())) for _ in range(count)))
        self._free += [c for c in found if c is not None]

    async def send(self, request: bytes, answer: Answer) -> None:
        """One request over a kept or a new connection. A kept one that the server had closed meanwhile is tried anew once."""
        for attempt in (0, 1):
            connection = await self._connection(answer, fresh=attempt > 0)
            if connection is None:
                return
            left = self.target.timeout_s - max(0.0, now() - answer.due)
            await connection.ask(request, answer, max(0.01, left))
            if not connection.closed:
                self._free.append(connection)
            if answer.error == "disconnected" and answer.reused and attempt == 0:
                answer.error = answer.detail = ""
                answer.headers.clear()
                continue
            return

    def close(self) -> None:
        """Ends all kept connections."""
        for connection in self._free:
            connection.close()
        self._free.clear()


Ask = Callable[[Answer], Awaitable[None]]
"""Sends request `answer.number` and fills the answer in."""
Seen = Callable[[Answer], bool]
"""Takes an answer that has ended; whether it failed."""


async def closed_loop(ask: Ask, concurrency: int, requests: int | None, duration_s: float | None, seen: Seen) -> None:
    """`concurrency` clients that each ask again when their answer is complete, until `requests` were sent or time is up."""
    numbers = _numbers(requests)
    end = now() + duration_s if duration_s is not None else float("inf")

    async def one() -> None:
        refused = 0
        for number in numbers:
            start = now()
            if start >= end:
                return
            answer = Answer(number, start)
            failed = await _asked(ask, answer, seen)
            refused = refused + 1 if answer.status in BUSY else 0
            if failed:
                wait, left = pause(answer, refused), end - now()
                await asyncio.sleep(max(0.0, min(wait, left)))
                if wait >= left:  # not by the clock: a timer may end a little early, and the rest would be spent asking
                    return

    await closed(one() for _ in range(concurrency))


def pause(answer: Answer, refused: int) -> float:
    """Seconds until a client asks again after a failure. `refused`: busy answers that it got in a row, this one included."""
    if not refused:
        return RETRY_S
    try:
        said = float(answer.headers.get("retry-after", ""))
    except ValueError:  # none, or a date
        said = 0.0
    return min(said, LONGEST_RETRY_S) if said > 0 else min(BUSY_S[0] * 2.0 ** min(refused - 1, 10), BUSY_S[1])


async def open_loop(ask: Ask, arrivals: Iterable[float], seen: Seen) -> None:
    """Requests at their due times (seconds from the start), whatever is still running: free of coordinated omission."""
    start = now()
    running: set[asyncio.Task[bool]] = set()
    try:
        for number, offset in enumerate(arrivals):
            wait = start + offset - now()
            if wait > 0:
                await asyncio.sleep(wait)
            task = asyncio.create_task(_asked(ask, Answer(number, start + offset), seen))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
    except asyncio.CancelledError:
        await _stop(running)
        raise


async def _asked(ask: Ask, answer: Answer, seen: Seen) -> bool:
    began = now()
    answer.due = min(answer.due, began)  # uvloop's timers have steps of 1 ms and may wake early
    answer.lag = began - answer.due
    failed = True
    try:
        await ask(answer)
    finally:
        if answer.sent:
            failed = seen(answer)
    return failed


async def closed(work: Iterable[Any]) -> None:
    """Runs coroutines until all are done; cancelled, it returns only when all of them have ended."""
    tasks = {asyncio.create_task(w) for w in work}
    try:
        await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        await _stop(tasks)
        raise


async def _stop(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _numbers(limit: int | None) -> Iterator[int]:
    number = 0
    while limit is None or number < limit:
        yield number
        number += 1


def more_files() -> None:
    """Raises the soft limit of open files (often 1024) towards the hard one: each running request is a connection."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
