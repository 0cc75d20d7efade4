"""One pass of a scanner over blocks of whole lines.

The fixed texts of all signatures are looked for in a piece of bytes at once (`scan_sieve`); only lines that hold one meet full
expressions, and only those of the rows whose text it is. Rows that reach over line ends see the text around such a line. Rules want their
first 24 hits; a row that has them leaves the sieve.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from dstune.model import Fact, Hit
from dstune.readers.scan_facts import LineFacts
from dstune.readers.scan_sieve import Adapted
from dstune.readers.scan_text import CUT, WINDOW, shown, values, window

if TYPE_CHECKING:
    from dstune.readers.scan import Scanner

KEEP = 24
"""Hits kept per signature: the first ones. A line repeated a million times adds nothing."""
PIECE = 1 << 18
"""Bytes looked at in one go: what is found in them takes up to 130 times as many while it is read."""
_LONGEST = 4 * CUT
"""Bytes of a line that can hold what expressions see."""
AROUND = 5 * WINDOW
"""Bytes that hold the characters around a line."""
TRIES = 1000
"""Places at which a row that reaches over line ends is looked at, each a window of up to 8,000 characters: a line repeated 20,000
times took over a minute.
"""


@dataclass(slots=True)
class Part:
    """What a pass over a part of a log found: (line, row, hit), and facts; `lines`: how many it has."""

    hits: list[tuple[int, int, Hit]]
    facts: LineFacts
    lines: int = 0


@dataclass(slots=True)
class _Anchor:
    """A line with a text of a row that reaches over line ends; `begin` and `end` in the whole text."""

    line: int
    row: int
    begin: int
    end: int


class Pass:
    """What was found so far in a clean text. `before`: text before the first block, seen by rows that reach over line ends."""

    def __init__(self, scanner: Scanner, kind: str, source: str, before: bytes = b"") -> None:
        self._scanner, self._kind, self._source = scanner, kind, source
        self._adapted = Adapted(scanner.rows, scanner.sieve)
        self._hits: list[tuple[int, int, Hit]] = []
        self._counts: dict[int, int] = {}
        self._full: set[int] = set()  # rows that want no more
        self._facts = LineFacts(scanner, self._full)
        self._tail = before
        self._offset = len(self._tail)  # where the next block begins in the whole text
        self._open: list[_Anchor] = []  # lines whose surroundings are to be seen
        self._tries: dict[int, int] = {}
        self._seen: set[tuple[int, int]] = set()

    def block(self, first: int, data: bytes) -> None:
        """Whole lines; `first` is the number of the first one."""
        for piece in pieces(data):
            self._piece(first, piece)
            first += piece.count(b"\n")

    def found(self, after: bytes = b"") -> tuple[list[Hit], list[Fact]]:
        """Hits by line, and facts. `after`: text behind the last block, seen by rows that reach over line ends."""
        part = self.part(after)
        return [hit for _, _, hit in part.hits], part.facts.found(self._source)

    def part(self, after: bytes = b"") -> Part:
        """What was found, to be joined with what comes behind it."""
        self._look_around(after, last=True)
        self._hits.sort(key=itemgetter(0, 1))
        return Part(self._hits, self._facts)

    def _piece(self, first: int, data: bytes) -> None:
        sieve, full, rows, search = self._adapted.sieve, self._full, self._scanner.rows, self._scanner.search
        owners, made, found = sieve.owners, sieve.made, sieve.find(data)
        facts: dict[int, list[tuple[int, int]]] = {}
        number, at = first, 0  # the line at a place
        begin, end, seen, told, line, tried = 0, -1, "", "", set[int](), set[int]()
        like, ids, given, never = b"", False, self._facts.given, self._scanner.never
        idle, missed, all_sure = self._adapted.idle, self._adapted.missed, self._adapted.sure
        starts: dict[int, list[int]] = {text: [] for text in sieve.direct}
        counted = {text: places.append for text, places in starts.items()}.get
        for text, start, _ in found:
            if count := counted(text):  # nine in ten matches of a server's log
                count(start)
                continue
            if start >= end:  # matches come by where they end, and none reaches over a line end
                begin, end, seen, told, tried = data.rfind(b"\n", 0, start) + 1, data.find(b"\n", start), "", "", set()
                if end < 0:
                    end = len(data)
                like, ids, line = idle(data[begin:end])
            if text in line:
                continue
            line.add(text)
            nothing, sure = True, all_sure[ids].get(text)
            for row, also in made[text] or owners(text):
                if row in full:
                    continue
                if row in tried:
                    nothing = False
                    continue
                for any_of in also:
                    for other in any_of:
                        if data.find(other, begin, end) >= 0:
                            break
                    else:
                        break
                else:
                    tried.add(row)
                    if rows[row].multiline:
                        number, at = number + data.count(b"\n", at, begin), begin
                        self._open.append(_Anchor(number, row, self._offset + begin, self._offset + end))
                    else:
                        seen = seen or data[begin:end].decode("utf-8", "replace")[:CUT]
                        match = None if row in given else search(row, seen)
                        if match is None and row not in given:
                            if nothing and sure:
                                nothing = never(row, ids, seen)
                            continue
                        if match is None or not rows[row].cause:
                            facts.setdefault(row, []).append((begin, end))
                        else:
                            number, at = number + data.count(b"\n", at, begin), begin
                            told = told or shown(seen)
                            self._hit(row, number, match, told)
                    nothing = False
            if nothing:
                missed(text, like, ids, self._scanner)
        by_row: dict[int, list[int]] = {}
        for text, places in starts.items():
            if places:
                by_row.setdefault(sieve.direct[text], []).extend(places)
        for row, places in by_row.items():
            facts[row] = self._facts.lines(row, sorted(places), data)
        if facts:
            self._facts.note(facts, first, data)
        self._look_around(data)
        self._adapted.saw(data, found, full)

    def _hit(self, row: int, number: int, match: re.Match[str], text: str) -> None:
        of = self._scanner.rows[row]
        hit = Hit(of.cause, of.way, of.part, self._kind, self._source, number, text, values(match.groupdict()))
        self._hits.append((number, row, hit))
        self._counts[row] = self._counts.get(row, 0) + 1
        if self._counts[row] >= KEEP:
            self._full.add(row)

    def _look_around(self, data: bytes, last: bool = False) -> None:
        """Rows that reach over line ends, as far as the text behind their line is there. `data` comes behind what was seen."""
        if not self._open and len(data) >= AROUND:
            self._offset += len(data)
            self._tail = data[data.rfind(b"\n", 0, len(data) - AROUND) + 1 :]
            return
        around = self._tail + data
        shift = self._offset - len(self._tail)  # where `around` begins in the whole text
        self._offset += len(data)
        waiting: list[_Anchor] = []
        place, seen = -1, ("", 0, 0, 0)
        for anchor in sorted(self._open, key=lambda a: (a.line, a.row)):
            row = anchor.row
            if not last and self._offset - anchor.end < AROUND:
                waiting.append(anchor)
            elif row not in self._full:
                self._tries[row] = self._tries.get(row, 0) + 1
                if anchor.begin != place:
                    place, seen = anchor.begin, window(around, anchor.begin - shift, anchor.end - shift)
                self._search(row, anchor.line, *seen)
                if self._tries[row] >= TRIES:
                    self._full.add(row)
        self._open = waiting
        keep = min([self._offset, *(a.begin for a in waiting)]) - shift - AROUND
        self._tail = around[around.rfind(b"\n", 0, keep) + 1 :] if keep > 0 else around

    def _search(self, row: int, line: int, text: str, begin: int, low: int, high: int) -> None:
        literals = self._scanner.rows[row].literals
        if not any(fixed in text and all(any(t in text for t in any_of) for any_of in also) for fixed, also in literals):
            return
        match = self._scanner.pattern(row).search(text, low, high)
        if match is None:
            return
        at = match.start()
        number = line + text.count("\n", begin, at) if at >= begin else line - text.count("\n", at, begin)
        if (row, number) in self._seen:
            return
        self._seen.add((row, number))
        if len(self._seen) > 200_000:
            self._seen.clear()
        first, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        whole = text[first : end if end >= 0 else len(text)]
        if self._scanner.rows[row].cause:
            self._hit(row, number, match, shown(whole))
        else:
            self._facts.keep(row, number, whole, self._facts.of(row, match))


def pieces(data: bytes) -> Iterator[bytes]:
    """The text in pieces that end at line ends. Of lines so long that they are a piece only what expressions see is left."""
    begin = 0
    while begin < len(data):
        end = len(data) if len(data) - begin <= PIECE else data.rfind(b"\n", begin, begin + PIECE) + 1
        if end <= begin:  # no line end there
            end = data.find(b"\n", begin) + 1 or len(data)
            yield data[begin:end] if end - begin <= _LONGEST else data[begin : begin + _LONGEST] + data[end - 1 : end]
        else:
            yield data[begin:end] if begin or end < len(data) else data
        begin = end


def joined(first: Part, then: Part) -> Part:
    """What one pass over both parts finds, as far as rows keep the first hits; the lines of `then` are numbered from its own first one."""
    hits, counts, seen = [], dict[int, int](), set[tuple[int, int]]()
    for number, row, hit in [*first.hits, *((n + first.lines, row, hit) for n, row, hit in then.hits)]:
        if (row, number) not in seen and counts.get(row, 0) < KEEP:
            seen.add((row, number))
            counts[row] = counts.get(row, 0) + 1
            hits.append((number, row, hit if hit.line == number else replace(hit, line=number)))
    first.facts.join(then.facts, first.lines)
    return Part(sorted(hits, key=itemgetter(0, 1)), first.facts, first.lines + then.lines)
