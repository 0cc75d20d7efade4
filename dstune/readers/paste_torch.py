"""`torch.cuda.memory_summary()` and `torch.cuda.memory_stats()` as JSON or printed dict."""

from __future__ import annotations

import re

from dstune.catalog.vocabulary import to_mib
from dstune.readers.paste_sheet import Sheet

_ROWS = {
    "Allocated memory": ("memory_allocated_mib", "memory_allocated_peak_mib"),
    "GPU reserved memory": ("memory_reserved_mib", "memory_reserved_peak_mib"),
    "Non-releasable memory": ("memory_unreleasable_mib", None),
}
_ROW = re.compile(r"\| *(?P<name>[A-Z][\w -]*?) *\| *(?P<now>\d+ [KMGT]?i?B) *\| *(?P<peak>\d+ [KMGT]?i?B) *\|")
_COUNTS = re.compile(r"CUDA OOMs: (?P<ooms>\d+).*?cudaMalloc retries: (?P<retries>\d+)")
_STATS = {
    "allocated_bytes.all.current": "memory_allocated_mib",
    "allocated_bytes.all.peak": "memory_allocated_peak_mib",
    "reserved_bytes.all.current": "memory_reserved_mib",
    "reserved_bytes.all.peak": "memory_reserved_peak_mib",
    "inactive_split_bytes.all.current": "memory_unreleasable_mib",
    "num_ooms": "ooms",
    "num_alloc_retries": "allocation_retries",
}
_STAT = re.compile(r"['\"](?P<key>[\w.]+)['\"]: *(?P<value>\d+)")


def read_summary(sheet: Sheet) -> None:
    """The table of `memory_summary()`: current and peak of the totals."""
    for line, text in sheet.having("| Allocated memory", "| GPU reserved memory", "| Non-releasable memory", "CUDA OOMs:"):
        if counts := _COUNTS.search(text):
            sheet.put("torch", "ooms", int(counts["ooms"]), line, text)
            sheet.put("torch", "allocation_retries", int(counts["retries"]), line, text)
        elif (row := _ROW.search(text)) and row["name"] in _ROWS:
            now, peak = _ROWS[row["name"]]
            sheet.put("torch", now, to_mib(row["now"]), line, text)
            if peak:
                sheet.put("torch", peak, to_mib(row["peak"]), line, text)


def read_stats(sheet: Sheet) -> None:
    """The keys of `memory_stats()` that say how much is held; bytes become MiB."""
    for line, text in sheet.having("_bytes.all.", "num_ooms", "num_alloc_retries"):
        for found in _STAT.finditer(text):
            name = _STATS.get(found["key"])
            if name is not None:
                value = int(found["value"])
                sheet.put("torch", name, round(value / 2**20, 1) if name.endswith("_mib") else value, line, text)
