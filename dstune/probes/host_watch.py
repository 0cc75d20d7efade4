"""Processor, memory and load of this machine once a second, straight out of /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator

from dstune.model import Fact
from dstune.probes.reading import text_of


class HostWatch:
    """Shares between two samples; the first sample has no processor share."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def sample(self) -> Iterator[Fact]:
        """host.cpu_pct (of all cores), ram_total_mib, ram_available_mib, swap_used_mib, load_1m."""
        stat = text_of("/proc/stat") or ""
        first = stat.split("\n", 1)[0].split()
        if first[:1] == ["cpu"]:
            ticks = [int(t) for t in first[1:9]]
            now = sum(ticks), ticks[3] + ticks[4]
            if self._before and now[0] > self._before[0]:
                share = 1 - (now[1] - self._before[1]) / (now[0] - self._before[0])
                yield Fact("host", "cpu_pct", round(100 * max(0.0, share), 1), "/proc/stat")
            self._before = now
        memory = dict(_kib(line) for line in (text_of("/proc/meminfo") or "").splitlines() if ":" in line)
        if total := memory.get("MemTotal"):
            yield Fact("host", "ram_total_mib", total // 1024, "/proc/meminfo")
            yield Fact("host", "ram_available_mib", memory.get("MemAvailable", 0) // 1024, "/proc/meminfo")
            yield Fact(
                "host", "swap_used_mib", (memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)) // 1024, "/proc/meminfo"
            )
        try:
            yield Fact("host", "load_1m", round(os.getloadavg()[0], 2), "getloadavg")
        except OSError:
            return


def _kib(line: str) -> tuple[str, int]:
    name, _, rest = line.partition(":")
    return name, int(rest.split()[0]) if rest.split() else 0
