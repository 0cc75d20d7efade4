"""Matches every signature against a text in one pass, in bounded memory, with line numbers (how: `scan_pass`)."""

from __future__ import annotations

import codecs
import gzip
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import IO, Any, Protocol

from dstune.catalog.alike import made, wide
from dstune.catalog.signatures import Signature, as_bytes, openings, rows_of, seen_on_its_line
from dstune.errors import UnobservableError
from dstune.lang import say
from dstune.model import Fact, Hit
from dstune.readers.quoted import own_words
from dstune.readers.scan_pass import KEEP, Pass
from dstune.readers.scan_sieve import Sieve, sieve_of
from dstune.readers.scan_text import clean, shown, values

__all__ = ["BLOCK", "KEEP", "Scanner", "blocks", "clean", "open_log", "scanner", "shown", "values"]
BLOCK = 1 << 20


class Scanner:
    """The signatures of one kind of text (`log`, `app`, …), ready to run."""

    def __init__(self, rows: Sequence[Signature], sieve: Sieve | None = None) -> None:
        self.rows = rows
        self.sieve = sieve or sieve_of((number, as_bytes(seen_on_its_line(row))) for number, row in enumerate(rows))
        """Where the fixed texts of all rows are."""
        self._patterns: list[re.Pattern[str] | None] = [None] * len(self.rows)
        self._openings: dict[int, tuple[tuple[str, int], ...]] = {}
        self._wide: dict[tuple[int, bool], Any] = {}
        self._tries: Counter[int] = Counter()

    def scan(self, blocks: Iterable[tuple[int, str | bytes]], kind: str, source: str) -> tuple[list[Hit], list[Fact]]:
        """Hits of rules and facts of log lines, in line order. `blocks` yields (number of the first line, text up to a line end, clean where it is bytes)."""
        run = Pass(self, kind, source)
        for first, text in blocks:
            run.block(first, text if isinstance(text, bytes) else clean(text).encode("utf-8", "surrogatepass"))
        return run.found()

    def pattern(self, number: int) -> re.Pattern[str]:
        """The full expression of a row, compiled when first needed."""
        found = self._patterns[number]
        if found is None:
            found = self._patterns[number] = re.compile(self.rows[number].pattern, re.MULTILINE)
        return found

    def search(self, number: int, text: str) -> re.Match[str] | None:
        """The first match of a row in a line."""
        known = self._openings.get(number) if len(text) >= LONG else ()
        if known is None:
            self._tries[number] += 1
            if self._tries[number] > FEW:
                self._openings[number] = openings(self.rows[number].pattern)
        if not known:
            return self.pattern(number).search(text)
        starts: set[int] = set()
        for fixed, lead in known:
            at = text.find(fixed)
            while at >= 0:
                starts.update(range(max(0, at - lead), at + 1))
                at = text.find(fixed, at + 1)
        match = self.pattern(number).match
        return next((found for start in sorted(starts) if (found := match(text, start))), None)

    def wide(self, number: int, ids: bool) -> Any:
        """What `alike.wide` makes of a row."""
        known = self._wide.get((number, ids))
        if known is None:
            known = self._wide[number, ids] = wide(self.rows[number].pattern, ids)
        return known

    def never(self, number: int, ids: bool, text: str) -> bool:
        """Of a line in which a row finds nothing: whether it finds nothing in those like it either."""
        known = self.wide(number, ids)
        if isinstance(known, bool):
            return known
        if not isinstance(known, re.Pattern):
            known = self._wide[number, ids] = made(known)
        if known.search(text) is None:
            return True
        self._tries[~number] += 1
        if self._tries[~number] > MANY:
            self._wide[number, ids] = False
        return False


MANY = 200
"""Lines after which a row is no longer asked about lines like one."""
LONG = 300
"""Characters of a line from which on it pays to look first where a match can begin."""
FEW = 6
"""Long lines that a row meets before it is found out where its matches begin, which takes 0.4 ms."""


@cache
def scanner(kind: str) -> Scanner:
    """The scanner of a kind of text."""
    rows, texts, owners = rows_of(kind)
    return Scanner(rows, Sieve(texts, owners))


class Readable(Protocol):
    """What gives bytes in pieces."""

    def read(self, n: int, /) -> bytes:
        """Up to `n` bytes; none at the end."""
        ...


def blocks(stream: Readable, progress: Callable[[int], None] | None = None, marked: bool = True) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, bytes) of a log in blocks of about 1 MB that end at a line end, clean and without the prompts that it quotes.

    Lines of more than 4 MB are cut. UTF-16 is known by its mark and becomes UTF-8; `marked`: whether there may be one.
    """
    line, done, rest, start = 1, 0, b"", marked
    while True:
        read = stream.read(BLOCK)
        if start:
            start = False
            if read[:2] in (b"\xff\xfe", b"\xfe\xff"):
                stream = _Utf16(read, stream)
                read = stream.read(BLOCK)
            read = read.removeprefix(b"\xef\xbb\xbf")
        done += len(read)
        data = rest + read
        if not data:
            return
        cut = len(data) if not read or (b"\n" not in data and len(data) > 4 * BLOCK) else data.rfind(b"\n") + 1
        if cut:
            yield line, own_words(data[:cut])
            line += data.count(b"\n", 0, cut)
        rest = data[cut:]
        if progress is not None:
            progress(done)
        if not read:
            return


class _Utf16:
    """A stream of UTF-16 as UTF-8. `head`: what was read already."""

    def __init__(self, head: bytes, stream: Readable) -> None:
        self._head, self._stream = head, stream
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")

    def read(self, n: int, /) -> bytes:
        """About `n` bytes; none at the end."""
        text, ended = "", False
        while not (text or ended):
            read, self._head = self._head or self._stream.read(n), b""
            ended = not read
            text = self._decoder.decode(read, final=ended)
        return text.encode("utf-8", "surrogatepass")


def open_log(path: str) -> IO[bytes]:
    """A file's bytes, unpacked where it is gzip. Raises `UnobservableError`."""
    try:
        raw = open(path, "rb")  # noqa: SIM115  (the caller closes it)
        if raw.peek(2)[:2] == b"\x1f\x8b":
            return gzip.open(raw)  # type: ignore[return-value]
        return raw
    except OSError as error:
        raise UnobservableError(
            say(f"{path} cannot be read", f"无法读取 {path}"),
            error.strerror or str(error),
            say("check the path and its permissions", "检查路径和权限"),
        ) from None
