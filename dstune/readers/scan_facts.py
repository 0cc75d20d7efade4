"""Facts of log lines: of each row only the lines that can count by its `keep` are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from dstune.catalog.signatures import log_facts
from dstune.catalog.vocabulary import normalise
from dstune.model import Fact, Value
from dstune.readers.scan_text import CUT, shown

if TYPE_CHECKING:
    from dstune.readers.scan import Scanner

_NEAR = 160
"""Bytes from the beginning of a match on that must be ASCII."""
Places = list[tuple[int, int]]
"""(begin, end) of lines in a piece of bytes."""
_Key = tuple[str, str, int | None]
_Seen = tuple[Value, int, str]


class LineFacts:
    """Facts of one pass; `full`: rows that want no more."""

    def __init__(self, scanner: Scanner | None, full: set[int]) -> None:
        self._scanner, self._full = scanner, full
        self._facts: dict[_Key, _Seen] = {}
        self._set: set[_Key] = set()  # given by a row that keeps the last value: what was before does not count
        self._peaks: dict[_Key, _Seen] = {}  # the highest value behind that, of rows that keep it
        self.given: dict[int, set[str]] = {}  # rows that matched, and the names that they gave, where only the first counts
        self._tops: dict[int, list[float]] = {}
        self._patterns: dict[int, re.Pattern[bytes]] = {}

    def found(self, source: str) -> list[Fact]:
        """The facts, in the order in which they were first seen."""
        return [
            Fact(subject, name, value, source, line, shown(text))
            for (subject, name, _), (value, line, text) in self._facts.items()
        ]

    def note(self, by_row: dict[int, Places], first: int, data: bytes) -> None:
        """Facts of a piece: of each row only the lines that can count by its `keep`, in line order."""
        events: dict[tuple[int, int], tuple[str, dict[str, Value]]] = {}
        for row, places in by_row.items():
            keep, names = keeps(self._row(row))
            if row not in self.given:  # the first line sets the order of facts
                for begin, end in places:
                    text, match = self._look(row, data, begin, end)
                    if match is not None:
                        self.given[row] = set()
                        events[begin, row] = text, self.of(row, match)
                        break
                else:
                    continue
            if keep in ("all", "max"):
                for begin, end, match in self._higher(row, places, data, keep == "all"):
                    events[begin, row] = data[begin:end].decode("utf-8", "replace")[:CUT], self.of(row, match)
                continue
            given = self.given[row] if keep == "first" else set()
            for begin, end in places if keep == "first" else reversed(places):
                text, match = self._look(row, data, begin, end)
                if match is not None:
                    found = self.of(row, match)
                    events[begin, row] = text, found
                    given.update(found)
                if len(given) == names:
                    if keep == "first":
                        self._full.add(row)
                    break
        number, at = first, 0
        for begin, row in sorted(events):
            number, at = number + data.count(b"\n", at, begin), begin
            self.keep(row, number, *events[begin, row])

    def lines(self, row: int, starts: list[int], data: bytes) -> Places:
        """The lines of those places at which a row's matches begin that can count: by its `keep` thousands need not be read.

        The expression looks at no line end, so that the bytes can be matched where they are, as far as they are ASCII.
        """
        keep, names = keeps(self._row(row))
        if row in self.given and keep == "max":
            starts = self._highest(row, starts, data)
        elif row in self.given and keep == "last" and (names == 1 or self._constant(row)):
            starts = next((starts[-n:] for n in range(1, len(starts) + 1) if self._bytes(row).match(data, starts[-n])), starts)
        places: Places = []
        for start in starts:
            if not places or start >= places[-1][1]:
                end = data.find(b"\n", start)
                places.append((data.rfind(b"\n", 0, start) + 1, len(data) if end < 0 else end))
        return places

    def _constant(self, row: int) -> bool:
        """Whether each match of a row gives the same."""
        return self._bytes(row).groupindex.keys().isdisjoint(map(str, log_facts()[self._row(row)]["set"].values()))

    def _highest(self, row: int, starts: list[int], data: bytes) -> list[int]:
        """Of places at which matches begin those with a number above all before them, or one that is not plain to see."""
        pattern, tops = self._bytes(row), list(self._tops.get(row, ()))
        names = log_facts()[self._row(row)]["set"].values()
        groups = [pattern.groupindex[n] for n in names if isinstance(n, str) and n in pattern.groupindex]
        if not groups or len(tops) != len(groups):
            return starts
        match_at, found = pattern.match, []
        for start in starts:
            if not data[start - 1 if start else 0 : start + _NEAR].isascii():
                found.append(start)
                continue
            match = match_at(data, start)
            if match is None:
                continue
            try:
                for i, group in enumerate(groups):
                    number = float(match[group])
                    if number > tops[i]:
                        tops[i] = number
                        found.append(start)
                if match.end() > start + _NEAR:
                    found.append(start)
            except (TypeError, ValueError):
                found.append(start)
        return found

    def _bytes(self, row: int) -> re.Pattern[bytes]:
        assert self._scanner is not None
        made = self._patterns.get(row)
        if made is None:
            made = self._patterns[row] = re.compile(self._scanner.rows[row].pattern.encode(), re.MULTILINE)
        return made

    def of(self, row: int, match: re.Match[str]) -> dict[str, Value]:
        """The values that a row gives, by full name."""
        groups = match.groupdict()
        found: dict[str, Value] = {}
        for full, group in log_facts()[self._row(row)]["set"].items():
            raw: Value = groups.get(group) if isinstance(group, str) and group in groups else group
            value = None if raw is None else normalise(full, raw)
            if value is not None:
                found[full] = value
        return found

    def keep(self, row: int, number: int, text: str, found: dict[str, Value]) -> None:
        """Adds the facts of a line, by the row's `keep`: last (default), first, max, or all."""
        keep = log_facts()[self._row(row)].get("keep", "last")
        for full, value in found.items():
            subject, _, name = full.partition(".")
            key = (subject, name, number if keep == "all" else None)
            seen = (value, number, text)
            if keep in ("all", "last"):
                self._facts[key] = seen
                self._set.add(key)
                self._peaks.pop(key, None)
                continue
            old, peak = self._facts.get(key), self._peaks.get(key)
            if old is None or (keep == "max" and _number(old[0]) < _number(value)):
                self._facts[key] = seen
            if keep == "max" and (peak is None or _number(peak[0]) < _number(value)):
                self._peaks[key] = seen

    def join(self, then: LineFacts, lines: int) -> None:
        """Adds what a pass over the text behind this one's found; `lines`: how many this one has."""

        def moved(seen: _Seen) -> _Seen:
            return seen[0], seen[1] + lines, seen[2]

        for (subject, name, number), seen in then._facts.items():
            key, own = (subject, name, None if number is None else number + lines), (subject, name, number)
            old, peak = self._facts.get(key), then._peaks.get(own)
            if old is None or own in then._set:
                self._facts[key] = moved(seen)
            elif peak is not None and _number(old[0]) < _number(peak[0]):
                self._facts[key] = moved(peak)

    def plain(self) -> tuple[Any, ...]:
        """What a process tells another."""
        return self._facts, self._set, self._peaks

    @classmethod
    def of_plain(cls, told: tuple[Any, ...]) -> LineFacts:
        """The opposite of `plain`."""
        made = cls(None, set())
        made._facts, made._set, made._peaks = told
        return made

    def _row(self, row: int) -> int:
        assert self._scanner is not None
        return self._scanner.rows[row].way

    def _look(self, row: int, data: bytes, begin: int, end: int) -> tuple[str, re.Match[str] | None]:
        assert self._scanner is not None
        text = data[begin:end].decode("utf-8", "replace")[:CUT]
        return text, self._scanner.search(row, text)

    def _higher(self, row: int, places: Places, data: bytes, every: bool) -> Iterator[tuple[int, int, re.Match[str]]]:
        """Lines with a higher number than all before them, or one that is not plain to see ("1,024", "14.5 GiB"). Lines come in thousands."""
        assert self._scanner is not None
        pattern = self._scanner.pattern(row)
        search = pattern.search
        names = log_facts()[self._row(row)]["set"].values()
        groups = [pattern.groupindex[n] for n in names if isinstance(n, str) and n in pattern.groupindex]
        tops = self._tops.setdefault(row, [float("-inf")] * len(groups))
        for begin, end in places:
            match = search(
                data[begin:end].decode("utf-8", "replace") if end - begin <= CUT else self._look(row, data, begin, end)[0]
            )
            if match is None:
                continue
            rises = every or not groups
            try:
                for i, group in enumerate(groups):
                    number = float(match[group])
                    if number > tops[i]:
                        tops[i] = number
                        rises = True
            except (TypeError, ValueError):
                rises = True
            if rises:
                yield begin, end, match


@cache
def keeps(fact: int) -> tuple[str, int]:
    """(which lines of a row of facts must be seen, how many names it gives)."""
    table = log_facts()[fact]
    mixed = any(name in _highest_and_other() for name in table["set"])
    return "all" if mixed else table.get("keep", "last"), len(table["set"])


@cache
def _highest_and_other() -> frozenset[str]:
    """Names of facts that one row gives by its highest value and another otherwise: each line counts."""
    by_keep: dict[bool, set[str]] = {True: set(), False: set()}
    for row in log_facts():
        by_keep[row.get("keep", "last") == "max"].update(row["set"])
    return frozenset(by_keep[True] & by_keep[False])


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
