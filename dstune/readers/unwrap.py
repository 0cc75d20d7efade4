"""Messages that a console broke at its width, in one line again; every other line keeps its number."""

from __future__ import annotations

import re

LONGEST = 1 << 20
"""Longer texts are a server's own log, written without a console."""
_WIDE = 60
"""Characters from which a line may have been ended by the width of a console (the narrowest usual one has 80, less an indent)."""
_SIDE = re.compile(r"(?m)^(?P<head>[^\n]*\S)[ ]{2,}\w[\w.]*\.py:\d+[ ]*\n(?P<rest>(?:[ ]{6,}\S[^\n]*\n?)+)")
_BOX = re.compile(
    r"(?m)^[ ]*╰─+╯[ ]*\n(?P<head>[\w.]*(?:Error|Exception|Interrupt|Exit)\b[^\n]*)\n(?P<rest>(?:[^\s╭╰│][^\n]*\n?){1,12})"
)
_TORCH = re.compile(
    r"(?P<head>out of memory\.\s+Tried to allocate [^\n]*)\n"
    r"(?P<rest>(?:[^\S\n]*\S[^\n]*\n){0,11}?[^\n]*(?:avoid fragmentation|environment-variables\)|reserved in total by PyTorch\)|by PyTorch but unallocated)[^\n]*)"
)
_FRESH = re.compile(r"\s*(?:Traceback \(most|File [\"']|\[?\d{4}-\d\d|\[?\d\d:\d\d:\d\d|INFO|WARN|ERROR|DEBUG|[$#>] )")


def unwrapped(text: str) -> str:
    """The text with the messages of Rich's log handler, of its tracebacks and of torch's allocator each in one line."""
    if len(text) > LONGEST:
        return text
    if ".py:" in text:
        text = _SIDE.sub(_beside, text)
    if "╯" in text:
        text = _BOX.sub(_below, text)
    if "Tried to allocate" in text:
        text = _TORCH.sub(_allocator, text)
    return text


def _allocator(match: re.Match[str]) -> str:
    lines = match["rest"].split("\n")
    return match[0] if any(_FRESH.match(line) for line in lines) else _one(match["head"], lines, [])


def _beside(match: re.Match[str]) -> str:
    lines = match["rest"].removesuffix("\n").split("\n")
    indent = len(lines[0]) - len(lines[0].lstrip())
    taken = 0
    for line in lines:
        if len(line) - len(line.lstrip()) != indent or _FRESH.match(line):
            break
        taken += 1
    if not taken:
        return match[0]
    tail = "\n" if match["rest"].endswith("\n") else ""
    return _one(match["head"], lines[:taken], lines[taken:]) + tail


def _below(match: re.Match[str]) -> str:
    lines = match["rest"].removesuffix("\n").split("\n")
    taken, before = 0, match["head"]
    for line in lines:
        if len(before.rstrip()) < _WIDE or _FRESH.match(line):
            break
        taken, before = taken + 1, line
    if not taken:
        return match[0]
    start = match[0][: match.start("head") - match.start()]
    tail = "\n" if match["rest"].endswith("\n") else ""
    return start + _one(match["head"], lines[:taken], lines[taken:]) + tail


def _one(head: str, joined: list[str], rest: list[str]) -> str:
    """One line, and as many empty ones as it took before."""
    return "\n".join([" ".join([head.rstrip(), *(line.strip() for line in joined)]), *("" for _ in joined), *rest])
