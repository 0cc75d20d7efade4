"""Load from several processes, for more streams than one can drive. Each has its share of the clients and its own numbers; they start together.

The child reads its task from standard input, says "ready" when its connections stand, begins at the next line, and writes twice a
second what it has seen, at the end all of it.
Stamps of all are comparable: `time.perf_counter` is one clock of the machine.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from dstune.errors import DstuneError
from dstune.lang import say
from dstune.load.client import now
from dstune.load.detect import Server
from dstune.load.run import Live, Options, Raw, collect, judged
from dstune.load.runner import patient
from dstune.model.plan import Trial


def shares(options: Options, workers: int) -> list[Options]:
    """The options of each worker: clients, requests or rate are split as evenly as they go."""
    work = options.workload
    out = []
    for i in range(workers):
        mine = (work.concurrency + workers - 1 - i) // workers
        part = replace(work, concurrency=mine, rate=None if work.rate is None else work.rate / workers)
        requests = None if options.requests is None else (options.requests + workers - 1 - i) // workers
        if (mine or work.rate is not None) and requests != 0:
            out.append(
                replace(
                    options,
                    workload=part,
                    requests=requests,
                    lane=(i, workers),
                    seed=options.seed + 1009 * i,
                    warmup=options.warmup if i == 0 else 0,
                )
            )
    return out


def trial(
    server: Server, options: Options, workers: int, live: Live | None = None, tick: Callable[[Live], None] | None = None, go: Callable[[], None] | None = None
) -> Trial:  # fmt: skip
    """As `run.trial`, from `workers` processes. Raises `DstuneError` when one of them dies."""
    live = live or Live()
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH", "")) if p)}
    children = []
    for part in shares(options, workers):
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dstune.load.workers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
        )
        assert child.stdin is not None
        pickle.dump((server, part), child.stdin)
        child.stdin.flush()
        children.append(child)
    try:
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline() != b"ready\n":
                raise DstuneError(say("a worker of the load test died", "压测子进程已退出"), "", "--workers 1")
        if go is not None:
            go()
        live.started = now()
        for child in children:
            assert child.stdin is not None
            child.stdin.write(b"go\n")
            child.stdin.flush()
        parts = _results(children, live, tick)
    finally:
        for child in children:
            child.kill()
            child.wait()
    return judged(server, options, parts)


def _results(children: Sequence[subprocess.Popen[bytes]], live: Live, tick: Callable[[Live], None] | None) -> list[Raw]:
    """What the children saw; `live` is filled with what they say meanwhile. Ctrl-C reaches the children too: they end their load and
    report, so it is waited for; the third one gives up. Threads read, since a signal in the middle of a read would lose what was read.
    """
    said: queue.SimpleQueue[tuple[int, Live | Raw | None]] = queue.SimpleQueue()
    for i, child in enumerate(children):
        threading.Thread(target=_listen, args=(i, child, said), daemon=True).start()
    parts: dict[int, Raw] = {}
    with patient():
        while len(parts) < len(children):
            who, what = said.get()
            if isinstance(what, Raw):
                parts[who] = what
            elif what is None:
                raise DstuneError(say("a worker of the load test died", "压测子进程已退出"), "", "--workers 1")
            else:
                live.done += what.done
                live.failed += what.failed
                live.first_bytes += what.first_bytes
                if tick is not None:
                    tick(live)
    return [parts[i] for i in range(len(children))]


def _listen(number: int, child: subprocess.Popen[bytes], said: queue.SimpleQueue[tuple[int, Live | Raw | None]]) -> None:
    assert child.stdout is not None
    try:
        while not isinstance(what := pickle.load(child.stdout), Raw):
            said.put((number, what))
    except (EOFError, OSError, ValueError, pickle.UnpicklingError):
        what = None
    said.put((number, what))


def _leave_with_parent() -> None:
    """Waits for the end of standard input, which comes when the parent is gone, however it died: nobody would stop this load then."""
    while os.read(0, 1):
        pass
    os._exit(1)


def main() -> None:
    """One worker."""
    server, options = pickle.load(sys.stdin.buffer)

    def go() -> None:
        sys.stdout.buffer.write(b"ready\n")
        sys.stdout.buffer.flush()
        if not sys.stdin.buffer.readline():
            os._exit(1)
        threading.Thread(target=_leave_with_parent, daemon=True).start()

    told, shown = Live(), 0

    def tick(live: Live) -> None:
        nonlocal shown
        if live.warming:
            return
        _say(Live(done=live.done - told.done, failed=live.failed - told.failed, first_bytes=live.first_bytes[shown:]))
        told.done, told.failed, shown = live.done, live.failed, len(live.first_bytes)

    _say(collect(server, options, tick=tick, go=go))


def _say(what: Live | Raw) -> None:
    pickle.dump(what, sys.stdout.buffer)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
