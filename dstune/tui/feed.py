"""Where the monitor's evidence comes from: this machine, a recording, or a list. To the screens they are the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from dstune.lang import say
from dstune.model import Evidence, Fact, Gap, Value, family_of
from dstune.probes.reading import numbered

STILL_S = 30.0
"""Seconds between two readings of what hardly moves (containers, disks, new servers): 40 ms of CPU."""
CARDS_EVERY = 10
"""Such readings between two of the cards' fixed properties and error counters: 0.25 s of CPU in a child."""
_READINGS = ("memory_used_mib", "utilization_pct", "memory_utilization_pct", "temperature_c", "power_draw_w", "clock_sm_mhz", "clock_memory_mhz",
             "performance_state", "fan_pct", "pcie_gen", "pcie_width", "pcie_rx_mib_s", "pcie_tx_mib_s", "clock_event_reasons")  # fmt: skip
"""What the watch reads of a card. While the driver does not answer, what the slow reading had of these is no reading of now."""
_MOVES = ("bar1_used_mib", "clock_graphics_mhz", "processes", "memory_used_by_servers_mib", "memory_used_by_others_mib", "memory_unattributed_mib",
          "memory_used_pct", "temperature_memory_c", "memory_free_mib", "idle")  # fmt: skip
"""What the slow reading knows of a card at its moment only; minutes later it would be untrue."""


class Feed(Protocol):
    """Gives one sample after the other; `sample` may block and is called on one thread only."""

    @property
    def live(self) -> bool:
        """Whether it goes on for ever."""
        ...

    @property
    def place(self) -> str:
        """Where the samples come from, in a word."""
        ...

    def sample(self) -> Evidence | None:
        """The next evidence, None at the end of a recording."""
        ...

    def close(self) -> None:
        """Ends what the feed started; a `sample` that waits returns."""
        ...


class LiveFeed:
    """This machine, and servers by URL; without one, the servers found by their processes."""

    live = True

    def __init__(self, urls: Sequence[str] = (), interval_s: float = 1.0) -> None:
        from dstune.probes.host_watch import HostWatch
        from dstune.probes.nvidia_watch import GpuWatch, Names
        from dstune.probes.server_watch import ServerWatch

        self._interval = interval_s
        self._gpus, self._host, self._names = GpuWatch(interval_s), HostWatch(), Names()
        self._asked = bool(urls)
        self._servers = {url: ServerWatch(url, numbered("server", i)) for i, url in enumerate(urls)}
        self._still = Evidence()
        self._serving: dict[int, tuple[tuple[str, Value], ...]] = {}
        self._read_at = -STILL_S
        self._readings = 0
        self._quick = True
        self._due = time.monotonic()
        self._closed = threading.Event()

    @property
    def place(self) -> str:
        """`live, 1 s`, in the language of now."""
        return say(f"live, {self._interval:g} s", f"实时，{self._interval:g} 秒")

    def sample(self) -> Evidence | None:
        """Waits for its time, then takes what the watches have. The first one comes at once, without what takes long to read."""
        self._closed.wait(max(0.0, self._due - time.monotonic()))
        self._due = max(self._due + self._interval, time.monotonic())
        if self._quick:
            self._quick, self._due = False, time.monotonic() + min(0.4, self._interval)
        elif time.monotonic() - self._read_at >= STILL_S:
            self._read_still()
        moving = self._gpus.latest()
        facts = [i for i in moving if isinstance(i, Fact)]
        gaps = [i for i in moving if isinstance(i, Gap)]
        fresh = any(f.subject.startswith("gpu") for f in facts)
        if fresh:
            facts += self._processes(facts)
            if self._read_at > 0:  # not on the first sample: reading programs needs the readers
                from dstune.serving import known

                facts += known(Evidence(tuple(facts)), self._serving)
            facts += shares(facts)
        facts += self._host.sample()
        for watch in self._servers.values():
            found = watch.latest()
            facts += found.facts
            gaps += found.gaps
        taken = {(f.subject, f.name) for f in facts}
        silent = any(g.subject == "gpu" and g.name == "*" for g in moving if isinstance(g, Gap))
        still = [
            f
            for f in self._still.facts
            if (f.subject, f.name) not in taken and not ((fresh or silent) and _stale(f)) and not (silent and _reading(f))
        ]
        kept = [g for g in self._still.gaps if not (fresh and g.subject.startswith(("gpu", "process")))]
        return Evidence((*facts, *still), (*gaps, *kept), (), {"started": round(time.time(), 3)})

    def _read_still(self) -> None:
        from dstune.probes import collect
        from dstune.probes.server_watch import ServerWatch

        names = (
            ["nvidia", "host", "container"]
            if self._readings % CARDS_EVERY == 0 or not self._gpus.well()
            else ["host", "container"]
        )
        self._readings += 1
        found = collect([*names, *([] if self._asked else ["server"])], cache=False, deadline_s=4)
        if "nvidia" not in names:  # the card's fixed properties were read before; asking again costs a child with pynvml
            kept = [f for f in self._still.facts if f.subject.startswith(("gpu", "driver", "cuda_toolkit"))]
            found = found.plus(kept, [g for g in self._still.gaps if g.subject.startswith(("gpu", "driver"))])
        self._still, self._read_at = found, time.monotonic()
        if self._asked:
            return
        seen = {}
        for engine in found.find("server", "engine"):
            port = next((f.value for f in found.facts if f.subject == engine.subject and f.name == "port"), None)
            if port and engine.value not in ("streamlit",):
                seen[f"http://127.0.0.1:{port}"] = engine.subject
        for url in [u for u, w in self._servers.items() if seen.get(u) != w.subject]:
            self._servers.pop(url).close()
        for url, subject in seen.items():
            if url not in self._servers:
                self._servers[url] = ServerWatch(url, subject)

    def _processes(self, facts: Sequence[Fact]) -> list[Fact]:
        pids = {f.subject: int(f.value) for f in facts if f.name == "pid" and isinstance(f.value, int)}
        known = self._names.of(list(pids.values()))
        return [Fact(subject, name, value, "/proc") for subject, pid in pids.items() for name, value in known[pid].items()]

    def close(self) -> None:
        """Ends the watches."""
        self._closed.set()
        self._gpus.close()
        for watch in self._servers.values():
            watch.close()


def _stale(fact: Fact) -> bool:
    family = family_of(fact.subject)
    return family == "process" or (family == "gpu" and fact.name in _MOVES)


def _reading(fact: Fact) -> bool:
    return family_of(fact.subject) == "gpu" and fact.name in _READINGS


def shares(facts: Sequence[Fact]) -> list[Fact]:
    """Who holds each card's memory, out of its processes: the sums that `probes.nvidia_processes` makes for one reading."""
    from dstune.probes.nvidia_processes import own_pid_namespace

    own: dict[str, dict[str, Value]] = {}
    for f in facts:
        own.setdefault(f.subject, {}).setdefault(f.name, f.value)
    found = []
    for subject, card in own.items():
        used = card.get("memory_used_mib")
        if family_of(subject) != "gpu" or not isinstance(used, int | float):
            continue
        index = int(subject[3:] or 0)
        listed = [p for s, p in own.items() if family_of(s) == "process" and p.get("gpu") == index]
        sizes = [(float(m), p) for p in listed if isinstance(m := p.get("memory_mib"), int | float)]
        servers = sum(m for m, p in sizes if p.get("ours"))
        others = sum(m for m, p in sizes if not p.get("ours"))
        found.append(Fact(subject, "processes", len(listed), "nvml: RunningProcesses"))
        if len(sizes) < len(listed):
            continue  # a driver that tells no sizes (WSL, Windows)
        rest = max(0.0, used - servers - others)
        found.append(Fact(subject, "memory_used_by_servers_mib", servers, "nvml: RunningProcesses, /proc"))
        found.append(Fact(subject, "memory_unattributed_mib", rest, "nvml: MemoryInfo − RunningProcesses"))
        if all("command" in p for p in listed) and (rest <= 64 or not own_pid_namespace()):
            found.append(Fact(subject, "memory_used_by_others_mib", others, "nvml: RunningProcesses, /proc"))
    return found


class CannedFeed:
    """Samples out of a list, for tests and screenshots."""

    live = False
    place = ""

    def __init__(self, samples: Iterable[Evidence]) -> None:
        self._samples = iter(samples)

    def sample(self) -> Evidence | None:
        """The next one."""
        return next(self._samples, None)

    def close(self) -> None:
        """Nothing to end."""
