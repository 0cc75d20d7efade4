"""A program that was started here, with all that it started: its processes, the ports they listen on, the memory they hold.

/proc alone. A process belongs when it is in the session of the first one or descends from it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable

from dstune.probes.processes import Process
from dstune.probes.reading import listing, text_of

STEP_S = 0.25
"""Seconds between two looks at the memory: a scan of 300 processes costs about 5 ms."""
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def members(first: int, root: str = "/") -> list[int]:
    """The processes of the tree that are alive (zombies are not), by pid."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in listing(os.path.join(root, "proc")):
        if not entry.isdigit():
            continue
        stat = (text_of(os.path.join(root, "proc", entry, "stat"), 4096) or "").rpartition(")")[2].split()
        if len(stat) < 4 or stat[0] in "ZX":
            continue
        pid = int(entry)
        parents[pid] = int(stat[1])
        if pid == first or int(stat[3]) == first:
            found.add(pid)
    grown = True
    while grown:
        more = {p for p, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return sorted(found)


def ports(pids: Iterable[int]) -> list[int]:
    """TCP ports that these processes listen on."""
    return sorted({port for pid in pids for _, port in Process(pid).ports()})


def owner(port: int) -> int | None:
    """The process of this machine that listens on a port; of several the one that the others descend from. None where it is not ours to see."""
    holders = [int(e) for e in listing("/proc") if e.isdigit() and port in ports([int(e)])]
    return min(holders, default=None)


def resident_mib(pids: Iterable[int]) -> float:
    """Resident memory in MiB. Pages that several of them share are counted for each."""
    pages = 0
    for pid in pids:
        words = (text_of(f"/proc/{pid}/statm", 256) or "").split()
        pages += int(words[1]) if len(words) > 1 else 0
    return pages * _PAGE / 2**20


_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def busy_s() -> float | None:
    """Seconds of processor time that all programs of this machine have used, over all cores. None where /proc/stat is not to be read."""
    words = (text_of("/proc/stat", 4096) or "").split("\n", 1)[0].split()
    if len(words) < 9 or words[0] != "cpu":
        return None
    user, nice, system, _, _, irq, soft, steal = (int(w) for w in words[1:9])
    return (user + nice + system + irq + soft + steal) / _TICK


def used_s(pids: Iterable[int]) -> float:
    """Seconds of processor time that these processes, and their children that ended, have used."""
    ticks = 0
    for pid in pids:
        words = (text_of(f"/proc/{pid}/stat", 4096) or "").rpartition(")")[2].split()
        ticks += sum(int(w) for w in words[11:15])
    return ticks / _TICK


class Watch:
    """Highest memory of a tree while it runs, looked at by a thread. `gpu` gives MiB on the cards for pids, None where nothing is known."""

    def __init__(self, first: int, gpu: Callable[[list[int]], float | None] = lambda pids: None) -> None:
        self._first, self._gpu = first, gpu
        self._over = threading.Event()
        self._rss = self._card = 0.0
        self._known = False
        self.pids: list[int] = []
        self._mark = self._clocks()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """The peaks count from now."""
        self._rss = self._card = 0.0
        self._look()
        self._mark = self._clocks()

    def peaks(self) -> dict[str, float]:
        """`rss_mib`, and `gpu_mib` where it is known, since `begin`."""
        self._look()
        out = {"rss_mib": round(self._rss, 1)} if self._rss else {}
        return out | ({"gpu_mib": round(self._card, 1)} if self._known else {})

    def others(self) -> float | None:
        """How many cores other programs than the tree and this one kept busy since `begin`, as a mean. None where it is not known."""
        (at, busy, mine), (at0, busy0, mine0) = self._clocks(), self._mark
        if busy is None or busy0 is None or at - at0 < 0.5:
            return None
        return max(0.0, round(((busy - busy0) - (mine - mine0)) / (at - at0), 2))

    def _clocks(self) -> tuple[float, float | None, float]:
        return time.monotonic(), busy_s(), used_s([*self.pids, os.getpid()])

    def end(self) -> None:
        """No more looks."""
        self._over.set()
        self._thread.join(2)

    def _look(self) -> None:
        self.pids = members(self._first)
        self._rss = max(self._rss, resident_mib(self.pids))
        card = self._gpu(self.pids)
        if card is not None:
            self._known, self._card = True, max(self._card, card)

    def _run(self) -> None:
        while not self._over.wait(STEP_S):
            self._look()


def alive(pids: Iterable[int]) -> list[int]:
    """Which of these processes still run: a zombie does not."""
    stats = {pid: (text_of(f"/proc/{pid}/stat", 4096) or "").rpartition(")")[2].split() for pid in pids}
    return [pid for pid, words in stats.items() if words and words[0] not in "ZX"]
