"""Bars, lines and numbers as rich text. Pure; `plain` draws without Unicode blocks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

BLOCKS, PLAIN = "▁▂▃▄▅▆▇█", "_.-=+*#@"
_BAR = {False: ("█", "▌", "░"), True: ("#", "=", ".")}


def level(share: float, warn: float = 0.8, bad: float = 0.95) -> str:
    """Style by how full something is."""
    return "green" if share < warn else "yellow" if share < bad else "red"


def bar(share: float, width: int, plain: bool = False, style: str = "") -> Text:
    """A bar of `width` cells filled by `share` (0 … 1)."""
    share = min(1.0, max(0.0, share))
    full, half, rest = _BAR[plain]
    cells = share * width
    whole = int(cells)
    text = Text(full * whole, style or level(share))
    if whole < width:
        part = cells - whole >= 0.5
        text.append(half if part else rest, style if part else "dim")
        text.append(rest * (width - whole - 1), "dim")
    return text


def parts(shares: Sequence[tuple[float, str]], width: int, plain: bool = False) -> Text:
    """A bar of several parts (share, style); the rest is free."""
    text, used = Text(), 0
    for number, (share, style) in enumerate(shares):
        cells = min(width - used, max(int(share > 0.004), round(share * width)))
        text.append(("#=+*o"[number % 5] if plain else "█") * cells, style)
        used += cells
    text.append(("." if plain else "░") * (width - used), "dim")
    return text


def spark(values: Sequence[float | None], width: int, top: float = 100.0, plain: bool = False, style: str = "cyan") -> Text:
    """The newest `width` values as a line of blocks; None leaves a hole."""
    marks = PLAIN if plain else BLOCKS
    shown = list(values)[-width:]
    text = Text(" " * (width - len(shown)))
    for value in shown:
        if value is None:
            text.append(" ")
        else:
            text.append(marks[min(len(marks) - 1, int(min(1.0, max(0.0, value / top if top else 0)) * len(marks)))], style)
    return text


def graph(
    values: Sequence[float | None], width: int, height: int, top: float, plain: bool = False, style: str = "cyan"
) -> Text:
    """The newest values as columns `height` lines high."""
    marks = PLAIN if plain else BLOCKS
    shown = list(values)[-width:]
    lines = []
    for row in range(height, 0, -1):
        line = " " * (width - len(shown))
        for value in shown:
            filled = min(1.0, max(0.0, (value or 0.0) / top)) * height * 8
            here = int(filled - (row - 1) * 8)
            line += " " if value is None or here <= 0 else marks[min(7, here - 1)]
        lines.append(line)
    return Text("\n".join(lines), style)


def gib(mib: float | None) -> str:
    """`3.3G` of MiB."""
    return "-" if mib is None else f"{mib / 1024:.1f}G"


def num(value: object, unit: str = "", digits: int = 0) -> str:
    """A number with its unit, `-` for what is unknown."""
    return f"{value:,.{digits}f}{unit}" if isinstance(value, int | float) and not isinstance(value, bool) else "-"
