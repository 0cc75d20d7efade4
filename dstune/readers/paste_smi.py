"""`nvidia-smi` as a table (any width, several cards, MIG, processes), `-L`, `dmon` and `pmon`."""

from __future__ import annotations

import re

from dstune.lang import say
from dstune.model import Gap
from dstune.readers.paste_sheet import FAULT, Sheet, number, plain
from dstune.redact import redact

_HEADER = re.compile(
    r"NVIDIA-SMI +(?P<smi>[\w.]+).*?(?:Driver|KMD) Version: *(?P<driver>[\w./]+)(?:.*?CUDA (?:UMD )?Version: *(?P<cuda>[\w./!]+))?"
)
_FIRST = re.compile(
    r"(?:^|\|) *(?P<index>\d+) +(?P<name>[A-Za-z]\S.*?) +(?P<mode>On|Off|WDDM|TCC|MCDM|N/A) *\|? *"
    r"(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d) +(?P<display>On|Off|N/A) *\|? *(?P<ecc>\S+)?"
)
_SECOND = re.compile(
    r"(?:^|\|) *(?P<fan>\d+ ?%|N/A|\[N/A\]|ERR!) +(?P<temp>\d+ ?C|N/A|ERR!) +(?P<state>P\d+|N/A|ERR!|Unknown)? *"
    r"(?P<draw>\d+ ?W|N/A|ERR!|Unknown Error|\?\?) */ *(?P<limit>\d+ ?W|N/A|ERR!) *\|? *"
    r"(?:(?P<used>\d+) ?MiB */ *(?P<total>\d+) ?MiB|(?P<none>Not Supported|N/A|ERR!|Unknown Error)) *\|? *(?P<util>\d+ ?%|N/A|ERR!)? *(?P<compute>[A-Z][\w. ]*?)? *\|?$"
)
_MIG = re.compile(
    r"^\|? *(?P<index>\d+) +(?P<gi>\d+) +(?P<ci>\d+) +(?P<dev>\d+) *\|? *(?P<used>\d+) ?MiB */ *(?P<total>\d+) ?MiB"
)
_PROCESS = re.compile(
    r"^\|? *(?P<index>\d+) +(?:(?P<gi>N/A|\d+) +(?P<ci>N/A|\d+) +)?(?P<pid>\d+) +(?P<kind>C\+G|M\+C|C|G) +(?P<name>\S.*?) +(?P<mib>\d+ ?MiB|N/A) *\|?$"
)
_LISTED = re.compile(r"GPU (?P<index>\d+): (?P<name>[^(\n]+?) \(UUID: ")
_SLICE = re.compile(r"^ *MIG +(?P<name>\S+) +Device +\d+: \(UUID:")
_UNIFIED = re.compile(r"\b(?:GB10|Orin|Thor|Xavier|Tegra|Jetson)\b")
_KIND = {"C": "compute", "G": "graphics", "C+G": "graphics", "M+C": "compute"}
_COMPUTE = {
    "Default": "default",
    "E. Process": "exclusive_process",
    "Exclusive_Process": "exclusive_process",
    "Prohibited": "prohibited",
}


def read_cards(sheet: Sheet) -> None:
    """The table: driver, per card two or three lines, MIG slices, processes."""
    card = ""
    waiting = 0
    alone = 0
    processes = 0
    per_card: dict[str, int] = {}
    in_processes = False
    slices: dict[str, tuple[list[int], list[int], int, str]] = {}
    for line, text in sheet.lines:
        if "|" not in text and "MiB" not in text and "NVIDIA-SMI" not in text and "No running processes" not in text:
            continue
        if "NVIDIA-SMI" in text and (head := _HEADER.search(text)):
            sheet.put("driver", "version", head["driver"], line, text)
            sheet.put("driver", "cuda", plain(head["cuda"] or ""), line, text)
            sheet.put("driver", "installed", True, line, text)
            in_processes, processes, per_card = False, 0, {}
        elif first := _FIRST.search(text):
            card, waiting, in_processes = f"gpu{first['index']}", 2, False
            _first(sheet, card, first, line, text)
        elif waiting == 2 and (second := _SECOND.search(text)):
            waiting = 1
            _second(sheet, card, second, line, text)
        elif not card and (second := _SECOND.search(text)):  # rows without the line that names their card: counted in order
            _second(sheet, f"gpu{alone}", second, line, text)
            alone += 1
        elif waiting == 1 and (mode := re.search(r"\b(Enabled|Disabled|N/A)\*? *\|?$", text)):
            waiting = 0
            if mode[1] != "N/A":
                sheet.put(card, "mig", mode[1] == "Enabled", line, text)
        elif "Processes:" in text:
            in_processes = True
        elif "No running processes" in text:
            for subject in _cards(sheet):
                sheet.put(subject, "processes", 0, line, text)
        elif in_processes and (process := _PROCESS.search(text)):
            subject = f"gpu{process['index']}"
            per_card[subject] = per_card.get(subject, 0) + 1
            sheet.put(subject, "processes", per_card[subject], line, text)
            _process(sheet, processes, process, line, text)
            processes += 1
        elif not in_processes and (part := _MIG.search(text)):
            totals, frees, _, _ = slices.setdefault(f"gpu{part['index']}", ([], [], line, text))
            totals.append(int(part["total"]))
            frees.append(int(part["total"]) - int(part["used"]))
    for subject, (totals, frees, line, text) in slices.items():
        sheet.put(subject, "mig", True, line, text)
        sheet.put(subject, "mig_slice_total_mib", list(totals), line, text)
        sheet.put(subject, "mig_slice_free_mib", list(frees), line, text)
    counted(sheet)


def _first(sheet: Sheet, card: str, cells: re.Match[str], line: int, text: str) -> None:
    name = cells["name"].strip()
    cut = name.rstrip(". ")
    if not name.endswith("..") or name[len(cut) : len(cut) + 1] == " ":
        sheet.put(card, "name", cut, line, text)
    else:
        reason = say(f"line {line}: the table cuts the name off ({name})", f"第 {line} 行：表格截断了名称（{name}）")
        sheet.gaps[card, "name"] = Gap(card, "name", reason, "nvidia-smi -L")
    sheet.put(card, "pci_bus_id", cells["bus"].lower()[-12:], line, text)
    if cells["mode"] in ("On", "Off"):
        sheet.put(card, "persistence", cells["mode"] == "On", line, text)
    elif cells["mode"] in ("WDDM", "TCC", "MCDM"):
        sheet.put("host", "os", "windows", line, text)
    if cells["display"] != "N/A":
        sheet.put(card, "display_active", cells["display"] == "On", line, text)
    if cells["ecc"] and (errors := number(cells["ecc"])) is not None:
        sheet.put(card, "ecc", True, line, text)
        sheet.put(card, "ecc_uncorrected", errors, line, text)
    elif cells["ecc"] == "Off":
        sheet.put(card, "ecc", False, line, text)


def _second(sheet: Sheet, card: str, cells: re.Match[str], line: int, text: str) -> None:
    for group, name in (("fan", "fan_pct"), ("temp", "temperature_c"), ("draw", "power_draw_w"), ("limit", "power_limit_w")):
        sheet.cell(card, name, cells[group], line, text)
    if cells["state"] and cells["state"].startswith("P"):
        sheet.put(card, "performance_state", int(cells["state"][1:]), line, text)
    if cells["used"] is None:
        sheet.unread(card, "memory_total_mib", cells["none"], line)
        sheet.unread(card, "memory_used_mib", cells["none"], line)
        if cells["none"] not in FAULT and _UNIFIED.search(str(sheet.value(card, "name"))):
            sheet.put(card, "unified_memory", True, line, text)
    else:
        sheet.put(card, "memory_used_mib", int(cells["used"]), line, text)
        sheet.put(card, "memory_total_mib", int(cells["total"]), line, text)
    if cells["util"] and (busy := number(cells["util"])) is not None:
        sheet.put(card, "utilization_pct", busy, line, text)
        idle_of(sheet, card, line, text)
    elif cells["util"]:
        sheet.unread(card, "utilization_pct", cells["util"], line)
    if cells["compute"]:
        sheet.put(card, "compute_mode", _COMPUTE.get(cells["compute"].strip(), cells["compute"].strip().lower()), line, text)


def idle_of(sheet: Sheet, card: str, line: int, text: str) -> None:
    """Idle: no kernel ran and the clocks are down (P5 and lower); working: a kernel ran."""
    busy, state = sheet.value(card, "utilization_pct"), sheet.value(card, "performance_state")
    if isinstance(busy, int | float) and busy > 0:
        sheet.put(card, "idle", False, line, text)
    elif isinstance(busy, int | float) and isinstance(state, int | float) and state >= 5:
        sheet.put(card, "idle", True, line, text)


def _process(sheet: Sheet, count: int, cells: re.Match[str], line: int, text: str) -> None:
    where = f"process{count or ''}"
    sheet.put(where, "pid", int(cells["pid"]), line, text)
    sheet.put(where, "gpu", int(cells["index"]), line, text)
    sheet.put(where, "kind", _KIND[cells["kind"]], line, text)
    sheet.put(where, "name", redact(cells["name"].strip()), line, text)
    sheet.cell(where, "memory_mib", cells["mib"], line, text)


def _cards(sheet: Sheet) -> list[str]:
    return list(dict.fromkeys(s for s, _ in sheet.facts if re.fullmatch(r"gpu\d+", s)))


def counted(sheet: Sheet) -> None:
    """How many cards the paste lists, as a fact of each."""
    cards = [s for s in _cards(sheet) if (s, "name") in sheet.facts or (s, "memory_total_mib") in sheet.facts]
    for subject in cards:
        fact = sheet.facts.get((subject, "name")) or sheet.facts[subject, "memory_total_mib"]
        sheet.put(subject, "count", len(cards), fact.line or 0, fact.text)


def read_names(sheet: Sheet) -> None:
    """`nvidia-smi -L`: names, and MIG slices below their card."""
    card = ""
    names: list[str] = []
    for line, text in sheet.having("UUID:"):
        if listed := _LISTED.search(text):
            card, names = f"gpu{listed['index']}", []
            sheet.put(card, "name", listed["name"], line, redact(text))
        elif card and (part := _SLICE.search(text)):
            names.append(part["name"])
            sheet.put(card, "mig", True, line, redact(text))
            sheet.put(card, "mig_slices", list(names), line, redact(text))
    counted(sheet)


_COLUMNS = {
    "pwr": "power_draw_w", "gtemp": "temperature_c", "mtemp": "temperature_memory_c", "sm": "utilization_pct", "mem": "memory_utilization_pct",
    "mclk": "clock_memory_mhz", "pclk": "clock_sm_mhz", "fb": "memory_used_mib", "bar1": "bar1_used_mib", "rxpci": "pcie_rx_mib_s", "txpci": "pcie_tx_mib_s",
}  # fmt: skip


def read_monitor(sheet: Sheet) -> None:
    """`nvidia-smi dmon` and `pmon`: the columns that the line `# gpu …` names, in any order; the last row of a card counts."""
    columns: list[str] = []
    processes: dict[str, str] = {}
    for line, text in sheet.lines:
        words = text.split()
        if words[:2] == ["#", "gpu"] or words[:3] == ["#Date", "Time", "gpu"] or words[:3] == ["#", "Time", "gpu"]:
            columns = words[1:] if words[0] == "#" else [words[0][1:], *words[1:]]
        elif not columns or text.lstrip().startswith("#"):
            continue
        elif len(words) < len(columns) or not words[columns.index("gpu")].isdigit():
            columns = columns if not words else []
        else:
            row = dict(zip(columns, [*words[: len(columns) - 1], " ".join(words[len(columns) - 1 :])], strict=True))
            if "pid" in row:
                _monitored(sheet, row, processes, line, text)
                continue
            for column, name in _COLUMNS.items():
                if column in row and row[column] != "-":
                    sheet.cell(f"gpu{row['gpu']}", name, row[column], line, text)
            idle_of(sheet, f"gpu{row['gpu']}", line, text)


def _monitored(sheet: Sheet, row: dict[str, str], known: dict[str, str], line: int, text: str) -> None:
    if not row["pid"].isdigit():
        return
    where = known.setdefault(row["pid"], f"process{len(known) or ''}")
    sheet.put(where, "pid", int(row["pid"]), line, text)
    sheet.put(where, "gpu", int(row["gpu"]), line, text)
    sheet.put(where, "kind", _KIND.get(row.get("type", "")), line, text)
    sheet.put(where, "name", redact(row.get("command", "")) or None, line, text)
    if row.get("fb", "-") != "-":
        sheet.cell(where, "memory_mib", row["fb"], line, text)
