"""Samples for the monitor: the moving facts of GPUs and their processes, cheap enough for once a second for hours.

NVML is read by one child that stays and writes a line a sample: a driver that hangs stops the child, never the screen. What does not
move (driver, limits of temperature, links) is read once by `probes.collect`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from dstune.lang import current, say
from dstune.model import Fact, Gap
from dstune.probes.reading import Item

STALE_S = 5.0
"""Seconds without a line after which the child counts as stuck in the driver; at a slower pace, two intervals more."""
AGAIN_S = 20.0
"""Seconds after which a child that ended is started anew: the driver may have been reloaded."""
_MOVING = (
    ("temperature_c", "Temperature", (0,), int),
    ("power_draw_w", "PowerUsage", (), lambda v: round(v / 1000, 1)),
    ("power_limit_w", "EnforcedPowerLimit", (), lambda v: round(v / 1000, 1)),
    ("clock_sm_mhz", "ClockInfo", (1,), int),
    ("clock_memory_mhz", "ClockInfo", (2,), int),
    ("performance_state", "PerformanceState", (), int),
    ("fan_pct", "FanSpeed", (), int),
    ("pcie_gen", "CurrPcieLinkGeneration", (), int),
    ("pcie_width", "CurrPcieLinkWidth", (), int),
)


class GpuWatch:
    """The child and what it said last. `latest()` never blocks."""

    def __init__(self, interval_s: float = 1.0) -> None:
        self._interval = interval_s
        self._closed = self._hung = False
        self._start()

    def _start(self) -> None:
        import subprocess
        import threading

        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH", "")) if p)
        self._line, self._ended, self._at = b"", False, time.monotonic()
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dstune.probes.nvidia_watch", str(self._interval), "--lang", current()], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._pump, args=(self._child,), name="gpu-watch", daemon=True).start()

    def _pump(self, child: Any) -> None:
        for line in child.stdout:
            if child is not self._child:
                return
            self._line, self._at, self._hung = line, time.monotonic(), False
        if child is self._child:
            self._ended, self._at = True, time.monotonic()
        child.wait()

    def well(self) -> bool:
        """Whether samples come."""
        return bool(self._line) and not self._line.startswith(OVER) and not self._ended and not self._stuck()

    def _stuck(self) -> bool:
        return time.monotonic() - self._at > STALE_S + 2 * self._interval

    def latest(self) -> list[Item]:
        """Facts and gaps of the newest sample; a gap where the driver no longer answers. A dead child is replaced after a while."""
        if self.well():
            return _items(self._line)
        if self._ended and not self._closed and time.monotonic() - self._at > AGAIN_S:
            self._start()
        if self._stuck() and not self._ended:
            self._child.kill()  # it dies when the call returns; until then no second one is sent after it
            self._hung = True
        if self._hung:
            hint = say("look at `dmesg`; nvidia-smi will hang too", "请查看 `dmesg`；nvidia-smi 也会卡住")
            return [Gap("gpu", "*", say("the NVIDIA driver does not answer", "NVIDIA 驱动无响应"), hint)]
        if not self._ended and not self._line:
            return []
        told: list[Item] = [i for i in _items(self._line) if isinstance(i, Gap)]
        return told or [Gap("gpu", "*", say("NVML could not be read", "无法读取 NVML"), "nvidia-smi")]

    def close(self) -> None:
        """Ends the child without waiting for a sick driver."""
        self._closed = True
        self._child.kill()


def _items(line: bytes) -> list[Item]:
    if not line:
        return []
    data = json.loads(line)
    return [*(Fact(s, n, v, f) for s, n, v, f in data["facts"]), *(Gap(*g) for g in data["gaps"])]


def samples(nvml: Any, turn: int = 0) -> Iterator[Item]:
    """The moving facts of every card, once. `turn` chooses the one card whose PCIe traffic is measured: that takes 40 ms."""
    from dstune.probes.nvidia import Card, _slices, _uses
    from dstune.probes.nvidia_processes import Used
    from dstune.probes.nvidia_tables import LOST, RESET_REQUIRED, code_of
    from dstune.probes.reading import numbered

    process, count = 0, nvml.nvmlDeviceGetCount()
    for index in range(count):
        subject = f"gpu{index}"
        try:
            card = Card(nvml, nvml.nvmlDeviceGetHandleByIndex(index), subject)
        except Exception as error:
            if code_of(error) in (LOST, RESET_REQUIRED):
                yield Fact(subject, "lost", True, "nvml")
            yield Gap(subject, "*", str(error))
            continue
        yield from _moving(card)
        if index == turn % count:
            for fact, counter in (("pcie_tx_mib_s", 0), ("pcie_rx_mib_s", 1)):
                value = card.ask("PcieThroughput", counter)
                if not isinstance(value, Exception):
                    yield Fact(subject, fact, round(value / 1024, 1), "nvml: PcieThroughput")
        mig = card.ask("MigMode")
        if not isinstance(mig, Exception) and mig[0]:
            yield Fact(subject, "mig", True, "nvml: MigMode")
            yield from (i for i in _slices(card) if isinstance(i, Fact))
        for use in _uses(card):
            if isinstance(use, Used):
                where = numbered("process", process)
                process += 1
                yield Fact(where, "pid", use.pid, "nvml")
                yield Fact(where, "gpu", index, "nvml")
                if use.mib is not None:
                    yield Fact(where, "memory_mib", use.mib, "nvml")
                if use.instance is not None:
                    yield Fact(where, "mig_instance", use.instance, "nvml")
        yield Fact(subject, "lost", card.lost, "nvml")


def _moving(card: Any) -> Iterator[Item]:
    from dstune.probes.nvidia import _memory
    from dstune.probes.nvidia_tables import reasons

    name = card.ask("Name")
    if isinstance(name, Exception):
        yield Gap(card.subject, "name", str(name))
    else:
        card.said["name"] = name.decode() if isinstance(name, bytes) else str(name)
        yield Fact(card.subject, "name", card.said["name"], "nvml: Name")
    yield from (i for i in _memory(card) if isinstance(i, Fact) and not i.name.startswith("bar1"))
    rates = card.ask("UtilizationRates")
    if not isinstance(rates, Exception):
        yield Fact(card.subject, "utilization_pct", rates.gpu, "nvml: UtilizationRates")
        yield Fact(card.subject, "memory_utilization_pct", rates.memory, "nvml: UtilizationRates")
    for fact, what, args, convert in _MOVING:
        value = card.ask(what, *args)
        if not isinstance(value, Exception):
            yield Fact(card.subject, fact, convert(value), f"nvml: {what}")
    field = getattr(card.nvml, "NVML_FI_DEV_MEMORY_TEMP", None)
    fields = card.ask("FieldValues", [field]) if field is not None else AttributeError("FieldValues")
    if not isinstance(fields, Exception) and not fields[0].nvmlReturn:
        yield Fact(card.subject, "temperature_memory_c", int(fields[0].value.uiVal), "nvml: FieldValues")
    mask = card.ask("CurrentClocksEventReasons")
    mask = card.ask("CurrentClocksThrottleReasons") if isinstance(mask, Exception) else mask
    if not isinstance(mask, Exception):
        yield Fact(card.subject, "clock_event_reasons", reasons(mask), "nvml: CurrentClocksEventReasons")
        yield Fact(card.subject, "idle", bool(mask & 1), "nvml: CurrentClocksEventReasons")


class Names:
    """Command lines, containers and engines of processes by pid, read once each; a pid that ends is forgotten."""

    def __init__(self) -> None:
        self._known: dict[int, dict[str, Any]] = {}
        self._containers: dict[str, str] = {}

    def of(self, pids: list[int]) -> dict[int, dict[str, Any]]:
        """pid → facts of `process`: name, command, and where known container, engine, ours."""
        self._known = {p: self._known.get(p) or self._described(p) for p in pids}
        return self._known

    def _described(self, pid: int) -> dict[str, Any]:
        import re

        from dstune.probes.nvidia_processes import own_pid_namespace
        from dstune.probes.processes import Process, engine_of_process
        from dstune.probes.reading import text_of
        from dstune.redact import redact

        process = Process(pid)
        if not process.readable or (own_pid_namespace() and holds_gpu(pid) is False):
            return {"name": say("(outside this PID namespace)", "（在本 PID 命名空间之外）")}
        found: dict[str, Any] = {"name": process.name or str(pid)}
        if process.argv:
            found["command"] = redact(" ".join(process.argv))[:300]
        group = text_of(f"/proc/{pid}/cgroup") or ""
        if match := re.search(r"(?:docker|libpod|cri-containerd|containerd|crio)[-/:]([0-9a-f]{12})[0-9a-f]*", group):
            found["container"] = self._container(match[1])
        if engine := engine_of_process(process):
            found |= {"engine": engine, "ours": process.uid == os.getuid()}
        return found

    def _container(self, ident: str) -> str:
        """Its name, as `docker ps` or `podman ps` knows it; else the id."""
        from dstune.probes.reading import run

        if ident not in self._containers:
            for program in ("docker", "podman"):
                for line in (run([program, "ps", "--format", "{{.ID}} {{.Names}}"]) or "").splitlines():
                    key, _, name = line.partition(" ")
                    self._containers[key[:12]] = name
            self._containers.setdefault(ident, ident)
        return self._containers[ident]


def holds_gpu(pid: int, root: str = "/") -> bool | None:
    """Whether a process has an NVIDIA device open; None where that cannot be seen.

    Inside a container NVML may list pids of the host, and the same number here can be a quite different process.
    """
    if not os.path.exists(os.path.join(root, "dev/nvidiactl")) and not os.path.exists(os.path.join(root, "dev/dxg")):
        return None
    folder = os.path.join(root, f"proc/{pid}/fd")
    try:
        handles = os.listdir(folder)
    except OSError:
        return None
    for handle in handles:
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/{handle}").startswith(("/dev/nvidia", "/dev/dxg")):
                return True
    return False


OVER = b'{"over": true'
"""How a line begins after which the child ends."""


def _said(items: list[Item], over: bool = False) -> str:
    facts = [[i.subject, i.name, i.value, i.source] for i in items if isinstance(i, Fact)]
    return json.dumps(
        {
            **({"over": True} if over else {}),
            "facts": facts,
            "gaps": [[i.subject, i.name, i.reason, i.hint] for i in items if isinstance(i, Gap)],
        }
    )


def main() -> None:
    """One JSON line a sample on stdout, until stdout closes. An NVML that does not start or goes away is said, then this ends."""
    import pynvml

    from dstune.probes.nvidia_system import init_failed
    from dstune.probes.nvidia_tables import code_of

    interval = float(sys.argv[1])
    try:
        pynvml.nvmlInit()
    except Exception as error:
        print(_said(list(init_failed(code_of(error), str(error))), over=True), flush=True)
        return
    due, turn, traffic = time.monotonic(), 0, dict[tuple[str, str], Item]()
    while True:
        try:
            items = list(samples(pynvml, turn))
            traffic |= {(i.subject, i.name): i for i in items if i.name.startswith("pcie_") and i.name.endswith("_mib_s")}
            items = list({**traffic, **{(i.subject, i.name): i for i in items}}.values())
        except Exception as error:
            print(_said([Gap("gpu", "*", f"NVML: {error}", "nvidia-smi")], over=True), flush=True)
            return
        try:
            print(_said(items), flush=True)
        except BrokenPipeError:
            os._exit(0)  # the monitor is gone
        turn += 1
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
