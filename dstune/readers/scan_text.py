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
_ANSI_BYTES = re.compile(_ANSI.pattern.replace(r"[^\x07\x1b]", r"[^\x07\x1b\n]").encode())
_REDACTED = 4000
_NUMERIC = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def values(groups: dict[str, str | None]) -> dict[str, Value]:
    """Named groups as values: `*_mib` read as a size in MiB, numbers as numbers, the rest as text; `name2` is `name` in another alternative."""
    found: dict[str, Value] = {}
    for name, text in groups.items():
        if text is None:
            continue
        if name.endswith("_mib"):
            found[name] = to_mib(text)
        else:
            found[name] = to_number(text) if _NUMERIC.fullmatch(text.strip()) else text.strip()
        if groups.get(base := name.rstrip("23456789"), "") is None:
            found[base] = found[name]
    return found


def shown(text: str) -> str:
    """A line as it may be shown: redacted, at most 300 characters.

    Redacted first: a secret that a cut goes through no longer looks like one. Only very long lines are cut before, and of what is right
    before that cut nothing is shown.
    """
    text = text.strip()
    if len(text) > _REDACTED:
        text = redact(text[:_REDACTED])
        text = text[: max(0, len(text) - _REDACTED // 2)].ljust(301)
    else:
        text = redact(text)
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


def cleaned(data: bytes) -> bytes:
    """As `clean` does it, of whole lines as bytes."""
    if b"\x1b" in data:
        data = _ANSI_BYTES.sub(b"", data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").removesuffix(b"\r").replace(b"\r", b" ")
    return data.replace(b"\0", b" ") if b"\0" in data else data


def window(around: bytes, begin: int, end: int) -> tuple[str, int, int, int]:
    """(text around a line, where the line begins in it, where a search in it begins, and ends)."""
    for enough in (WINDOW, 5 * WINDOW):  # bytes that hold so many characters
        first = around.rfind(b"\n", 0, max(0, begin - enough)) + 1
        last = around.find(b"\n", end + enough)
        last = len(around) if last < 0 else last
        if around[first:last].isascii():
            break
    before, line = (around[a:b].decode("utf-8", "replace") for a, b in ((first, begin), (begin, end)))
    text = before + line + around[end:last].decode("utf-8", "replace")
    at = len(before)
    return text, at, max(0, at - WINDOW), min(len(text), at + len(line) + WINDOW)
