"""Facts out of pasted text, with line and text; and how numbers, sizes and prefixes of pastes are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise

from dstune.catalog.vocabulary import normalise, terms
from dstune.lang import say
from dstune.model import Fact, Gap, Value, family_of
from dstune.redact import redact

_PREFIX = re.compile(
    r"^(?:\s*(?:[\w.-]+-\d+ +\| |\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]? |\w{3} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w.-]+(?:\[\d+\])?: |> ))+"
)
"""What compose (`web-1  | `), time stamps, journald and quoting put before a line."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
NOTHING = frozenset(
    (
        "",
        "n/a",
        "[n/a]",
        "not supported",
        "[not supported]",
        "none",
        "-",
        "could not collect",
        "no cuda",
        "unknown",
        "not installed",
        "no",
        "null",
    )
)
FAULT = ("ERR!", "Unknown Error", "[Unknown Error]", "GPU is lost", "[GPU is lost]")


class Sheet:
    """The lines of a paste, and what was read out of them. A later reading replaces the value and keeps the place."""

    def __init__(self, source: str, text: str) -> None:
        self.source, self.text = source, text
        self.facts: dict[tuple[str, str], Fact] = {}
        self.gaps: dict[tuple[str, str], Gap] = {}
        self.readings: dict[str, list[float]] = {}

    @cached_property
    def lines(self) -> list[tuple[int, str]]:
        """(number, line without what docker, journald or quoting put before it)."""
        return [(n, _PREFIX.sub("", line)) for n, line in enumerate(self.text.split("\n"), 1)]

    def having(self, *parts: str) -> Iterator[tuple[int, str]]:
        """The lines that hold one of the texts."""
        return ((n, line) for n, line in self.lines if any(p in line for p in parts))

    def put(self, subject: str, name: str, value: Value, line: int, text: str) -> None:
        """A fact, typed as the vocabulary has it; nothing where there is no value or no such name."""
        full = f"{family_of(subject)}.{name}"
        if value is None or full not in terms():
            return
        value = normalise(full, value)
        if value is None:
            return
        self.gaps.pop((subject, name), None)
        self.facts[subject, name] = Fact(subject, name, value, self.source, line, redact(text.strip())[:200])
        if name == "memory_used_mib" and isinstance(value, int | float):
            self.readings.setdefault(subject, []).append(float(value))

    def unread(self, subject: str, name: str, cell: str, line: int) -> None:
        """A cell that says it holds no figure: `N/A`, `Not Supported`, `ERR!`."""
        if (subject, name) in self.facts:
            return
        fault = cell.strip() in FAULT
        reason = (
            say(f"line {line}: the driver answers {cell.strip()}", f"第 {line} 行：驱动返回 {cell.strip()}")
            if fault
            else say(
                f"line {line}: not reported for this card ({cell.strip()})", f"第 {line} 行：该显卡不提供此项（{cell.strip()}）"
            )
        )
        hint = (
            say(
                "sudo dmesg | grep -i xid; a reset or reboot may be needed", "执行 sudo dmesg | grep -i xid，可能需要复位或重启"
            )
            if fault
            else ""
        )
        self.gaps[subject, name] = Gap(subject, name, reason, hint)

    def cell(self, subject: str, name: str, cell: str, line: int, text: str) -> None:
        """A numeric cell (`55C`, `595W`, `5865MiB`, `99 %`) as a fact, or a gap where it holds none."""
        value = number(cell)
        if value is None:
            if cell.strip():
                self.unread(subject, name, cell, line)
        else:
            self.put(subject, name, value, line, text)

    def value(self, subject: str, name: str) -> Value:
        """What was read so far."""
        fact = self.facts.get((subject, name))
        return None if fact is None else fact.value

    def items(self) -> Iterable[Fact | Gap]:
        """All facts and gaps; growth where a card's used memory only rose over at least four readings."""
        for subject, used in self.readings.items():
            rises = all(a <= b for a, b in pairwise(used))
            if len(used) >= 4 and rises and used[-1] > used[0]:
                read = self.facts[subject, "memory_used_mib"]
                self.put(subject, "memory_growth_mib", used[-1] - used[0], read.line or 0, read.text)
        return [*self.facts.values(), *self.gaps.values()]


def number(text: str) -> float | int | None:
    """The number at the beginning of a cell; None for `N/A` and the like."""
    text = text.strip()
    if text.casefold() in NOTHING or text in FAULT:
        return None
    found = _NUMBER.search(text)
    if not found or found.start() > 2:
        return None
    return float(found[0]) if "." in found[0] else int(found[0])


def plain(text: str) -> str | None:
    """A text value; None for `N/A` and the like."""
    text = text.strip()
    return None if text.casefold() in NOTHING or text in FAULT else text
