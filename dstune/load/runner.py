"""The event loop of a load, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any


def run(main: Any) -> Any:
    """`asyncio.run` on uvloop where it is installed (a third of the CPU per chunk).

    Where somebody unwinds on SIGTERM or SIGHUP the load is cancelled and `SystemExit` raised after it: uvloop drops an exception that a
    signal raises inside a protocol's callback.
    """
    main_thread = threading.current_thread() is threading.main_thread()  # no other may set handlers
    before = {n: h for n in (signal.SIGTERM, signal.SIGHUP) if main_thread and callable(h := signal.getsignal(n))}
    told: list[int] = []

    async def until_told() -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(number: int) -> None:
            told.append(number)
            task.cancel()

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
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if told:
        raise SystemExit(128 + told[0])
    return found
