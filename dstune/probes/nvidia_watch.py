"""Samples for the monitor: the moving facts of GPUs, processes, host and server, cheap enough for once a second for hours.

NVML is read by one child that stays and writes a line a sample: a driver that hangs stops the child, never the screen. What does not
move (name, driver, limits) is read once by `probes.collect`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from dstune.lang import say
from dstune.model import Fact, Gap, from_json, to_json
from dstune.probes.reading import Item

STALE_S = 5.0
"""Seconds without a line after which the child counts as stuck in the driver."""
_MOVING = (
    ("temperature_c", "Temperature", (0,), int),
    ("power_draw_w", "PowerUsage", (), lambda v: round(v / 1000, 1)),
    ("clock_sm_mhz", "ClockInfo", (1,), int),
    ("clock_memory_mhz", "ClockInfo", (2,), int),
    ("performance_state", "PerformanceState", (), int),
    ("fan_pct", "FanSpeed", (), int),
    ("pcie_gen", "CurrPcieLinkGeneration", (), int),
)


class GpuWatch:
    """The child and what it said last. `latest()` never blocks."""

    def __init__(self, interval_s: float = 1.0) -> None:
        import subprocess
        import threading

        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH", "")) if p)
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dstune.probes.nvidia_watch", str(interval_s)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
        )  # fmt: skip
        self._line = b""
        self._at = time.monotonic()
        self._ended = False
        threading.Thread(target=self._pump, name="gpu-watch", daemon=True).start()

    def _pump(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._line, self._at = line, time.monotonic()
        self._ended = True

    def latest(self) -> list[Item]:
        """Facts and gaps of the newest sample; a gap where the driver no longer answers."""
        if not self._line and not self._ended and time.monotonic() - self._at < STALE_S:
            return []
        if self._ended or time.monotonic() - self._at > STALE_S:
            why = (
                say("NVML no longer answers", "NVML 无响应")
                if not self._ended
                else say("NVML could not be read", "无法读取 NVML")
            )
            found: list[Item] = [Gap("gpu", "*", why, "nvidia-smi")]
            return found + ([] if not self._line else _items(self._line, gaps_only=True))
        return _items(self._line)

    def close(self) -> None:
        """Ends the child without waiting for a sick driver."""
        self._child.kill()


def _items(line: bytes, gaps_only: bool = False) -> list[Item]:
    read = [from_json(Fact if kind == "f" else Gap, data) for kind, data in json.loads(line)]
    return [i for i in read if isinstance(i, Gap)] if gaps_only else read


def samples(nvml: Any) -> Iterator[Item]:
    """The moving facts of every card, once."""
    from dstune.probes.nvidia import Card, _memory, _uses
    from dstune.probes.nvidia_processes import Used
    from dstune.probes.nvidia_tables import LOST, RESET_REQUIRED, code_of, reasons

    process = 0
    for index in range(nvml.nvmlDeviceGetCount()):
        subject = f"gpu{index}"
        try:
            card = Card(nvml, nvml.nvmlDeviceGetHandleByIndex(index), subject)
        except Exception as error:
            if code_of(error) in (LOST, RESET_REQUIRED):
                yield Fact(subject, "lost", True, "nvml")
            yield Gap(subject, "*", str(error))
            continue
        name = card.ask("Name")
        card.said["name"] = name.decode() if isinstance(name, bytes) else str(name)
        yield Fact(subject, "name", card.said["name"], "nvml: Name")
        yield from (i for i in _memory(card) if isinstance(i, Fact) and not i.name.startswith("bar1"))
        rates = card.ask("UtilizationRates")
        if not isinstance(rates, Exception):
            yield Fact(subject, "utilization_pct", rates.gpu, "nvml: UtilizationRates")
            yield Fact(subject, "memory_utilization_pct", rates.memory, "nvml: UtilizationRates")
        for fact, what, args, convert in _MOVING:
            value = card.ask(what, *args)
            if not isinstance(value, Exception):
                yield Fact(subject, fact, convert(value), f"nvml: {what}")
        limit = card.ask("EnforcedPowerLimit")
        if not isinstance(limit, Exception):
            yield Fact(subject, "power_limit_w", round(limit / 1000, 1), "nvml: EnforcedPowerLimit")
        mask = card.ask("CurrentClocksEventReasons")
        mask = card.ask("CurrentClocksThrottleReasons") if isinstance(mask, Exception) else mask
        if not isinstance(mask, Exception):
            yield Fact(subject, "clock_event_reasons", reasons(mask), "nvml: CurrentClocksEventReasons")
        yield Fact(subject, "lost", card.lost, "nvml")
        for use in _uses(card):
            if isinstance(use, Used):
                where = f"process{process}"
                process += 1
                yield Fact(where, "pid", use.pid, "nvml")
                yield Fact(where, "gpu", index, "nvml")
                if use.mib is not None:
                    yield Fact(where, "memory_mib", use.mib, "nvml")


class Names:
    """Command lines of processes by pid, read once each; a pid that ends is forgotten."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, str, str]] = {}

    def of(self, pids: list[int]) -> dict[int, tuple[str, str, str]]:
        """pid → (short name, command line, container id or "")."""
        self._known = {p: self._known.get(p) or _described(p) for p in pids}
        return self._known


def _described(pid: int) -> tuple[str, str, str]:
    from dstune.probes.processes import Process
    from dstune.probes.reading import text_of
    from dstune.redact import redact

    process = Process(pid)
    if not process.readable:
        return say("(another namespace)", "（其他命名空间）"), "", ""
    group = text_of(f"/proc/{pid}/cgroup") or ""
    import re

    found = re.search(r"(?:docker|libpod|cri-containerd|containerd)[-/:]([0-9a-f]{12})", group)
    return process.name or str(pid), redact(" ".join(process.argv))[:300], found[1] if found else ""


def main() -> None:
    """One JSON line a sample on stdout, until stdout closes."""
    import pynvml

    interval = float(sys.argv[1])
    pynvml.nvmlInit()
    due = time.monotonic()
    while True:
        items = [["f" if isinstance(i, Fact) else "g", to_json(i)] for i in samples(pynvml)]
        print(json.dumps(items), flush=True)
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
