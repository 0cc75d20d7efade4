"""`nvidia-smi -q` (whole or one display) and `--query-gpu` / `--query-compute-apps` as CSV."""

from __future__ import annotations

import re
from collections.abc import Callable

from dstune.catalog.vocabulary import to_mib
from dstune.model import Value
from dstune.readers.paste_sheet import FAULT, NOTHING, Sheet, number, plain
from dstune.readers.paste_smi import counted, idle_of
from dstune.redact import redact

_SWITCH = {"enabled": True, "disabled": False, "yes": True, "no": False, "active": True, "not active": False}
_REASONS = {
    "idle": "gpu_idle", "applications clocks setting": "applications_clocks_setting", "sw power cap": "sw_power_cap", "hw slowdown": "hw_slowdown",
    "hw thermal slowdown": "hw_thermal_slowdown", "hw power brake slowdown": "hw_power_brake_slowdown", "sync boost": "sync_boost",
    "sw thermal slowdown": "sw_thermal_slowdown", "display clock setting": "display_clock_setting",
}  # fmt: skip
_Q: dict[tuple[str, str], str] = {
    ("", "product name"): "name", ("", "product architecture"): "architecture", ("", "persistence mode"): "persistence", ("mig mode", "current"): "mig",
    ("", "fan speed"): "fan_pct", ("", "performance state"): "performance_state", ("", "compute mode"): "compute_mode", ("", "display active"): "display_active",
    ("pcie generation", "current"): "pcie_gen", ("pcie generation", "max"): "pcie_gen_max", ("link width", "current"): "pcie_width",
    ("link width", "max"): "pcie_width_max", ("", "replays since reset"): "pcie_replays", ("fb memory usage", "total"): "memory_total_mib",
    ("fb memory usage", "used"): "memory_used_mib", ("fb memory usage", "free"): "memory_free_mib", ("fb memory usage", "reserved"): "memory_reserved_mib",
    ("bar1 memory usage", "total"): "bar1_total_mib", ("bar1 memory usage", "used"): "bar1_used_mib", ("utilization", "gpu"): "utilization_pct",
    ("utilization", "memory"): "memory_utilization_pct", ("ecc mode", "current"): "ecc", ("ecc mode", "pending"): "ecc_pending",
    ("remapped rows", "pending"): "row_remap_pending", ("remapped rows", "remapping failure occurred"): "row_remap_failed",
    ("temperature", "gpu current temp"): "temperature_c", ("temperature", "gpu slowdown temp"): "temperature_slowdown_c",
    ("temperature", "gpu shutdown temp"): "temperature_shutdown_c", ("temperature", "gpu max operating temp"): "temperature_max_c",
    ("temperature", "memory current temp"): "temperature_memory_c", ("temperature", "memory max operating temp"): "temperature_memory_max_c",
    ("power readings", "power draw"): "power_draw_w", ("power readings", "average power draw"): "power_draw_w", ("power readings", "power limit"): "power_limit_w",
    ("power readings", "current power limit"): "power_limit_w", ("power readings", "enforced power limit"): "power_limit_w",
    ("power readings", "default power limit"): "power_default_limit_w", ("power readings", "max power limit"): "power_max_limit_w",
    ("clocks", "sm"): "clock_sm_mhz", ("clocks", "graphics"): "clock_graphics_mhz", ("clocks", "memory"): "clock_memory_mhz", ("max clocks", "sm"): "clock_sm_max_mhz",
    ("max clocks", "graphics"): "clock_graphics_max_mhz", ("max clocks", "memory"): "clock_memory_max_mhz",
}  # fmt: skip
"""(last heading, key), both in lower case → fact; "" where the key is a card's own. Indentation is not needed."""
_CARD = re.compile(r"^\s*GPU +(?P<bus>[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_KEYED = re.compile(r"^\s*(?P<key>[A-Za-z][\w .()/-]*?)\s+: ?(?P<value>.*)$")
_PROCESS_KEYS = {"process id": "pid", "type": "kind", "name": "name", "used gpu memory": "memory_mib"}
_TOP = {name for heading, name in _Q if not heading}


def read_query(sheet: Sheet) -> None:
    """`nvidia-smi -q`: cards in their order, sections by their last heading."""
    card = -1
    heading = ""
    reasons: dict[str, list[str]] = {}
    place: dict[str, tuple[int, str]] = {}
    process = -1
    for line, text in sheet.lines:
        if _CARD.match(text):
            card, heading = card + 1, ""
            continue
        found = _KEYED.match(text)
        if found is None:
            heading = text.strip().casefold() if text.strip() and len(text) < 80 else heading
            continue
        key, value, subject = found["key"].casefold(), found["value"].strip(), f"gpu{max(card, 0)}"
        if key == "driver version":
            sheet.put("driver", "version", plain(value), line, text)
        elif key == "cuda version":
            sheet.put("driver", "cuda", plain(value), line, text)
        elif heading in ("clocks event reasons", "clocks throttle reasons") and key in _REASONS:
            found_reasons = reasons.setdefault(subject, [])
            place.setdefault(subject, (line, text))
            if value.casefold() == "active":
                found_reasons.append(_REASONS[key])
                place[subject] = (line, text)
        elif heading == "processes" or (key == "process id" and card >= 0):
            if key in _PROCESS_KEYS:
                process += key == "process id"
                _process(sheet, process, max(card, 0), key, value, line, text)
        else:
            section = "power readings" if heading in ("power readings", "gpu power readings") else heading
            name = _Q.get((section, key)) or (_Q.get(("", key)) if key in _TOP else None)
            if name is not None:
                _set(sheet, subject, name, value, line, text)
    for subject, names in reasons.items():
        sheet.put(subject, "clock_event_reasons", names, *place[subject])
        sheet.put(subject, "idle", "gpu_idle" in names, *place[subject])
    counted(sheet)


def _set(sheet: Sheet, subject: str, name: str, value: str, line: int, text: str) -> None:
    if value.casefold() in _SWITCH:
        sheet.put(subject, name, _SWITCH[value.casefold()], line, text)
    elif value.casefold() in NOTHING or value in FAULT or value.startswith("Requested functionality"):
        sheet.unread(subject, name, value, line)
    elif name in ("name", "architecture"):
        sheet.put(subject, name, value, line, text)
    elif name == "compute_mode":
        sheet.put(subject, name, value.lower(), line, text)
    elif name == "performance_state":
        sheet.put(subject, name, number(value.lstrip("P")), line, text)
    else:
        sheet.cell(subject, name, value, line, text)


def _process(sheet: Sheet, index: int, card: int, key: str, value: str, line: int, text: str) -> None:
    where = f"process{index or ''}" if index >= 0 else "process"
    if key == "process id":
        sheet.put(where, "gpu", card, line, text)
        sheet.put(where, "pid", number(value), line, text)
        so_far = sheet.value(f"gpu{card}", "processes")
        sheet.put(f"gpu{card}", "processes", (so_far if isinstance(so_far, int) else 0) + 1, line, text)
    elif key == "type":
        sheet.put(where, "kind", {"C": "compute", "G": "graphics", "C+G": "graphics"}.get(value), line, text)
    elif key == "name":
        sheet.put(where, "name", redact(value), line, text)
    else:
        sheet.cell(where, "memory_mib", value, line, text)


_BITS = ((0x1, "gpu_idle"), (0x2, "applications_clocks_setting"), (0x4, "sw_power_cap"), (0x8, "hw_slowdown"), (0x10, "sync_boost"),
         (0x20, "sw_thermal_slowdown"), (0x40, "hw_thermal_slowdown"), (0x80, "hw_power_brake_slowdown"), (0x100, "display_clock_setting"))  # fmt: skip
"""Bits of `clocks_event_reasons.active` (nvml.h, nvmlClocksEventReasons)."""


def _mask(cell: str) -> Value:
    return [name for bit, name in _BITS if int(cell, 16) & bit] if re.fullmatch(r"0x[0-9a-fA-F]+", cell) else None


_BOOL: Callable[[str], Value] = lambda cell: _SWITCH.get(cell.casefold())  # noqa: E731
_TEXT: Callable[[str], Value] = plain
_NUM: Callable[[str], Value] = number
FIELDS: dict[str, tuple[str, Callable[[str], Value]]] = {
    "name": ("name", _TEXT), "gpu_name": ("name", _TEXT), "driver_version": ("driver.version", _TEXT), "count": ("count", _NUM), "fan.speed": ("fan_pct", _NUM),
    "pstate": ("performance_state", lambda c: number(c.lstrip("P"))), "memory.total": ("memory_total_mib", _NUM), "memory.used": ("memory_used_mib", _NUM),
    "memory.free": ("memory_free_mib", _NUM), "memory.reserved": ("memory_reserved_mib", _NUM), "utilization.gpu": ("utilization_pct", _NUM),
    "utilization.memory": ("memory_utilization_pct", _NUM), "temperature.gpu": ("temperature_c", _NUM), "temperature.memory": ("temperature_memory_c", _NUM),
    "power.draw": ("power_draw_w", _NUM), "power.draw.average": ("power_draw_w", _NUM), "power.limit": ("power_limit_w", _NUM), "enforced.power.limit": ("power_limit_w", _NUM),
    "power.default_limit": ("power_default_limit_w", _NUM), "power.max_limit": ("power_max_limit_w", _NUM), "clocks.sm": ("clock_sm_mhz", _NUM),
    "clocks.current.sm": ("clock_sm_mhz", _NUM), "clocks.gr": ("clock_graphics_mhz", _NUM), "clocks.mem": ("clock_memory_mhz", _NUM),
    "clocks.max.sm": ("clock_sm_max_mhz", _NUM), "clocks.max.gr": ("clock_graphics_max_mhz", _NUM), "clocks.max.mem": ("clock_memory_max_mhz", _NUM),
    "pcie.link.gen.current": ("pcie_gen", _NUM), "pcie.link.gen.gpucurrent": ("pcie_gen", _NUM), "pcie.link.gen.max": ("pcie_gen_max", _NUM),
    "pcie.link.width.current": ("pcie_width", _NUM), "pcie.link.width.max": ("pcie_width_max", _NUM), "compute_cap": ("compute_capability", _TEXT),
    "mig.mode.current": ("mig", _BOOL), "persistence_mode": ("persistence", _BOOL), "ecc.mode.current": ("ecc", _BOOL), "display_active": ("display_active", _BOOL),
    "compute_mode": ("compute_mode", lambda c: c.lower()), "pci.bus_id": ("pci_bus_id", lambda c: c.lower()[-12:]), "gpu_bus_id": ("pci_bus_id", lambda c: c.lower()[-12:]),
    "clocks_event_reasons.active": ("clock_event_reasons", _mask), "clocks_throttle_reasons.active": ("clock_event_reasons", _mask),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected", _NUM), "ecc.errors.corrected.volatile.total": ("ecc_corrected", _NUM),
}  # fmt: skip
_OTHER = {
    "index",
    "uuid",
    "gpu_uuid",
    "serial",
    "timestamp",
    "pid",
    "process_name",
    "used_memory",
    "used_gpu_memory",
    "vbios_version",
    "gpu_serial",
}
_REASON_FIELD = re.compile(r"clocks_(?:event|throttle)_reasons\.(\w+)")
_UNIT = re.compile(r"\s*\[[^\]]*\]\s*$")
_ASKED = re.compile(r"--query-(?:gpu|compute-apps|compute_apps)[= ](?P<fields>[\w.,]+)")


def read_csv(sheet: Sheet) -> None:
    """CSV under a header line, or under the command where `noheader` left it out; the order of columns is free."""
    fields: list[str] = []
    seen = _Rows()
    for line, text in sheet.lines:
        if asked := _ASKED.search(text):
            fields, seen = asked["fields"].strip(",").split(","), _Rows(seen.processes)
            continue
        if "," not in text and len(fields) != 1:
            if text.strip():
                fields = []
            continue
        cells = [c.strip() for c in text.strip().split(",")]
        names = [_UNIT.sub("", c) for c in cells]
        if all(_known(n) for n in names) and (len(cells) > 1 or names != cells):
            fields, seen = names, _Rows(seen.processes)
            seen.units = [c[len(n) :].strip(" []") for c, n in zip(cells, names, strict=True)]
        elif len(fields) == 1 and _known(names[0]):
            continue
        elif fields and len(cells) == len(fields):
            _row(sheet, dict(zip(fields, cells, strict=True)), seen, line, text)
        elif text.strip():
            fields = []
    counted(sheet)


class _Rows:
    """Which card the next row belongs to where no column says it."""

    def __init__(self, processes: int = 0) -> None:
        self.keys: dict[str, int] = {}
        self.next, self.processes = 0, processes
        self.units: list[str] = []

    def card(self, row: dict[str, str]) -> str:
        if row.get("index", "").isdigit():
            return f"gpu{row['index']}"
        key = row.get("uuid") or row.get("gpu_uuid") or row.get("pci.bus_id") or row.get("gpu_bus_id")
        if key:
            return f"gpu{self.keys.setdefault(key, len(self.keys))}"
        if "timestamp" in row:
            return "gpu0"
        self.next += 1
        return f"gpu{self.next - 1}"


def _known(name: str) -> bool:
    return name in FIELDS or name in _OTHER or _REASON_FIELD.fullmatch(name) is not None


def _row(sheet: Sheet, row: dict[str, str], seen: _Rows, line: int, text: str) -> None:
    if "pid" in row:
        where = f"process{seen.processes or ''}"
        seen.processes += 1
        sheet.put(where, "pid", number(row["pid"]), line, text)
        sheet.put(where, "name", redact(row.get("process_name", "")) or None, line, text)
        cell = row.get("used_gpu_memory") or row.get("used_memory") or ""
        sheet.put(where, "memory_mib", to_mib(cell) if number(cell) is not None else None, line, text)
        return
    card = seen.card(row)
    active = []
    for field, cell in row.items():
        if reason := _REASON_FIELD.fullmatch(field):
            if reason[1] != "active" and cell.casefold() == "active":
                active.append(reason[1])
            if reason[1] != "active":
                continue
        if field not in FIELDS:
            continue
        name, convert = FIELDS[field]
        subject, name = name.split(".") if "." in name else (card, name)
        value = convert(cell)
        if value is None:
            sheet.unread(subject, name, cell, line)
        else:
            sheet.put(subject, name, value, line, text)
    named = [f for f in row if (m := _REASON_FIELD.fullmatch(f)) and m[1] != "active"]
    if named and (active or ("clocks_event_reasons.active" not in row and "clocks_throttle_reasons.active" not in row)):
        before = sheet.value(card, "clock_event_reasons")
        known = before if isinstance(before, list) and "clocks_event_reasons.active" in row else []
        sheet.put(card, "clock_event_reasons", list(dict.fromkeys([*known, *active])), line, text)
    idle_of(sheet, card, line, text)
