"""Where the fixed texts of signatures are in a block of bytes, all at once; a sieve is made anew for the log that runs through it."""

from __future__ import annotations

import marshal
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from dstune.catalog.alike import IN_ID
from dstune.catalog.signatures import Fixed, Literals, Owners, Signature, as_bytes, by_text, openings, rarest, seen_on_its_line

if TYPE_CHECKING:
    from dstune.readers.scan import Scanner

Found = list[tuple[int, int, int]]
"""(number of the text, where it begins, where it ends), in the order of the ends."""


class Sieve:
    """Fixed texts and their rows. A table of 40 MB (`Implementation.DFA`) would be no faster on logs, and take 0.1 s to make."""

    def __init__(self, words: Sequence[bytes], owners: Sequence[Owners | bytes]) -> None:
        """`owners` may be marshalled."""
        self.words = words
        self._of = owners
        self.made: list[Owners | None] = [None] * len(words)
        self.direct: dict[int, int] = {}
        """Texts that only one row of facts has, at the beginning of each of its matches; filled by `Adapted`."""
        self._automaton: Any = None
        self._short = 0

    def aim(self, rows: set[int]) -> None:
        """Fills `direct` with the texts that only one of these rows has."""
        every = ((text, self.owners(text)) for text in range(len(self.words)))
        self.direct = {text: of[0][0] for text, of in every if len(of) == 1 and of[0][0] in rows}

    def find(self, data: bytes) -> Found:
        """Every place of every text."""
        if self._automaton is None:
            if len(data) <= SHORT and self._short < SHORTS:
                self._short += 1
                return self._find_in_short(data)
            self._automaton = automaton(self.words)
        found: Found = self._automaton.find_matches_as_indexes(data, overlapping=True)
        return found

    def _find_in_short(self, data: bytes) -> Found:
        """As `find`, with the texts alone whose beginning is there: they are made an automaton in a tenth of the time."""
        heads = {data[at : at + _HEAD] for at in range(len(data))}
        near = [n for n, word in enumerate(self.words) if len(word) < _HEAD or word[:_HEAD] in heads]
        found = automaton([self.words[n] for n in near]).find_matches_as_indexes(data, overlapping=True) if near else []
        return [(near[text], begin, end) for text, begin, end in found]

    def owners(self, text: int) -> Owners:
        """The rows of a text."""
        made = self.made[text]
        if made is None:
            of = self._of[text]
            made = self.made[text] = marshal.loads(of) if isinstance(of, bytes) else of
        return made


def automaton(words: Sequence[bytes]) -> Any:
    """What finds all these texts in one pass."""
    import ahocorasick_rs

    return ahocorasick_rs.BytesAhoCorasick(words)


def sieve_of(rows: Iterable[tuple[int, Fixed]]) -> Sieve:
    """A sieve of the fixed texts of rows."""
    texts = by_text(rows)
    return Sieve(list(texts), list(texts.values()))


SHORT = 1 << 15
"""Bytes of a text up to which an automaton of all texts (15 ms) would cost more than it spares."""
SHORTS = 8
"""So many such texts in one process get one of their own."""
_HEAD = 4
_DIGIT = re.compile("[0-9]")
_MISSES = 20
"""Lines in which a text leads to nothing, before it is found out whether digits count for its rows, which takes 0.4 ms each."""
_LONGEST = 4000
"""Bytes of a line that is remembered."""
_KEPT = 12 << 20
"""Bytes of lines that are remembered."""
FIRST = 1 << 18
"""Bytes after which a sieve is made anew for the first time; then each time that four times as much came, at most every 128 MB."""
FEW = 12
"""Times that a row's texts may come in a piece of a log before rarer ones are looked for."""
BUSY = 150
"""Texts in a piece above which a sieve is made anew: each costs about a microsecond."""


class Adapted:
    """The sieve of one pass: rows that want no more leave it, and rows whose texts come all the time in this log look for others.

    Server logs hold few kinds of lines. What is rare in general may be in each line here, while another text of the same expression is
    not there at all.
    """

    def __init__(self, rows: Sequence[Signature], sieve: Sieve) -> None:
        self._rows, self.sieve = rows, sieve
        self._direct: set[int] = set()
        self._chosen: list[Fixed | None] = []
        self._size, self._due = 0, FIRST
        self._tried: Counter[int] = Counter()
        self.sure: tuple[dict[int, bool], dict[int, bool]] = {}, {}
        """Of lines without and with ids: by text whether one can speak for those like it, as is clear from all its rows."""
        self._idle: dict[bytes, set[int]] = {}
        self._misses: Counter[bytes] = Counter()
        self._kept = 0

    def saw(self, data: bytes, found: Found, full: set[int]) -> bool:
        """Counts a piece of a log; whether the sieve is another one now."""
        self._size += len(data)
        if self._size < self._due:
            return False
        self._due = min(4 * self._due, self._due + (128 << 20))
        if len(found) < BUSY:
            return False
        busy: Counter[int] = Counter()
        for text, times in Counter(text for text, _, _ in found).items():
            for row, _ in self.sieve.owners(text):
                busy[row] += times
        self._chosen = self._chosen or [as_bytes(seen_on_its_line(row)) for row in self._rows]
        for row in full:
            self._chosen[row] = None
        sample = data[:_SAMPLE]
        often = cache(lambda text: sample.count(text.encode("utf-8", "surrogatepass")))
        for row, times in busy.most_common(_MANY):
            known = self._chosen[row]
            if times <= FEW or known is None or self._rows[row].multiline or self._tried[row] > 1:
                continue
            self._tried[row] += 1
            begins = () if self._rows[row].cause or times < _OFTEN else _begins(self._rows[row].pattern)
            if begins:
                self._chosen[row] = as_bytes(begins)
                self._direct.add(row)
                continue
            now = rarest(self._rows[row].pattern, often, shortest=2)
            if now and sum(often(text) for text, _ in now) * 2 * len(data) < times * len(sample):
                self._chosen[row] = as_bytes(now)
        self.sure, self._idle, self._kept = ({}, {}), {}, 0
        self.sieve = sieve_of((row, texts) for row, texts in enumerate(self._chosen) if texts)
        self.sieve.aim(self._direct)
        return True

    def idle(self, line: bytes) -> tuple[bytes, bool, set[int]]:
        """(a line as all like it are, whether it has ids, the texts that are known to lead to nothing there)."""
        if len(line) > _LONGEST:
            return b"", False, set()
        like = line.translate(_ZERO)
        known, ids = self._idle.get(like), False
        if known is None:
            like, ids = without_ids(line, like)
            known = self._idle.get(like) if ids else None
        return like, ids, set(known or ())

    def missed(self, text: int, like: bytes, ids: bool, scanner: Scanner) -> None:
        """Remembers a text that led to nothing in a line; the memory stays bounded."""
        sure = self.sure[ids].get(text)
        if sure is None:
            word = self.sieve.words[text]
            self._misses[word] += 1
            if self._misses[word] >= _MISSES:
                self.sure[ids][text] = self._sure(text, scanner, ids)
        elif sure and like:
            known = self._idle.get(like)
            if known is None:
                self._kept += len(like) + 300
                if self._kept > _KEPT:
                    self._idle.clear()
                    self._kept = 0
                known = self._idle[like] = set()
            known.add(text)

    def _sure(self, text: int, scanner: Scanner, ids: bool) -> bool:
        unclear = IN_ID.search if ids else _DIGIT.search
        return all(
            scanner.wide(row, ids) is not False and not any(unclear(word.decode()) for any_of in also for word in any_of)
            for row, also in self.sieve.owners(text)
        )


_ZERO = bytes.maketrans(b"123456789", b"000000000")
_HEX = bytes.maketrans(b"123456789abcdef", b"0" * 15)
_IDS = (b"0" * 16, b"-".join(b"0" * n for n in (8, 4, 4, 4, 12)))
_MORE, _WORD = re.compile(rb"0*(?!\w)"), re.compile(rb"\w")


def without_ids(line: bytes, like: bytes) -> tuple[bytes, bool]:
    """A line whose digits are zero, its ids zero too (words of 16 hexadecimal digits or more, and UUIDs); whether it has any."""
    hexed, has = line.translate(_HEX), False
    for form in _IDS:
        at = hexed.find(form)
        while at >= 0:
            more = _MORE.match(hexed, at + len(form))
            end = more.end() if more is not None else at + len(form)
            if more is not None and not _WORD.match(hexed, max(0, at - 1), at):
                like, has = like[:at] + hexed[at:end] + like[end:], True
            at = hexed.find(form, end)
    return like, has


def _begins(pattern: str) -> Literals:
    """The texts with which each match begins, where bytes can be matched from there on; none where they cannot."""
    known = openings(pattern)
    odd = (r"\s", r"\S", r"\W", r"\D", "[^", "(?<")  # may reach over a line end
    plain = pattern.isascii() and not any(sign in pattern.replace("(?P<", "") for sign in odd)
    if not plain or any(lead for _, lead in known):
        return ()
    return tuple((text, ()) for text, _ in known)


_OFTEN = 40
"""Times that a text of a row of facts comes in a piece from which on its lines are not looked at one by one."""
_MANY = 200
_SAMPLE = 1 << 16
"""Bytes in which texts are counted."""
