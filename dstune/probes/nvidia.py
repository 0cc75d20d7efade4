"""GPUs through NVML: the one door to pynvml.

`read()` yields facts and gaps in this process; `probe()` runs it in a child, since a call into a sick driver may never
return and cannot be interrupted: the child is left behind and what it had said so far counts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from dstune.lang import current, say
from dstune.model import Fact, Gap, from_json, to_json
from dstune.probes import kernel_log, nvidia_system
from dstune.probes.nvidia_processes import Used, shares
from dstune.probes.nvidia_tables import (
    FUNCTION_NOT_FOUND,
    LOST,
    NO_INSTANCE,
    NOT_SUPPORTED,
    READINGS,
    RESET_REQUIRED,
    Convert,
    code_of,
    gap,
    reasons,
)
from dstune.probes.reading import Item, Options, mib, timed_out
from dstune.redact import hashed


def probe(options: Options) -> Iterator[Item]:
    """GPUs, driver and GPU processes, bounded by the deadline."""
    yield from nvidia_system.read(options)
    if not _library_found():
        yield from nvidia_system.without_library(options)
        return
    cards: dict[str, str] = {}
    lost: list[str] = []
    for item in _in_child(options.deadline_s):
        if isinstance(item, Fact) and item.name == "pci_bus_id":
            cards[item.subject] = str(item.value)
        if isinstance(item, Fact) and item.name == "lost" and item.value:
            lost.append(item.subject)
        yield item
    yield from kernel_log.gpu_errors(kernel_log.read(options), cards, lost)


def _library_found() -> bool:
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _in_child(deadline_s: float) -> Iterator[Item]:
    import queue
    import subprocess
    import threading
    import time

    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH", "")) if p)
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "dstune.probes.nvidia", "--lang", current()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    lines: queue.Queue[bytes | None] = queue.Queue()

    def pump() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    end = time.monotonic() + max(0.5, deadline_s - 0.3)
    seen: str = "gpu"
    while True:
        try:
            line = lines.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            child.kill()  # without waiting: a process inside a sick driver does not die before the call returns
            yield timed_out(seen, deadline_s)
            return
        if line is None:
            break
        kind, data = json.loads(line)
        item: Item = from_json(Fact if kind == "fact" else Gap, data)
        seen = item.subject if item.subject.startswith("gpu") else seen
        yield item
    if child.wait():
        why = say(f"reading NVML ended with status {child.returncode}", f"读取 NVML 的进程以状态 {child.returncode} 结束")
        yield Gap(seen, "*", why, say("compare with `nvidia-smi -q`", "请与 `nvidia-smi -q` 对照"))


class Card:
    """One device handle; every question is a fact or a gap, and a lost card ends the reading."""

    def __init__(self, nvml: Any, handle: Any, subject: str) -> None:
        self.nvml, self.handle, self.subject = nvml, handle, subject
        self.lost = False
        self.said: dict[str, Any] = {}

    def ask(self, what: str, *args: Any, of: Any = None) -> Any:
        """Result of nvmlDeviceGet<what>, or the error it raised (NVML's, or the ones pynvml makes of a missing symbol)."""
        try:
            function = getattr(self.nvml, f"nvmlDeviceGet{what}")
            return function(self.handle if of is None else of, *args)
        except Exception as error:
            if code_of(error) in (LOST, RESET_REQUIRED):
                self.lost = True
            return error

    def item(self, name: str, what: str, value: Any) -> Item:
        if isinstance(value, Exception):
            return gap(self.subject, name, value)
        self.said[name] = value
        return Fact(self.subject, name, value, f"nvml: {what}")


def read() -> Iterator[Item]:
    """Everything NVML knows, as it arrives. Needs libnvidia-ml; raises nothing of NVML's."""
    try:
        import pynvml
    except ImportError as error:
        yield Gap("gpu", "*", str(error), "pip install nvidia-ml-py")
        return
    try:
        pynvml.nvmlInit()
    except Exception as error:
        yield from nvidia_system.init_failed(code_of(error), str(error))
        return
    try:
        yield from _system(pynvml)
        yield from _cards(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _system(nvml: Any) -> Iterator[Item]:
    yield Fact("driver", "installed", True, "nvml: Init")
    yield Fact("driver", "mismatch", False, "nvml: Init")
    calls: tuple[tuple[str, str, Convert], ...] = (
        ("version", "nvmlSystemGetDriverVersion", _text),
        ("cuda", "nvmlSystemGetCudaDriverVersion_v2", lambda v: f"{v // 1000}.{v % 1000 // 10}"),
        ("nvml", "nvmlSystemGetNVMLVersion", _text),
    )
    for name, function, convert in calls:
        try:
            yield Fact("driver", name, convert(getattr(nvml, function)()), f"nvml: {function[4:]}")
        except Exception as error:
            yield gap("driver", name, error)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _cards(nvml: Any) -> Iterator[Item]:
    try:
        count = nvml.nvmlDeviceGetCount()
    except Exception as error:
        yield gap("gpu", "count", error)
        return
    if count == 0:
        yield Fact("gpu", "count", 0, "nvml: DeviceGetCount")
    process = 0
    for index in range(count):
        subject = f"gpu{index}"
        yield Fact(subject, "count", count, "nvml: DeviceGetCount")
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except Exception as error:
            if code_of(error) in (LOST, RESET_REQUIRED):
                yield Fact(subject, "lost", True, f"nvml: {error}")
            yield gap(subject, "*", error)
            continue
        card = Card(nvml, handle, subject)
        for item in _card(card):
            yield item
            if card.lost:
                break
        if card.lost:
            yield Fact(subject, "lost", True, "nvml: GPU is lost")
            yield Gap(subject, "*", say("the GPU was lost while it was read", "读取过程中 GPU 掉线"), "")
            continue
        yield Fact(subject, "lost", False, "nvml")
        used = list(_uses(card))
        for item in shares(subject, index, used, card.said.get("memory_used_mib"), process):
            yield item
        process += sum(isinstance(u, Used) for u in used)


def _card(card: Card) -> Iterator[Item]:
    name = card.ask("Name")
    yield card.item("name", "Name", name if isinstance(name, Exception) else _text(name))
    uuid = card.ask("UUID")
    yield card.item("uuid", "UUID", uuid if isinstance(uuid, Exception) else hashed(_text(uuid)))
    pci = card.ask("PciInfo")
    yield card.item("pci_bus_id", "PciInfo", pci if isinstance(pci, Exception) else _text(pci.busId).lower()[-12:])
    mig = card.ask("MigMode")
    yield card.item("mig", "MigMode", mig if isinstance(mig, Exception) else bool(mig[0]))
    yield from _memory(card)
    kept: dict[tuple[str, tuple[int, ...]], Any] = {}
    for fact, what, args, convert in READINGS:
        if (what, args) not in kept:
            kept[what, args] = card.ask(what, *args)
        value = kept[what, args]
        if not isinstance(value, Exception):
            try:
                value = convert(value)
            except (TypeError, ValueError, IndexError) as error:  # a driver that answers another shape
                value = error
        yield card.item(fact, what, value)
    yield from _activity(card)
    yield from _links(card)
    if card.said.get("mig"):
        yield from _slices(card)


def _memory(card: Card) -> Iterator[Item]:
    """v2 where there is one: v1 counts the driver's own reserve (0.3 to 0.7 GB) as used."""
    version = getattr(card.nvml, "nvmlMemory_v2", None)
    memory = card.ask("MemoryInfo", version) if version else AttributeError("nvmlMemory_v2")
    what = "MemoryInfo_v2"
    if isinstance(memory, Exception) and code_of(memory) in (FUNCTION_NOT_FOUND, 25, 2):
        memory, what = card.ask("MemoryInfo"), "MemoryInfo (v1: used counts the driver's reserve)"
    name = str(card.said.get("name", ""))
    unified = nvidia_system.is_unified(name, isinstance(memory, Exception) and code_of(memory) == NOT_SUPPORTED)
    yield card.item("unified_memory", "Name" if not isinstance(memory, Exception) else "MemoryInfo", unified)
    if isinstance(memory, Exception):
        if unified:
            yield from nvidia_system.shared_memory(card.subject)
        else:
            for fact in ("memory_total_mib", "memory_used_mib", "memory_free_mib", "memory_reserved_mib"):
                yield gap(card.subject, fact, memory)
    else:
        for part in ("total", "used", "free"):
            yield card.item(f"memory_{part}_mib", what, mib(getattr(memory, part)))
        reserve = getattr(memory, "reserved", None)
        missing = AttributeError("reserved")
        yield card.item("memory_reserved_mib", what, missing if reserve is None else mib(reserve))
    bar = card.ask("BAR1MemoryInfo")
    yield card.item("bar1_total_mib", "BAR1MemoryInfo", bar if isinstance(bar, Exception) else mib(bar.bar1Total))
    yield card.item("bar1_used_mib", "BAR1MemoryInfo", bar if isinstance(bar, Exception) else mib(bar.bar1Used))


def _activity(card: Card) -> Iterator[Item]:
    rates = card.ask("UtilizationRates")
    yield card.item("utilization_pct", "UtilizationRates", rates if isinstance(rates, Exception) else rates.gpu)
    yield card.item("memory_utilization_pct", "UtilizationRates", rates if isinstance(rates, Exception) else rates.memory)
    state = card.ask("PerformanceState")
    yield card.item("performance_state", "PerformanceState", state if isinstance(state, Exception) else int(state))
    mask = card.ask("CurrentClocksEventReasons")
    if isinstance(mask, Exception) and code_of(mask) == FUNCTION_NOT_FOUND:
        mask = card.ask("CurrentClocksThrottleReasons")
    yield card.item("clock_event_reasons", "CurrentClocksEventReasons", mask if isinstance(mask, Exception) else reasons(mask))
    if not isinstance(mask, Exception):
        yield card.item("idle", "CurrentClocksEventReasons", bool(mask & 1))
    elif not isinstance(rates, Exception):
        yield card.item("idle", "UtilizationRates", rates.gpu == 0)
    getter = getattr(card.nvml, "NVML_FI_DEV_MEMORY_TEMP", None)
    fields = card.ask("FieldValues", [getter]) if getter is not None else AttributeError("FieldValues")
    if not isinstance(fields, Exception):
        first = fields[0]
        fields = card.nvml.NVMLError(first.nvmlReturn) if first.nvmlReturn else int(first.value.uiVal)
    yield card.item("temperature_memory_c", "FieldValues: MEMORY_TEMP", fields)


def _links(card: Card) -> Iterator[Item]:
    """Active NVLinks; a card without any answers "not supported" for link 0."""
    active = 0
    for link in range(18):
        state = card.ask("NvLinkState", link)
        if isinstance(state, Exception):
            break
        active += int(state == 1)
    yield card.item("nvlinks", "NvLinkState", active)


def _slices(card: Card) -> Iterator[Item]:
    """MIG instances: lists of name, total and free MiB in the same order."""
    maximum = card.ask("MaxMigDeviceCount")
    if isinstance(maximum, Exception):
        yield gap(card.subject, "mig_slices", maximum)
        return
    names, totals, free, instances = [], [], [], []
    for index in range(maximum):
        part = card.ask("MigDeviceHandleByIndex", index)
        if isinstance(part, Exception):
            continue
        name = card.ask("Name", of=part)
        names.append(f"slice {index}" if isinstance(name, Exception) else _text(name))
        memory = card.ask("MemoryInfo", of=part)
        totals.append(None if isinstance(memory, Exception) else mib(memory.total))
        free.append(None if isinstance(memory, Exception) else mib(memory.free))
        instance = card.ask("GpuInstanceId", of=part)
        instances.append(None if isinstance(instance, Exception) else instance)
    yield card.item("mig_slices", "MigDeviceHandleByIndex", names)
    yield card.item("mig_slice_total_mib", "MemoryInfo of the slices", totals)
    yield card.item("mig_slice_free_mib", "MemoryInfo of the slices", free)
    yield card.item("mig_slice_instance", "GpuInstanceId of the slices", instances)


def _uses(card: Card) -> Iterator[Used | Gap]:
    """Processes with memory on the card; both kinds that NVML tells apart, each pid once."""
    seen: dict[int, Used] = {}
    for kind, what in (("compute", "ComputeRunningProcesses"), ("graphics", "GraphicsRunningProcesses")):
        for suffix in ("_v3", "_v2"):
            found = card.ask(what + suffix)
            if not isinstance(found, Exception) or code_of(found) != FUNCTION_NOT_FOUND:
                break
        if isinstance(found, Exception):
            yield gap(card.subject, "processes" if kind == "compute" else "graphics_processes", found)
            continue
        for process in found:
            size = None if process.usedGpuMemory is None else mib(process.usedGpuMemory)
            before = seen.get(process.pid)
            if before is None or (size or 0) > (before.mib or 0):
                seen[process.pid] = Used(process.pid, kind, size, _instance(process))
    yield from seen.values()


def _instance(process: Any) -> int | None:
    """The GPU instance (MIG) that a process runs in; None without MIG, and from drivers that do not say."""
    found = getattr(process, "gpuInstanceId", None)
    return found if isinstance(found, int) and found != NO_INSTANCE else None


def main() -> None:
    """Writes what `read()` yields, one JSON line each."""
    for item in read():
        print(json.dumps(["fact" if isinstance(item, Fact) else "gap", to_json(item)]), flush=True)


if __name__ == "__main__":
    main()
