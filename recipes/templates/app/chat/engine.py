"""The worker: one thread that owns the device, takes requests from a queue and runs all their answers in one batch.

Several threads that call the model hold each other up (eight threads: half of one thread's speed on an H200); one thread with a batch
of eight gives each user nearly the speed of a single one. Answers join and leave the batch between two tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import itertools
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chat.prefixes import SHORTEST, PrefixStore, shared
from chat.settings import Sampling, Settings, SettingsError
from chat.stops import runs_away
from chat.trace import Trace

PREFILL = 2048
"""Prompt tokens that are read in one pass. Longer prompts are read in parts, with a decode step between, so that nobody's text stalls.
A pass takes memory by its tokens: 0.14 GB for these on a 1.5B model."""


class BusyError(Exception):
    """The queue is full, or the server is closing."""


class RequestError(Exception):
    """One request failed; others go on."""


@dataclass(eq=False)
class Job:
    """A request on its way. The worker writes everything but `cancelled` and `cut`; `inbox` brings (tokens, finish) to the event loop."""

    prompt: list[int]
    sampling: Sampling
    kind: str = "text"
    ignore_eos: bool = False
    number: int = 0
    inbox: asyncio.Queue[tuple[list[int], str]] = field(default_factory=asyncio.Queue)
    cancelled: bool = False
    cut: bool = False
    error: str = ""
    tokens: list[int] = field(default_factory=list)
    slot: int = -1
    read: int = 0
    reused: int = 0
    finish: str = ""
    asked: float = field(default_factory=time.monotonic)
    started: float = 0.0
    first: float = 0.0

    @property
    def reason(self) -> str:
        """Why the answer ended: stop (also at a stop text), length, runaway, timeout, cancelled, error."""
        return "stop" if self.cut else self.finish


@dataclass
class Slot:
    """A row of the cache: whose it is, and which tokens it holds."""

    job: Job | None = None
    held: list[int] = field(default_factory=list)


class Engine:
    """`submit` from the event loop; everything else happens on the worker thread."""

    def __init__(self, settings: Settings, trace: Trace, make: Callable[[], Any], eos: set[int]) -> None:
        self.settings, self.trace, self.make, self.eos = settings, trace, make, eos
        self.decoder: Any = None
        self.slots = [Slot() for _ in range(settings.slots)]
        self.store = PrefixStore(settings.cache.session_max, int(settings.cache.cpu_ram_limit_gb * 1e9))
        self.waiting: deque[Job] = deque()
        self.wake = threading.Condition()
        self.ready = threading.Event()
        self.closing = False
        self.failed = ""
        self.error: BaseException | None = None
        self.stop: Callable[[], object] = lambda: os.kill(os.getpid(), signal.SIGTERM)
        self.numbers = itertools.count(1)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.news: list[tuple[Job, list[int], str]] = []
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # From the event loop

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the worker, which loads the model."""
        self.loop = loop
        self.thread.start()

    def submit(self, job: Job) -> Job:
        """Queues a request. Raises `BusyError` when as many wait as may wait."""
        with self.wake:
            if self.closing or self.failed:
                raise BusyError(self.failed or "the server is closing")
            free = sum(s.job is None for s in self.slots)
            if len(self.waiting) >= self.settings.server.queue + free:
                self.trace.count("requests_refused")
                self.trace("queue", "full", waiting=len(self.waiting))
                raise BusyError(f"{len(self.waiting)} requests are waiting already")
            job.number = next(self.numbers)
            self.waiting.append(job)
            self.wake.notify()
        return job

    def cancel(self, job: Job) -> None:
        """Nobody reads the answer any more."""
        with self.wake:
            job.cancelled = True
            self.wake.notify()

    def close(self, within_s: float) -> None:
        """Refuses new requests, lets those that run finish within that time, and ends the worker."""
        with self.wake:
            self.closing = True
            self.wake.notify()
        self.thread.join(within_s)

    def gauges(self) -> dict[str, float]:
        """What is so now."""
        running = sum(s.job is not None for s in self.slots)
        decoder = self.decoder
        held = sum(len(s.held) for s in self.slots if s.job)
        return {
            "requests_running": running,
            "requests_waiting": len(self.waiting),
            "slots": len(self.slots),
            "slot_tokens": sum(len(s.held) for s in self.slots),
            "cache_usage": held / (len(self.slots) * self.settings.cache.context),
            "cache_bytes": decoder.cache.bytes() if decoder else 0,
            "sessions": len(self.store.kept),
            "sessions_bytes": self.store.bytes,
            "model_loaded": decoder is not None,
        }

    # On the worker thread

    def _run(self) -> None:
        try:
            self._load()
            self.ready.set()
            pending: tuple[list[Job], Callable[[], list[int]]] | None = None
            while True:
                if not pending and not self._wait():
                    break
                if self.decoder is None:
                    self._load()
                self._sweep()
                self._admit()
                started = self._start_step()
                # The device works on the next step while the tokens of the last one are looked at.
                if pending:
                    self._take(*pending)
                pending = started
                if pending and self.decoder.ids.device.type != "cuda":
                    self._take(*pending)
                    pending = None
                self._deliver()
        except BaseException as error:
            self._die(error)

    def _wait(self) -> bool:
        """Sleeps until there is work. False when the server is closing and nothing runs; unloads the model after the idle time."""
        while True:
            with self.wake:
                if self.waiting or any(s.job for s in self.slots):
                    return True
                if self.closing:
                    return False
                idle = self.settings.server.idle_unload_s if self.decoder else 0
                woken = self.wake.wait(idle or None)
            if not woken:
                self._unload()

    def _load(self) -> None:
        begin = time.monotonic()
        self.decoder = self.make()
        graphs = self.decoder.warm_up()
        self.trace("model", "loaded", seconds=round(time.monotonic() - begin, 2), graphs=len(self.decoder.graphs), graph_seconds=round(graphs, 2),
                   cache_mib=self.decoder.cache.bytes() >> 20)  # fmt: skip

        if self.decoder.unrecorded:
            self.trace("model", "runs without CUDA graphs", logging.WARNING, why=self.decoder.unrecorded)

    def _unload(self) -> None:
        """Gives the device's memory back; conversations move to host memory."""
        for number, slot in enumerate(self.slots):
            self._keep(number, slot)
            slot.held = []
        self.decoder = None
        gc.collect()
        _empty_cache()
        _trim()
        self.trace("model", "unloaded", idle_s=self.settings.server.idle_unload_s, sessions=len(self.store.kept))

    def _sweep(self) -> None:
        """Ends what was cancelled or took too long, waiting or running."""
        now, limit = time.monotonic(), self.settings.server.timeout
        with self.wake:
            over = [j for j in self.waiting if j.cancelled or now - j.asked > limit or self.closing]
            for job in over:
                self.waiting.remove(job)
        for job in over:
            job.error = "" if job.cancelled else "the server is closing" if self.closing else f"no place within {limit:g} s"
            self._end(job, "cancelled" if job.cancelled else "error")
        for slot in self.slots:
            if (job := slot.job) and (job.cancelled or now - job.asked > limit):
                self._end(job, "stop" if job.cut else "cancelled" if job.cancelled else "timeout")

    def _admit(self) -> None:
        """Reads prompts for one pass: the rest of a long one first, else as many waiting ones as fit together."""
        started = next((s.job for s in self.slots if s.job and s.job.read < len(s.job.prompt)), None)
        if started:
            return self._read_alone(started)
        batch: list[Job] = []
        while self.waiting and None in (s.job for s in self.slots):
            longest = max(len(j.prompt) for j in [*batch, self.waiting[0]])
            if batch and longest * (len(batch) + 1) > PREFILL:
                break
            with self.wake:
                job = self.waiting.popleft()
            self._seat(job)
            if job.read or len(job.prompt) > PREFILL:
                if batch:
                    break  # its own pass, the next time round: it is started, so it comes first
                return self._read_alone(job)
            batch.append(job)
        if batch:
            self._read(batch)
        return None

    def _seat(self, job: Job) -> None:
        """Gives a request the lowest free slot, and what is known of its prompt: from any slot or from host memory."""
        number = next(i for i, s in enumerate(self.slots) if s.job is None)
        slot, job.slot, job.started = self.slots[number], number, time.monotonic()
        usable = job.prompt[:-1]  # the last token is always read: its logits give the first token of the answer
        lengths = [shared(s.held, usable) for s in self.slots]
        lengths[number] += lengths[number] > 0  # at a tie its own: nothing to copy
        best = max(range(len(lengths)), key=lengths.__getitem__)
        saved_length, saved = self.store.find(usable)
        length = shared(self.slots[best].held, usable)
        source = "slot"
        if 2 * shared(slot.held, usable) < len(slot.held):  # another conversation's
            self._keep(number, slot)
        if saved is not None and saved_length > length:
            length, source = saved_length, "host"
            self.decoder.cache.restore(number, saved, length)
        elif length >= SHORTEST and best != number:
            self.decoder.cache.copy(best, number, length)
        job.read = job.reused = length if length >= SHORTEST else 0
        slot.job, slot.held = job, job.prompt[: job.read]
        if job.reused:
            self.trace.count("prompt_tokens_reused", job.reused)
            self.trace("cache", "reused", tokens=job.reused, of=len(job.prompt), source=source, slot=number, id=job.number)

    def _keep(self, number: int, slot: Slot) -> None:
        """Saves what a free slot holds before it is overwritten."""
        if len(slot.held) < SHORTEST or not self.store.limit or not self.store.count or self.decoder is None:
            return
        if self.store.find(slot.held)[0] == len(slot.held):
            return  # kept already, by this conversation's earlier turn or a longer one
        gone = self.store.add(slot.held, self.decoder.cache.save(number, len(slot.held)))
        self.trace(
            "cache", "kept", logging.DEBUG, tokens=len(slot.held), sessions=len(self.store.kept), mib=self.store.bytes >> 20
        )
        for length in gone:
            self.trace.count("sessions_evicted")
            self.trace("cache", "evicted", tokens=length, sessions=len(self.store.kept), mib=self.store.bytes >> 20)

    def _read(self, batch: list[Job]) -> None:
        """One pass over whole prompts. Where it runs out of memory each is tried alone, and what fails alone is answered so."""
        try:
            logits = self.decoder.prefill([(j.slot, 0, j.prompt) for j in batch])
            self._join(logits, batch)
        except Exception as error:
            if not out_of_memory(error):
                raise
            del error
            _empty_cache()
            if len(batch) == 1:
                return self._fail(batch[0])
            for job in batch:
                self._read([job])
        return None

    def _read_alone(self, job: Job) -> None:
        """The next part of one prompt, behind what its slot holds."""
        part = job.prompt[job.read : job.read + PREFILL]
        try:
            logits = self.decoder.prefill([(job.slot, job.read, part)])
            job.read += len(part)
            self.slots[job.slot].held = job.prompt[: job.read]
            if job.read == len(job.prompt):
                self._join(logits, [job])
        except Exception as error:
            if not out_of_memory(error):
                raise
            del error
            _empty_cache()
            self._fail(job)

    def _fail(self, job: Job) -> None:
        """Out of memory for this request alone."""
        job.error = f"not enough memory for a prompt of {len(job.prompt)} tokens beside what is running"
        self.trace.count("out_of_memory")
        self.slots[job.slot].held = []
        self._end(job, "error")

    def _join(self, logits: Any, batch: list[Job]) -> None:
        """The first tokens, and from now on a place in every step."""
        s = [j.sampling for j in batch]
        first = self.decoder.join(
            logits, [(j.slot, len(j.prompt), p.temperature, p.top_p, p.top_k) for j, p in zip(batch, s, strict=True)]
        )
        now = time.monotonic()
        for job, token in zip(batch, first, strict=True):
            job.read, job.first = len(job.prompt), now
            self.trace.observe("time_in_queue", job.started - job.asked)
            self.slots[job.slot].held = list(job.prompt)
            self.trace.observe("time_to_first_token", now - job.asked)
            self._token(job, token)

    def _start_step(self) -> tuple[list[Job], Callable[[], list[int]]] | None:
        """Starts a step for all answers that have their prompt read."""
        jobs = [s.job for s in self.slots if s.job and s.job.first]
        if not jobs:
            return None
        rows = max(j.slot for j in jobs) + 1
        length = (
            max(len(j.prompt) + len(j.tokens) for j in jobs) + 1
        )  # one more: the step before may not have been looked at yet
        return jobs, self.decoder.decode(rows, length)

    def _take(self, jobs: list[Job], tokens: Callable[[], list[int]]) -> None:
        """Gives the tokens of a step to its answers; one that ended meanwhile drops its token."""
        found = tokens()
        for job in jobs:
            if not job.finish:
                self.slots[job.slot].held.append(job.tokens[-1])
                self._token(job, found[job.slot])

    def _token(self, job: Job, token: int) -> None:
        """One more token, and whether it is the last."""
        if token in self.eos and not job.ignore_eos:
            return self._end(job, "stop")
        job.tokens.append(token)
        self.news.append((job, [token], ""))
        count = len(job.tokens)
        if count >= job.sampling.max_new_tokens or len(job.prompt) + count >= self.settings.cache.context:
            self._end(job, "length")
        elif count % 8 == 0 and runs_away(job.tokens, self.settings.generation.runaway_tokens):
            self.trace.count("runaways")
            self._end(job, "runaway")
        return None

    def _end(self, job: Job, finish: str) -> None:
        """The slot is free again; what it holds may serve the conversation's next turn."""
        job.finish = finish
        if job.slot >= 0:
            self.slots[job.slot].job = None
            if self.decoder:
                self.decoder.leave(job.slot)
        self.news.append((job, [], finish))
        now = time.monotonic()
        self.trace.count(f"requests_{finish}")
        self.trace.count("prompt_tokens", len(job.prompt))
        self.trace.observe("request_duration", now - job.asked)
        self.trace(
            "request", finish, id=job.number, kind=job.kind, prompt=len(job.prompt), reused=job.reused, tokens=len(job.tokens),
            queued_ms=round(1e3 * ((job.started or now) - job.asked)), ttft_ms=round(1e3 * (job.first - job.asked)) if job.first else None,
            duration_ms=round(1e3 * (now - job.asked)), **({"error": job.error} if job.error else {}),
        )  # fmt: skip

    def _deliver(self) -> None:
        """One call into the event loop for all answers: a call for each token would cost more than the token."""
        news, self.news = self.news, []
        if new := sum(len(tokens) for _, tokens, _ in news):
            self.trace.count("output_tokens", new)
        if news and self.loop and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(_hand_out, news)

    def _die(self, error: BaseException) -> None:
        """The device is in no state that can be trusted: everyone is told, and the process ends so that it is started anew. What the
        configuration asks for in vain is said in its own words."""
        told = isinstance(error, SettingsError)
        with self.wake:  # no request comes in between: it would wait for ever
            self.error = error
            self.failed = str(error) if told else f"{type(error).__name__}: {error}".split("\n")[0]
        self.trace.log.critical("engine stopped: %s", self.failed, exc_info=not (told or isinstance(error, SystemExit)))
        for job in [*self.waiting, *(s.job for s in self.slots if s.job)]:
            job.error, job.finish = "the server had to stop", "error"
            self.news.append((job, [], "error"))
        self._deliver()
        self.ready.set()
        self.stop()


def _hand_out(news: list[tuple[Job, list[int], str]]) -> None:
    for job, tokens, finish in news:
        job.inbox.put_nowait((tokens, finish))


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is short, on the device or on the host."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _trim() -> None:
    """Hands what the C library holds in reserve back to the host: gigabytes after a model has gone through its memory."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _empty_cache() -> None:
    """Hands what torch holds in reserve back to the card."""
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        torch.cuda.empty_cache()
