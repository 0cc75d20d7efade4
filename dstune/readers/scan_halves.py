"""A big file in two processes: each passes over one half, and what they found becomes one. `python -m` this module is the second one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from dstune.model import Fact, Hit
from dstune.readers.quoted import own_words
from dstune.readers.scan import blocks, scanner
from dstune.readers.scan_facts import LineFacts
from dstune.readers.scan_pass import AROUND, Part, Pass, joined

if TYPE_CHECKING:
    from dstune.readers.scan import Scanner

BIG = 48 << 20
"""Bytes of a file from which on a second process pays: it takes 0.2 s until it reads."""
_AHEAD = 5 << 20
"""Bytes that the first process has read while the second one starts."""
_LINE = 1 << 20
"""Bytes behind the middle in which a line must end."""


def scan_halves(
    path: str, source: str, kind: str = "log", progress: Callable[[int], None] | None = None
) -> tuple[list[Hit], list[Fact]] | None:
    """As `scanner(kind).scan(blocks(…))` of a plain file finds it; None where it is not one for two processes."""
    with open(path, "rb") as file:
        middle = _middle(file)
        if not middle:
            return None
        file.seek(0)
        command = [sys.executable, "-P", "-m", "dstune.readers.scan_halves", kind, os.path.abspath(path), str(middle), source]
        try:  # its standard input ends when this process does
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError:
            return None
        try:
            # the other half goes as fast
            seen = None if progress is None else lambda done: progress(2 * done)
            first = _half(scanner(kind), kind, source, file, 0, middle, seen)
            assert child.stdin is not None
            assert child.stdout is not None
            told = child.stdout.read()
            if child.wait():
                return None
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
    hits, facts, lines = pickle.loads(told)
    whole = joined(first, Part(hits, LineFacts.of_plain(facts), lines))
    return [hit for _, _, hit in whole.hits], whole.facts.found(source)


def _middle(file: IO[bytes]) -> int:
    """Where the second half begins, right behind a line end; 0 where the file is small, UTF-16, or has no line end there."""
    size = os.fstat(file.fileno()).st_size
    alone = size < BIG or not sys.executable or (os.cpu_count() or 1) < 2 or file.read(2) in (b"\xff\xfe", b"\xfe\xff")
    if alone:
        return 0
    first = size // 2 + min(_AHEAD, size // 20)
    file.seek(first)
    end = file.read(_LINE).find(b"\n")
    return first + end + 1 if end >= 0 else 0


class _Until:
    """A file up to a place."""

    def __init__(self, file: IO[bytes], begin: int, end: int | None) -> None:
        file.seek(begin)
        self._file, self._left = file, end if end is None else end - begin
        self.lines = 0

    def read(self, n: int, /) -> bytes:
        """Up to `n` bytes."""
        data = self._file.read(n if self._left is None else min(n, self._left))
        if self._left is not None:
            self._left -= len(data)
        self.lines += data.count(b"\n")
        return data


def _half(
    scan: Scanner, kind: str, source: str, file: IO[bytes], begin: int, end: int | None, progress: Callable[[int], None] | None
) -> Part:
    """What is in a part of a file; the text around it is read for the rows that reach over line ends."""
    file.seek(max(0, begin - AROUND))
    before = file.read(begin - file.tell())
    if begin > AROUND:
        before = before[before.find(b"\n") + 1 :]
    stream = _Until(file, begin, end)
    run = Pass(scan, kind, source, own_words(before))
    for number, data in blocks(stream, progress, marked=begin == 0):
        run.block(number, data)
    after = b""
    if end is not None:
        file.seek(end)
        after = file.read(2 * AROUND)
    part = run.part(own_words(after))
    part.lines = stream.lines
    return part


def _serve() -> int:
    """Passes over the second half, and tells what it found; ends when the first process does."""
    import signal
    import threading

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process gets it too, and ends this one
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(1)), daemon=True).start()
    kind, path, begin, source = sys.argv[1:]
    with open(path, "rb") as file:
        part = _half(scanner(kind), kind, source, file, int(begin), None, None)
    sys.stdout.buffer.write(pickle.dumps((part.hits, part.facts.plain(), part.lines)))
    sys.stdout.buffer.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(_serve())
