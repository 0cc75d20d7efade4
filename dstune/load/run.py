"""One trial: warm-up, load, figures. The caller draws progress and samples the GPU."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dstune.load.answers import Reply, read
from dstune.load.client import BUSY, Answer, Ask, Pool, Target, closed_loop, more_files, now, open_loop
from dstune.load.count import counter, recount
from dstune.load.detect import Server
from dstune.load.paths import told
from dstune.load.runner import run
from dstune.load.shape import shape
from dstune.load.stats import outcome
from dstune.load.workload import Bodies, poisson
from dstune.model import Value
from dstune.model.plan import Trial, Workload

ROUTE = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "gradio": ""}
CONNECTIONS = 512
"""What one process drives without becoming the bottleneck (benchmarks/load_client.py)."""


def processes(concurrency: int) -> int:
    """Client processes that so many streams need."""
    return -(-concurrency // CONNECTIONS)


@dataclass(frozen=True, slots=True)
class Options:
    """How to load. Either `duration_s` or `requests` bounds the run; both may."""

    workload: Workload
    profile: str = "chat"
    model: str = ""
    duration_s: float | None = 30.0
    requests: int | None = None
    stream: bool = True
    warmup: int = 1
    timeout_s: float = 120.0
    headers: tuple[tuple[str, str], ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    warm: bool = False
    seed: int = 1
    verify_tls: bool = True
    lane: tuple[int, int] = (0, 1)
    """(number of the first request, step): workers share the numbers, so that no two send the same prompt."""
    api_name: str = ""
    gradio_path: str = "queue"
    """Which way a Gradio app is asked: one of `paths.PATHS`."""
    tokenizer: str = ""
    give_up: int = 0
    """Failures without a single answer after which a load ends at once; 0: see `HOPELESS`."""


KEPT_CHUNKS = 200_000
"""Chunks that are kept as they came until the load is over (370 bytes each: 75 MB). Above, the oldest answers are read during the load,
two for each that ends, which takes its client about a millisecond."""
GRACE_S = 10.0
"""Least time that running requests get after the duration; else as long again as the load took."""
HOPELESS = 20
"""Failures without a single answer after which a load may end: a server that refuses all would be asked thousands of times a second."""
HOPELESS_S, BUSY_S = 2.0, 30.0
"""Seconds that such a load lasts at least; where the server says that it is busy, as it may be answering somebody's long question."""
HELD_S = 1.0
"""A request that runs for longer than this was not refused: while there is one, a load without an answer goes on."""


@dataclass(slots=True)
class Live:
    """What progress may show while a trial runs: answers so far, by the raw client (not yet parsed)."""

    started: float = 0.0
    done: int = 0
    failed: int = 0
    first_bytes: list[float] = field(default_factory=list)
    busy: int = 0
    """Failures whose status says that the server has no room now."""
    warming: float = 0.0
    """When the warm-up began, while it lasts."""
    running: dict[int, float] = field(default_factory=dict)
    """Request numbers and when each was begun."""


@dataclass(slots=True)
class Raw:
    """What one process saw: replies, and what it cost. CPU in seconds, memory in MiB. `unfinished`: seconds that each request had run
    when its time after the load was over; `interrupted`: the user ended the load; `hopeless`: it ended early since nothing was answered."""

    replies: list[Reply]
    cpu_s: float = 0.0
    parse_cpu_s: float = 0.0
    rss_mib: float = 0.0
    connections: int = 0
    interrupted: bool = False
    unfinished: list[float] = field(default_factory=list)
    hopeless: bool = False


class _Seen:
    """Answers as they end, read when there is time or when too many are kept."""

    def __init__(self, understand: Callable[[Answer], Reply]) -> None:
        self.understand = understand
        self.kept: deque[Answer] = deque()
        self.chunks = 0
        self.replies: list[Reply] = []
        self.cancelled: list[Answer] = []

    def add(self, answer: Answer) -> None:
        if answer.error == "cancelled":
            self.cancelled.append(answer)
            return
        self.kept.append(answer)
        self.chunks += len(answer.pieces)
        for _ in range(2):
            if self.chunks > KEPT_CHUNKS and self.kept:
                self._read()

    def all(self) -> list[Reply]:
        while self.kept:
            self._read()
        return self.replies

    def _read(self) -> None:
        answer = self.kept.popleft()
        self.chunks -= len(answer.pieces)
        self.replies.append(self.understand(answer))


def trial(
    server: Server,
    options: Options,
    live: Live | None = None,
    tick: Callable[[Live], None] | None = None,
    go: Callable[[], None] | None = None,
) -> tuple[Trial, list[Reply]]:
    """Loads the server once. Ctrl-C ends the load and gives the report so far (`outcome["interrupted"]`). `go`: see `collect`."""
    seen = collect(server, options, live, tick, go)
    return judged(server, options, [seen]), seen.replies


async def trial_async(
    server: Server, options: Options, live: Live | None = None, tick: Callable[[Live], None] | None = None
) -> tuple[Trial, list[Reply]]:
    """The same inside a running loop (the monitor's); cancelling it ends the load and gives the report so far."""
    seen = await _collect(server, options, live, tick)
    return judged(server, options, [seen]), seen.replies


def collect(
    server: Server,
    options: Options,
    live: Live | None = None,
    tick: Callable[[Live], None] | None = None,
    go: Callable[[], None] | None = None,
) -> Raw:
    """What this process sees of one load. `go` is called when all is ready, and returns when the load may start."""
    found: Raw = run(_collect(server, options, live, tick, go))
    return found


async def _collect(
    server: Server,
    options: Options,
    live: Live | None,
    tick: Callable[[Live], None] | None,
    go: Callable[[], None] | None = None,
) -> Raw:
    live = live or Live()
    more_files()
    cpu = time.process_time()
    gc.disable()  # each collection walks all stamps so far and stops every stream for milliseconds
    try:
        return await _watched(server, options, live, tick, go, cpu)
    finally:
        gc.enable()


async def _watched(
    server: Server,
    options: Options,
    live: Live,
    tick: Callable[[Live], None] | None,
    go: Callable[[], None] | None,
    cpu: float,
) -> Raw:
    seen = _Seen(_reader(server, options))
    interrupted, hopeless, opened = await _main(server, options, seen, live, tick, go)
    spent = time.process_time() - cpu
    replies = seen.all()
    if options.tokenizer:
        recount(replies, counter(options.tokenizer))
    parsed = time.process_time() - cpu - spent
    unfinished = [] if interrupted else [round(a.ended - a.due, 3) for a in seen.cancelled]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Raw(replies, spent, parsed, memory, opened, interrupted, unfinished, hopeless)


def judged(server: Server, options: Options, parts: Sequence[Raw]) -> Trial:
    """The trial of what one or several processes saw."""
    replies = hidden([r for p in parts for r in p.replies], options)
    client = {"cpu_s": sum(p.cpu_s for p in parts), "connections": sum(p.connections for p in parts), "cores": len(parts)}
    figures = outcome(replies, options.workload, client)
    figures |= shape(replies)
    figures["client_parse_cpu_s"] = round(sum(p.parse_cpu_s for p in parts), 4)
    figures["client_rss_mib"] = round(sum(p.rss_mib for p in parts), 1)
    if len(parts) > 1:
        figures["client_workers"] = len(parts)
    if any(p.interrupted for p in parts):
        figures["interrupted"] = True
    if any(p.hopeless for p in parts) and not figures["requests"]["ok"]:
        figures["hopeless"] = True
    if unfinished := [s for p in parts for s in p.unfinished]:
        figures["unfinished"] = {"requests": len(unfinished), "longest_s": max(unfinished)}
    served = next((r.served for r in replies if r.served), "")
    settings: dict[str, Value] = {
        "url": server.base, "server": server.kind, "server_version": server.version, "model": served or options.model, "profile": options.profile,
        "dialect": server.dialect, "stream": options.stream, "warmup": options.warmup,
    }  # fmt: skip
    if server.dialect == "gradio":
        path = options.gradio_path
        settings |= {"gradio_path": path, "gradio_path_says": told(path), "stream": options.stream and path != "direct"}
    return Trial(options.workload, settings, figures)


def hidden(replies: list[Reply], options: Options) -> list[Reply]:
    """The replies without the API key, which some servers repeat in their refusal."""
    keys = [v.rpartition(" ")[2] for k, v in options.headers if k.lower() == "authorization"]
    for key in (k for k in keys if len(k) > 3):
        for reply in replies:
            if key in reply.detail:
                reply.detail = reply.detail.replace(key, "<redacted>")
            if key in reply.text or key in reply.reasoning:
                reply.text, reply.reasoning = (t.replace(key, "<redacted>") for t in (reply.text, reply.reasoning))
    return replies


def _reader(server: Server, options: Options) -> Callable[[Answer], Reply]:
    """What makes a reply of an answer of this dialect."""
    if server.dialect == "gradio":
        from dstune.load import gradio

        return gradio.reader(options.gradio_path)
    return read


def _asker(server: Server, options: Options, pool: Pool) -> Ask:
    """How one request of this dialect is sent."""
    if server.dialect == "gradio":
        from dstune.load import gradio

        return gradio.asker(server, options.profile, pool, options.warm, options.api_name, options.lane, options.gradio_path)
    body = Bodies(
        options.profile,
        options.model,
        options.workload.output_tokens,
        server.dialect,
        options.stream,
        options.warm,
        options.extra,
    )

    first, step = options.lane

    async def ask(answer: Answer) -> None:
        await pool.send(pool.target.request(body(first + step * answer.number)), answer)

    return ask


async def _main(
    server: Server, options: Options, answers: _Seen, live: Live, tick: Callable[[Live], None] | None, go: Callable[[], None] | None
) -> tuple[bool, bool, int]:  # fmt: skip
    """(the user ended it, it ended early since nothing was answered, connections opened)."""
    work = options.workload
    pool = Pool(Target(server.base + ROUTE[server.dialect], options.headers, options.timeout_s, options.verify_tls))
    send = _asker(server, options, pool)

    async def ask(answer: Answer) -> None:
        live.running[answer.number] = now()
        try:
            await send(answer)
        finally:
            del live.running[answer.number]

    if options.warmup:
        warm = closed_loop(
            ask, min(options.warmup, work.concurrency), options.warmup, 60.0, lambda a: failed(a, answers.understand)
        )
        await _ticked(warm, live, tick)
    if work.rate is None:
        await pool.open(min(work.concurrency, options.requests or work.concurrency))
    if go is not None:
        go()
    live.started = now()

    def seen(answer: Answer) -> bool:
        bad = failed(answer, answers.understand)
        answers.add(answer)
        live.done += 1
        live.failed += bad
        live.busy += answer.status in BUSY
        if answer.pieces and not bad:
            live.first_bytes.append(answer.pieces[0][0] - answer.due)
        return bad

    if work.rate is None:
        load = closed_loop(ask, work.concurrency, options.requests, options.duration_s, seen)
    else:
        load = open_loop(ask, poisson(work.rate, options.duration_s, options.requests, options.seed), seen)
    task = asyncio.create_task(load)
    interrupted = False
    last = float("inf") if options.duration_s is None else live.started + options.duration_s + max(GRACE_S, options.duration_s)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=0.5)
            if tick is not None:
                tick(live)
            hopeless = _hopeless(live, options)
            if (hopeless or now() > last) and not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if hopeless:
                    answers.cancelled.clear()
                return False, hopeless, pool.opened
        task.result()
    except asyncio.CancelledError:
        interrupted = True
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    finally:
        pool.close()
    return interrupted, False, pool.opened


async def _ticked(work: Awaitable[None], live: Live, tick: Callable[[Live], None] | None) -> None:
    """Awaits the warm-up; shows meanwhile that it lasts."""
    task = asyncio.ensure_future(work)
    live.warming = now()
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=0.5)
            if tick is not None:
                tick(live)
        task.result()
    finally:
        live.warming = 0.0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


QUICK_S, SHORT = 0.1, 16384
"""An answer that came sooner and is shorter than this (seconds, bytes) is read at once: it may be a page, an error or nothing under status
200, and a client that took it for an answer would ask again 10,000 times a second."""


def failed(answer: Answer, understand: Callable[[Answer], Reply]) -> bool:
    """Whether this is no answer, as far as it shows without reading long ones."""
    if answer.error or answer.status >= 300:
        return True
    if answer.ended - answer.sent > QUICK_S or sum(len(p) for _, p in answer.pieces) > SHORT:
        return False
    return not understand(answer).ok


def _hopeless(live: Live, options: Options) -> bool:
    """Whether nothing at all was answered, by many requests and for long, and none is held that may still be."""
    if live.failed < live.done or not live.done:
        return False
    if options.give_up:
        return live.done >= options.give_up
    at = now()
    return (
        live.done >= max(HOPELESS, 2 * options.workload.concurrency)
        and at - live.started >= (BUSY_S if live.busy else HOPELESS_S)
        and all(at - begun < HELD_S for begun in live.running.values())
    )
