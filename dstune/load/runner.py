"""The event loop of a load, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

ONE_PRESS_S = 1.0
"""Seconds within which several Ctrl-C are one: people press it twice, and `timeout -s INT` signals a command and its group. The first
ends the load and brings the report so far; a later one gives that up."""


def run(main: Any) -> Any:
    """`asyncio.run` on uvloop where it is installed (a third of the CPU per chunk).

    Ctrl-C, and SIGTERM or SIGHUP where somebody unwinds on them, cancel the load; `KeyboardInterrupt` or `SystemExit` is raised after it
    where it did not return. All come through the loop: an exception that a signal raises inside a protocol's callback is dropped by
    uvloop, and one inside the cancelling itself (the second of two Ctrl-C) left a load that nothing woke again.
    """
    main_thread = threading.current_thread() is threading.main_thread()  # no other may set handlers
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: h for n in numbers if main_thread and callable(h := signal.getsignal(n))}
    told: list[int] = []
    first = 0.0

    async def until_told() -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(number: int) -> None:
            nonlocal first
            told.append(number)
            if len(told) == 1:
                first = time.monotonic()
                task.cancel()
            elif number == signal.SIGINT and time.monotonic() - first > ONE_PRESS_S:
                # the ending takes long: the next one ends all
                loop.remove_signal_handler(signal.SIGINT)

        for number in before:
            loop.add_signal_handler(number, end, number)
        return await main

    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            found = runner.run(until_told())
    except asyncio.CancelledError:
        if not told:
            raise
        if set(told) == {signal.SIGINT}:
            raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if signal.SIGINT in told and before.get(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _Patient(first))
    if ended := [n for n in told if n != signal.SIGINT]:
        raise SystemExit(128 + ended[0])
    return found


class _Patient:
    """A handler of Ctrl-C that lets the first press pass, and what comes within `ONE_PRESS_S` of it; then it gives way to Python's own."""

    def __init__(self, first: float = 0.0) -> None:
        self.first = first

    def __call__(self, number: int, frame: Any) -> None:
        self.first = self.first or time.monotonic()
        if time.monotonic() - self.first > ONE_PRESS_S:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """Ctrl-C, which other processes got too and answer to, is waited out."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Patient()
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        if not handler.first and signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, before)
