"""Facts of log lines: of each row only the lines that can count by its `keep` are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from dstune.catalog.signatures import log_facts
from dstune.catalog.vocabulary import normalise
from dstune.model import Fact, Value
from dstune.readers.scan_text import CUT, content, shown

if TYPE_CHECKING:
    from dstune.readers.scan import Scanner


class Variant:
    """Rows that match the same lines; `lines`: where they are in the block; `alike`: all are of one template."""

    __slots__ = ("alike", "facts", "lines", "rules")

    def __init__(self, rules: list[int], facts: list[int], alike: bool) -> None:
        self.rules, self.facts, self.alike = rules, facts, alike
        self.lines: list[int] = []


class LineFacts:
    """Facts of one pass; `full`: rows that want no more."""

    def __init__(self, scanner: Scanner, full: set[int]) -> None:
        self._scanner, self._full = scanner, full
        self._facts: dict[tuple[str, str, Any], tuple[Value, int, str]] = {}
        self._given: dict[int, set[str]] = {}  # rows that matched, and the names that they gave, where only the first counts

    def found(self, source: str) -> list[Fact]:
        """The facts, in the order in which they were first seen."""
        return [
            Fact(subject, name, value, source, line, shown(text))
            for (subject, name, _), (value, line, text) in self._facts.items()
        ]

    def note(self, touched: list[Variant], first: int, lines: list[bytes], dirty: bool) -> None:
        """Facts of a block: of each row only the lines that can count by its `keep`, in line order."""
        by_row: dict[int, list[Variant]] = {}
        for variant in touched:
            variant.facts = [row for row in variant.facts if row not in self._full]
            for row in variant.facts:
                by_row.setdefault(row, []).append(variant)
        events: dict[tuple[int, int], tuple[str, dict[str, Value]] | None] = {}
        for row, variants in by_row.items():
            keep, names = self._keeps(row)
            places = variants[0].lines if len(variants) == 1 else sorted(i for v in variants for i in v.lines)
            if row not in self._given:  # the first line sets the order of facts
                self._given[row] = set()
                events[places[0], row] = None
            if keep == "all":
                events.update(((i, row), None) for i in places)
            elif keep == "max":
                events.update(
                    ((i, row), None)
                    for v in variants
                    for i in (v.lines if dirty or not v.alike else self._peaks(row, v.lines, lines))
                )
            else:
                given = self._given[row] if keep == "first" else set()
                for i in places if keep == "first" else reversed(places):
                    read = events[i, row] = self._read(row, lines[i])
                    given.update(read[1])
                    if len(given) == names:
                        if keep == "first":
                            self._full.add(row)
                        break
        for i, row in sorted(events):
            self.keep(row, first + i, *(events[i, row] or self._read(row, lines[i])))
        for variant in touched:
            variant.lines = []

    def _keeps(self, row: int) -> tuple[str, int]:
        """(which lines of a row of facts must be seen, how many names it gives)."""
        fact = log_facts()[self._scanner.rows[row].way]
        mixed = any(name in _highest_and_other() for name in fact["set"])
        return "all" if mixed else fact.get("keep", "last"), len(fact["set"])

    def _read(self, row: int, line: bytes) -> tuple[str, dict[str, Value]]:
        """(the line, the values that a row of facts gives there, by full name)."""
        text = content(line)
        match = self._scanner.pattern(row).search(text)
        return text, self.of(row, match) if match else {}

    def of(self, row: int, match: re.Match[str]) -> dict[str, Value]:
        groups = match.groupdict()
        found: dict[str, Value] = {}
        for full, group in log_facts()[self._scanner.rows[row].way]["set"].items():
            raw: Value = groups.get(group) if isinstance(group, str) and group in groups else group
            value = None if raw is None else normalise(full, raw)
            if value is not None:
                found[full] = value
        return found

    def keep(self, row: int, number: int, text: str, found: dict[str, Value]) -> None:
        """Adds the facts of a line, by the row's `keep`: last (default), first, max, or all."""
        keep = log_facts()[self._scanner.rows[row].way].get("keep", "last")
        for full, value in found.items():
            subject, _, name = full.partition(".")
            key = (subject, name, number if keep == "all" else None)
            old = self._facts.get(key)
            if old is None or not (keep == "first" or (keep == "max" and _number(old[0]) >= _number(value))):
                self._facts[key] = (value, number, text)

    def _peaks(self, row: int, places: list[int], lines: list[bytes]) -> Iterable[int]:
        """Of lines of one template those with the highest number in a row's groups; all, where that is not plain to see."""
        line = lines[places[0]]
        if self._scanner.rows[row].digits or not line.isascii() or len(line) > CUT:
            return places
        match = self._scanner.pattern(row).search(line.decode())
        groups = log_facts()[self._scanner.rows[row].way]["set"].values()
        spans = [match.span(group) for group in groups if match and group in match.re.groupindex]
        try:
            return [max(places, key=lambda i: float(lines[i][a:b])) for a, b in spans if a >= 0]
        except ValueError:  # "1,024", "14.5 GiB"
            return places


@cache
def _highest_and_other() -> frozenset[str]:
    """Names of facts that one row gives by its highest value and another otherwise: each line counts."""
    by_keep: dict[bool, set[str]] = {True: set(), False: set()}
    for row in log_facts():
        by_keep[row.get("keep", "last") == "max"].update(row["set"])
    return frozenset(by_keep[True] & by_keep[False])


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
