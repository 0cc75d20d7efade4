"""Matches every signature against a text in one pass, in bounded memory, with line numbers (how: `scan_pass`)."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from typing import IO, Protocol

from dstune.catalog.signatures import ZERO, Signature, blurred, signatures
from dstune.errors import UnobservableError
from dstune.lang import say
from dstune.model import Fact, Hit
from dstune.readers.scan_pass import KEEP, Pass
from dstune.readers.scan_text import clean, shown, values

__all__ = ["BLOCK", "KEEP", "Scanner", "blocks", "clean", "open_log", "scanner", "shown", "values"]
BLOCK = 1 << 20


class _Finder:
    """Rows whose fixed texts are in a line, all lines at once; `zeros`: in a template."""

    def __init__(self, rows: list[Signature], zeros: bool) -> None:
        import ahocorasick_rs

        wanted: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
        for number, row in enumerate(rows):
            for text, others in row.literals:
                wanted.setdefault(text.translate(ZERO) if zeros else text, []).append((number, () if row.multiline else others))
        self._zeros, self._of = zeros, list(wanted.values())
        self._encoded: dict[int, list[tuple[int, list[bytes]]]] = {}
        self._automaton = ahocorasick_rs.BytesAhoCorasick([text.encode() for text in wanted]) if wanted else None

    def _rows(self, literal: int) -> list[tuple[int, list[bytes]]]:
        """Rows of a fixed text, each with the texts that must be there too."""
        found = self._encoded[literal] = [
            (number, [(text.translate(ZERO) if self._zeros else text).encode() for text in others])
            for number, others in self._of[literal]
        ]
        return found

    def __call__(self, texts: list[bytes]) -> dict[int, set[int]]:
        """Rows by the place of the line in the list."""
        found: dict[int, set[int]] = {}
        if self._automaton is None:
            return found
        place, end = -1, -1
        text, rows = b"", set[int]()
        for literal, start, _ in self._automaton.find_matches_as_indexes(b"\n".join(texts), overlapping=True):
            if start > end:  # matches come by where they end, and none reaches over a line end
                while start > end:
                    place += 1
                    end += len(texts[place]) + 1
                text, rows = texts[place], set()
            for number, also in self._encoded.get(literal) or self._rows(literal):
                if number not in rows:
                    for other in also:
                        if other not in text:
                            break
                    else:
                        rows.add(number)
                        found[place] = rows
        return found


class Scanner:
    """The signatures of one kind of text (`log`, `app`, …), ready to run."""

    def __init__(self, rows: Iterable[Signature]) -> None:
        self.rows = list(rows)
        self._patterns: list[re.Pattern[str] | None] = [None] * len(self.rows)
        self._exact: dict[int, tuple[str, ...]] = {}
        self._values: dict[int, tuple[bytes, ...] | None] = {}
        self._blurred: dict[int, re.Pattern[str] | None] = {}

    @cached_property
    def in_lines(self) -> _Finder:
        """Finds rows in lines."""
        return _Finder(self.rows, zeros=False)

    @cached_property
    def in_templates(self) -> _Finder:
        """Finds rows in templates."""
        return _Finder(self.rows, zeros=True)

    def scan(self, blocks: Iterable[tuple[int, str | bytes]], kind: str, source: str) -> tuple[list[Hit], list[Fact]]:
        """Hits of rules and facts of log lines, in line order. `blocks` yields (number of the first line, text up to a line end)."""
        run = Pass(self, kind, source)
        for first, text in blocks:
            run.block(first, text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        return run.found()

    def pattern(self, number: int) -> re.Pattern[str]:
        """The full expression of a row, compiled when first needed."""
        found = self._patterns[number]
        if found is None:
            found = self._patterns[number] = re.compile(self.rows[number].pattern, re.MULTILINE)
        return found

    def maybe(self, number: int, text: str) -> bool:
        """Whether a line that has a row's fixed text but for the digits can match."""
        exact = self._exact.get(number)
        if exact is None:
            fixed = tuple(text for text, _ in self.rows[number].literals)
            exact = self._exact[number] = fixed if any(t != t.translate(ZERO) for t in fixed) else ()
        if not exact:
            return True
        return any(one in text for one in exact)

    def telling(self, number: int, text: bytes) -> list[tuple[int, int]]:
        """The places of a template where a row tells one digit from another."""
        found = []
        for fixed, _ in self.rows[number].digits:
            part = fixed.encode()
            at = text.find(part)
            while at >= 0:
                found.append((at, at + len(part)))
                at = text.find(part, at + 1)
        return found

    def values(self, number: int) -> tuple[bytes, ...] | None:
        """What must be somewhere in a line for a row to tell its digits from others; None where that may be anything."""
        if number not in self._values:
            digits = self.rows[number].digits
            known = all(choices for _, choices in digits)
            self._values[number] = tuple(text.encode() for _, choices in digits for text in choices) if known else None
        return self._values[number]

    def blurred(self, number: int) -> re.Pattern[str] | None:
        """The expression of a row for templates, made when first needed."""
        if number not in self._blurred:
            self._blurred[number] = blurred(self.rows[number].pattern)
        return self._blurred[number]


@cache
def scanner(kind: str) -> Scanner:
    """The scanner of a kind of text."""
    return Scanner(s for s in signatures() if s.kind in (kind, "any"))


class Readable(Protocol):
    """What gives bytes in pieces."""

    def read(self, n: int, /) -> bytes:
        """Up to `n` bytes; none at the end."""
        ...


def blocks(stream: Readable, progress: Callable[[int], None] | None = None) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, bytes) of a stream in blocks of about 1 MB that end at a line end.

    Lines of more than 4 MB are cut. UTF-16 is known by its mark and becomes UTF-8.
    """
    line, done, rest, encoding = 1, 0, b"", ""
    while True:
        read = stream.read(BLOCK)
        done += len(read)
        if not encoding:
            encoding = "utf-16" if read[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
            if encoding == "utf-16":
                stream = io.BytesIO((read + stream.read(256 * BLOCK)).decode("utf-16", "replace").encode())
                read = stream.read(BLOCK)
            read = read.removeprefix(b"\xef\xbb\xbf")
        data = rest + read
        if not data:
            return
        cut = len(data) if not read or (b"\n" not in data and len(data) > 4 * BLOCK) else data.rfind(b"\n") + 1
        if cut:
            yield line, data[:cut]
            line += data.count(b"\n", 0, cut)
        rest = data[cut:]
        if progress is not None:
            progress(done)
        if not read:
            return


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
