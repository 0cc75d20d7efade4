"""Bars, curves, cells and numbers as rich text. Pure, but for NO_COLOR. Widths are terminal cells: a Chinese character takes two."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from functools import lru_cache

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.style import Style
from rich.text import Text

BLOCKS, PLAIN = "▁▂▃▄▅▆▇█", "_.-=+*#@"
LEAST = 0.004
"""Share of the whole from which a part of a bar is to be seen."""
TONE = {"error": "bold red", "warning": "yellow", "info": "cyan"}
MARK = {"error": "✖", "warning": "▲", "info": "●"}
"""Severity as a sign, so that it is seen without colours too."""
_ASCII = str.maketrans(
    {"✖": "X", "▲": "!", "●": "i", "▶": ">", "◀": "<", "▼": "v", "↳": "`", "→": "->", "←": "<-", "↑": "^", "↓": "v", "…": "...", "·": ".",
     "°": " ", "×": "x", "−": "-", "–": "-", "—": "-", "─": "-", "│": "|", "■": "#", "█": "#", "▌": "=", "░": ".", "≤": "<=", "≥": ">=", "≈": "~",
     "⏸": "||", "“": '"', "”": '"', "‘": "'", "’": "'", **dict(zip(BLOCKS, PLAIN, strict=True))}
)  # fmt: skip

Lines = list[Text]


def plainly(text: Text) -> Text:
    """The same without signs that an ASCII terminal lacks; letters of any script stay. Spans move with what grows."""
    if text.plain.isascii():
        return text
    out = Text(style=text.style, no_wrap=True)
    for piece, style in _pieces(text):
        word = piece.translate(_ASCII)
        out.append("".join(c if c.isascii() or c.isalpha() or cell_len(c) > 1 else "?" for c in word), style)
    return out


def _pieces(text: Text) -> list[tuple[str, Style | str]]:
    """Runs of one style. Spans may overlap; the later one wins, as when drawn."""
    cuts = sorted({0, len(text.plain), *(s.start for s in text.spans), *(s.end for s in text.spans)})
    out: list[tuple[str, Style | str]] = []
    for start, end in itertools.pairwise(cuts):
        styles = [s.style for s in text.spans if s.start <= start and end <= s.end]
        out.append((text.plain[start:end], _joined(styles) if styles else ""))
    return out


def _joined(styles: Sequence[str | Style]) -> Style | str:
    if len(styles) == 1:
        return styles[0]
    out = Style()
    for style in styles:
        out += Style.parse(style) if isinstance(style, str) else style
    return out


def fit(text: str, width: int) -> str:
    """At most `width` cells, with `…` where something was cut."""
    if width <= 0:
        return ""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def chopped(text: str, width: int) -> list[str]:
    """The text in pieces of at most `width` cells (10 at least) that lose nothing; a piece ends after a blank where one is near."""
    out = []
    while len(pieces := chop_cells(text, max(10, width)) or [""]) > 1:
        piece = pieces[0]
        at = piece.rfind(" ") + 1
        if at > len(piece) // 2 and text[len(piece)] != " ":
            piece = piece[:at]
        out.append(piece)
        text = text[len(piece) :]
    return [*out, pieces[0]]


def left(text: str, width: int) -> str:
    """Exactly `width` cells, cut or filled on the right."""
    return set_cell_size(fit(text, width), max(0, width))


def right(text: str, width: int) -> str:
    """Exactly `width` cells, filled on the left."""
    text = fit(text, width)
    return " " * max(0, width - cell_len(text)) + text


def beside(a: Lines, b: Lines, width_a: int, gap: int = 2) -> Lines:
    """Two columns of lines, the first `width_a` cells wide."""
    out = []
    for i in range(max(len(a), len(b))):
        line = Text(no_wrap=True).append_text(a[i]) if i < len(a) else Text(no_wrap=True)
        line.truncate(width_a)
        line.append(" " * (width_a - line.cell_len + gap))
        out.append(line.append_text(b[i]) if i < len(b) else line)
    return out


@lru_cache(maxsize=64)
def click(action: str, style: str = "") -> Style:
    """A style whose cells run an action of the app when clicked: `app.show('doctor')`."""
    return Style.parse(style) + Style(meta={"@click": action})


def level(share: float, warn: float = 0.8, bad: float = 0.95) -> str:
    """Style by how full something is."""
    return "green" if share < warn else "yellow" if share < bad else "red"


def bar(share: float, width: int, plain: bool = False, style: str = "") -> Text:
    """A bar of `width` cells filled by `share` (0 … 1)."""
    width, share = max(0, width), min(1.0, max(0.0, share))
    full, half, rest = ("#", "=", ".") if plain else ("█", "▌", "░")
    cells = share * width
    whole = int(cells)
    text = Text(no_wrap=True).append(full * whole, style or level(share))
    if whole < width:
        part = cells - whole >= 0.5
        text.append(half if part else rest, style or level(share) if part else "dim")
        text.append(rest * (width - whole - 1), "dim")
    return text


def parts(shares: Sequence[tuple[float, str, str]], width: int, plain: bool = False) -> Text:
    """A bar of several parts (share of the whole, style, letter); the rest is free."""
    text, used = Text(no_wrap=True), 0
    for cells, (_, style, letter) in zip(_cells([share for share, *_ in shares], width), shares, strict=True):
        text.append(sign(letter, plain, "█") * cells, style)
        used += cells
    return text.append(("." if plain else "░") * (width - used), "dim")


def sign(letter: str, plain: bool, block: str = "■") -> str:
    """What a part of a bar and its legend are drawn with: its letter where colours do not tell parts apart."""
    return letter if plain or os.environ.get("NO_COLOR") else block


def _cells(shares: Sequence[float], width: int) -> list[int]:
    """Cells of each part, rounded so that their sum is right; one that would vanish takes a cell from the largest."""
    ends = [min(width, round(width * sum(shares[: n + 1]))) for n in range(len(shares))]
    cells = [end - start for start, end in itertools.pairwise([0, *ends])]
    for number, share in enumerate(shares):
        most = max(range(len(cells)), key=lambda n: cells[n])
        if share > LEAST and not cells[number] and cells[most] > 1:
            cells[number], cells[most] = 1, cells[most] - 1
    return cells


def spark(values: Sequence[float | None], width: int, top: float = 100.0, plain: bool = False, style: str = "cyan") -> Text:
    """The newest `width` values as a line of blocks; None leaves a hole."""
    return graph(values, width, 1, top, plain, style)[0]


def graph(
    values: Sequence[float | None], width: int, height: int, top: float, plain: bool = False, style: str = "cyan"
) -> Lines:
    """The newest values as columns `height` lines high."""
    marks = PLAIN if plain else BLOCKS
    shown = list(values)[-width:] if width > 0 else []
    lines = []
    for row in range(height, 0, -1):
        line = " " * (width - len(shown))
        for value in shown:
            filled = min(1.0, max(0.0, (value or 0.0) / top if top else 0.0)) * height * 8
            here = int(filled - (row - 1) * 8)
            if row == 1 and value is not None:
                here = max(here, 1)  # a zero is a reading too; only what was not read is blank
            line += " " if value is None or here <= 0 else marks[min(7, here - 1)]
        lines.append(Text(line, style, no_wrap=True))
    return lines


def gib(mib: float | None) -> str:
    """`3.3G` of MiB."""
    return "-" if mib is None else f"{mib / 1024:.1f}G"


def num(value: object, unit: str = "", digits: int = 0) -> str:
    """A number with its unit, `-` for what is unknown."""
    return f"{value:,.{digits}f}{unit}" if isinstance(value, int | float) and not isinstance(value, bool) else "-"


def flow(items: Sequence[Text], width: int, gap: int = 3) -> Lines:
    """Items one after the other, in as many lines as they need."""
    lines = [Text(no_wrap=True)]
    for item in items:
        if lines[-1].cell_len and lines[-1].cell_len + gap + item.cell_len > width:
            lines.append(Text(no_wrap=True))
        if lines[-1].cell_len:
            lines[-1].append(" " * gap)
        lines[-1].append_text(item)
    return lines


def wrapped(text: str, width: int, style: str | Style = "", indent: str = "") -> Lines:
    """A paragraph in lines of at most `width` cells."""
    from dstune.report.text import wrap

    return [Text(line, style, no_wrap=True) for line in wrap(text, indent, max(10, width)).split("\n")]
