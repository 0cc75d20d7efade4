"""What the monitor costs while it is left open: eight cards and thirty processes on the stand-in NVML library, a server with metrics, 1 Hz.

    python benchmarks/monitor_soak.py --seconds 3600 [--nvitop PATH] [-o soak.json]

Runs `dstune monitor` in a terminal of its own (and nvitop beside it, on the same library), reads /proc of each and of its children every
ten seconds, and prints CPU until the first paint, CPU share of one core after the first half minute, and memory at both ends. Needs gcc.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TICK = os.sysconf("SC_CLK_TCK")
SETTLED_S = 30.0


class Watched:
    """A program in a terminal of 100x30, drained so that it never waits for its screen."""

    def __init__(self, name: str, argv: list[str], env: dict[str, str], painted: bytes) -> None:
        self.name, self.painted = name, painted
        self.first_paint_cpu_s: float | None = None
        self.rows: list[tuple[float, float, float, float]] = []
        self.pid, self.handle = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, env)
        fcntl.ioctl(self.handle, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.started = time.monotonic()
        self._seen = b""

    def drain(self) -> None:
        """Reads what was drawn; notes the CPU spent when the first picture is there."""
        while select.select([self.handle], [], [], 0)[0]:
            try:
                data = os.read(self.handle, 65536)
            except OSError:
                return
            if self.first_paint_cpu_s is None:
                self._seen += data
                if self.painted in self._seen:
                    self.first_paint_cpu_s = self.usage()[0]
                    self._seen = b""

    def usage(self) -> tuple[float, float, float]:
        """CPU seconds of the process and its children (ended ones too), MiB of itself, MiB of all."""
        cpu = own = total = 0.0
        for pid in [self.pid, *children(self.pid)]:
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                cpu += sum(int(n) for n in stat[11:15]) / TICK
                status = Path(f"/proc/{pid}/status").read_text()
                size = next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0.0)
                own, total = own + size * (pid == self.pid), total + size
        return cpu, own, total

    def note(self) -> None:
        """One row: seconds, CPU so far, MiB of the process, MiB with its children."""
        self.rows.append((time.monotonic() - self.started, *self.usage()))

    def figures(self) -> dict[str, Any]:
        """The summary."""
        settled = [r for r in self.rows if r[0] >= SETTLED_S] or self.rows
        first, last = settled[0], settled[-1]
        return {
            "first_paint_cpu_s": self.first_paint_cpu_s,
            "seconds": round(last[0], 1),
            "cpu_pct_of_one_core": round(100 * (last[1] - first[1]) / max(1e-9, last[0] - first[0]), 2),
            "rss_mib": {"settled": round(first[2], 1), "end": round(last[2], 1), "highest": round(max(r[2] for r in settled), 1)},
            "rss_with_children_mib": {
                "settled": round(first[3], 1), "end": round(last[3], 1), "highest": round(max(r[3] for r in settled), 1),
            },
        }  # fmt: skip

    def leave(self) -> int:
        """kill -TERM; the exit status."""
        os.kill(self.pid, signal.SIGTERM)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            self.drain()
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.kill(self.pid, signal.SIGKILL)
        return -9


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(stat[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        todo += (under := parents.get(todo.pop(), []))
        found += under
    return found


def main() -> int:
    """Runs and prints the figures; 1 above the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--nvitop", help="the nvitop program to run beside it")
    parser.add_argument("-o", "--out")
    parser.add_argument("--cpu-pct", type=float, default=3.0)
    parser.add_argument("--rss-mib", type=float, default=80.0)
    parser.add_argument("--paint-s", type=float, default=0.6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "libnvidia-ml.so.1")
        source = ROOT / "tests" / "fakenvml" / "fakenvml.c"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, source], check=True)
        helpers = [subprocess.Popen(["sleep", "1000000"]) for _ in range(30)]
        text = (ROOT / "tests" / "fakenvml" / "eight-h100.ini").read_text()
        for number, helper in enumerate(helpers, 900001):
            text = text.replace(f"pid = {number}\n", f"pid = {helper.pid}\n")
        snapshot = os.path.join(folder, "eight.ini")
        Path(snapshot).write_text(text)
        metrics = ROOT / "tests" / "evidence" / "metrics" / "vllm-0.32-loaded.prom"
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.mock", "--metrics", str(metrics)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        port = server.stdout.readline().split()[1]
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": folder,
            "FAKENVML": snapshot,
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
        }
        argv = [sys.executable, "-m", "dstune", "--lang", "en", "monitor", f"http://127.0.0.1:{port}"]
        warm = subprocess.run(
            [sys.executable, "-m", "dstune", "doctor", "--no-host"], capture_output=True, cwd=ROOT, input=b"", env=env
        )
        del warm  # the caches of the recipes are there, as at every start but the first
        runs = [Watched("dstune monitor", argv, env, b"Overview")]
        if given.nvitop:
            runs.append(Watched("nvitop", [given.nvitop, "-m", "full"], env, b"Driver Version"))
        end, due = time.monotonic() + given.seconds, time.monotonic() + 10
        while time.monotonic() < end:
            time.sleep(0.05 if time.monotonic() - runs[0].started < 5 else 0.5)
            for run in runs:
                run.drain()
            if time.monotonic() >= due:
                due += 10
                for run in runs:
                    run.note()
        found = {run.name: run.figures() for run in runs}
        for run in runs:
            found[run.name]["exit_after_term"] = run.leave()
        for helper in (*helpers, server):
            helper.kill()
    text = json.dumps(found, indent=1)
    print(text)
    if given.out:
        Path(given.out).write_text(text + "\n")
    own = found["dstune monitor"]
    bad = (
        own["cpu_pct_of_one_core"] > given.cpu_pct
        or own["rss_mib"]["highest"] > given.rss_mib
        or (own["first_paint_cpu_s"] or 9) > given.paint_s
    )
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
