"""One line of text, or a few: without colours, as it may be shown, and its groups as values."""

from __future__ import annotations

import re

from dstune.catalog.vocabulary import to_mib, to_number
from dstune.model import Value
from dstune.redact import redact

CUT = 20_000
"""Characters of a line that expressions see."""
WINDOW = 4000
"""Characters before and after a line that rows reaching over line ends see."""
_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_ANSI_BYTES = re.compile(_ANSI.pattern.encode())
_NUMERIC = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def values(groups: dict[str, str | None]) -> dict[str, Value]:
    """Named groups as values: `*_mib` read as a size in MiB, numbers as numbers, the rest as text."""
    found: dict[str, Value] = {}
    for name, text in groups.items():
        if text is None:
            continue
        if name.endswith("_mib"):
            found[name] = to_mib(text)
        else:
            found[name] = to_number(text) if _NUMERIC.fullmatch(text.strip()) else text.strip()
    return found


def shown(text: str) -> str:
    """A line as it may be shown: redacted, at most 300 characters."""
    text = redact(text.strip()[:600])
    return text if len(text) <= 300 else text[:299] + "…"


def clean(text: str) -> str:
    """A text without colours and progress-bar returns; line ends stay where they were."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", " ")
    if "\0" in text:
        text = text.replace("\0", " ")
    return text


def cleaned(line: bytes) -> bytes:
    """As `clean` does it, of one line without its end."""
    if b"\x1b" in line:
        line = _ANSI_BYTES.sub(b"", line)
    if b"\r" in line:
        line = line.removesuffix(b"\r").replace(b"\r", b" ")
    return line.replace(b"\0", b" ") if b"\0" in line else line


def whole(line: bytes) -> str:
    """A line as text, cleaned."""
    return cleaned(line).decode("utf-8", "replace")


def content(line: bytes) -> str:
    """The part of a line that expressions see."""
    return whole(line)[:CUT]


def last_lines(lines: list[bytes], size: int) -> int:
    """Where the last lines begin that have `size` bytes together."""
    place = len(lines)
    while place and size > 0:
        place -= 1
        size -= len(lines[place]) + 1
    return place


def window(lines: list[bytes], place: int) -> tuple[str, int, int, int]:
    """(text around a line, where its first line is in `lines`, where a search in it begins, and ends)."""
    for enough in (WINDOW, 5 * WINDOW):  # bytes that hold so many characters
        begin, end, before, after = place, place + 1, 0, -1
        while begin and before < enough:
            begin -= 1
            before += len(lines[begin]) + 1
        while end < len(lines) and after < enough:
            after += len(lines[end]) + 1
            end += 1
        joined = b"\n".join(lines[begin:end])
        if joined.isascii() and b"\x1b" not in joined and b"\r" not in joined and b"\0" not in joined:
            high = before + len(lines[place]) + WINDOW
            return joined.decode(), begin, max(0, before - WINDOW), min(len(joined), high)
    if b"\x1b" in joined or b"\r" in joined or b"\0" in joined:
        parts = [whole(line) for line in lines[begin:end]]
    else:
        parts = [line.decode("utf-8", "replace") for line in lines[begin:end]]
    low = sum(map(len, parts[: place - begin])) + place - begin
    text = "\n".join(parts)
    return text, begin, max(0, low - WINDOW), min(len(text), low + len(parts[place - begin]) + WINDOW)
