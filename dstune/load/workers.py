"""Load from several processes, for more streams than one can drive. Each has its share of the clients and its own numbers; they start together.

The child reads its task from standard input, says "ready" when its connections stand, begins at the next line, and writes what it saw.
Stamps of all are comparable: `time.perf_counter` is one clock of the machine.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

from dstune.errors import DstuneError
from dstune.lang import say
from dstune.load.client import now
from dstune.load.detect import Server
from dstune.load.run import Live, Options, Raw, collect, judged
from dstune.model import Trial


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
        parts = [_result(child, live, tick) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    return judged(server, options, parts)


def _result(child: subprocess.Popen[bytes], live: Live, tick: Callable[[Live], None] | None) -> Raw:
    """What a child saw. Ctrl-C reaches the children too: they end their load and report, so it is waited for once more."""
    assert child.stdout is not None
    for _ in range(2):
        try:
            found = pickle.load(child.stdout)
            break
        except KeyboardInterrupt:
            continue
        except (EOFError, pickle.UnpicklingError):
            raise DstuneError(say("a worker of the load test died", "压测子进程已退出"), "", "--workers 1") from None
    else:
        raise KeyboardInterrupt
    assert isinstance(found, Raw)
    live.done += len(found.replies)
    live.failed += sum(not r.ok for r in found.replies)
    if tick is not None:
        tick(live)
    return found


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

    found = collect(server, options, go=go)
    pickle.dump(found, sys.stdout.buffer)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
