"""GPUs beside a load: a child samples NVML ten times a second into memory and hands all of it over at the end.

The load client is not woken for it, and a driver that hangs costs the timeline, never the load. Times are `time.perf_counter`, one
clock for all processes of the machine.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any

HZ = 10.0
COLUMNS = ("at", "utilization_pct", "memory_used_mib", "power_draw_w", "clock_sm_mhz", "temperature_c", "reasons")
"""A row of a card. None where the card does not say; `reasons` are names of clock event reasons."""


class Timeline:
    """The child. `rows()` ends it: {"gpu0": {"name", "rows"}}; {} where there is no NVIDIA GPU or the driver does not answer."""

    def __init__(self, hz: float = HZ) -> None:
        import ctypes
        import subprocess

        self._child: Any = None
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH", "")) if p)
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dstune.probes.nvidia_timeline", str(hz)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
        )  # fmt: skip

    def rows(self) -> dict[str, dict[str, Any]]:
        """What was sampled so far; the child is gone afterwards."""
        import subprocess

        if self._child is None:
            return {}
        child, self._child = self._child, None
        try:
            out, _ = child.communicate(timeout=3)
            return dict(json.loads(out))
        except (subprocess.TimeoutExpired, ValueError):
            child.kill()
            return {}


def summary(cards: dict[str, dict[str, Any]], begin: float, end: float, rows: int = 600) -> list[dict[str, Any]]:
    """Per card, over the samples of [begin, end]: mean, low and high of each column, the share of time per clock event reason, the
    share of samples without any work (`idle_pct`), and the rows themselves (thinned to `rows`), seconds counted from `begin`."""
    out = []
    for subject, card in cards.items():
        inside = [r for r in card["rows"] if begin <= r[0] <= end]
        if not inside:
            continue
        found: dict[str, Any] = {"gpu": subject, "name": card["name"], "samples": len(inside)}
        for place, name in enumerate(COLUMNS[1:-1], 1):
            values = [r[place] for r in inside if r[place] is not None]
            if values:
                found[name] = {"mean": round(sum(values) / len(values), 1), "min": min(values), "max": max(values)}
        used = [r[1] for r in inside if r[1] is not None]
        if used:
            found["idle_pct"] = round(100 * sum(u == 0 for u in used) / len(used), 1)
        names = sorted({n for r in inside for n in r[-1]})
        found["reasons_pct"] = {n: round(100 * sum(n in r[-1] for r in inside) / len(inside), 1) for n in names}
        every = max(1, -(-len(inside) // rows))
        found["columns"] = list(COLUMNS)
        found["rows"] = [[round(r[0] - begin, 2), *r[1:]] for r in inside[::every]]
        out.append(found)
    return out


def _row(nvml: Any, handle: Any) -> list[Any]:
    from dstune.probes.nvidia_tables import reasons

    def ask(name: str, *args: int) -> Any:
        try:
            return getattr(nvml, f"nvmlDeviceGet{name}")(handle, *args)
        except Exception:  # not supported here, or lost: a hole in the row
            return None

    used, memory, power = ask("UtilizationRates"), ask("MemoryInfo"), ask("PowerUsage")
    mask = ask("CurrentClocksEventReasons") if hasattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons") else None
    mask = ask("CurrentClocksThrottleReasons") if mask is None else mask
    return [
        time.perf_counter(), None if used is None else used.gpu, None if memory is None else memory.used >> 20,
        None if power is None else round(power / 1000, 1), ask("ClockInfo", 1), ask("Temperature", 0), reasons(mask) if mask else [],
    ]  # fmt: skip


def main() -> None:
    """Samples until standard input closes, then one JSON object."""
    import pynvml

    step = 1 / float(sys.argv[1])
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    cards: list[dict[str, Any]] = []
    for handle in handles:
        name = pynvml.nvmlDeviceGetName(handle)
        cards.append({"name": name.decode() if isinstance(name, bytes) else name, "rows": []})
    due = time.perf_counter()
    while True:
        for handle, card in zip(handles, cards, strict=True):
            card["rows"].append(_row(pynvml, handle))
        due = max(due + step, time.perf_counter())
        if select.select([sys.stdin], [], [], max(0.0, due - time.perf_counter()))[0]:
            break
    print(json.dumps({f"gpu{i}": card for i, card in enumerate(cards)}))


if __name__ == "__main__":
    main()
