"""A screen as an SVG that looks the same in every viewer: no font from a network, each wide letter and each run of blocks at its own place."""

from __future__ import annotations

import asyncio
import html
import re
from typing import TYPE_CHECKING

from rich.cells import cell_len

from dstune.tui.draw import BLOCKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dstune.tui.app import Monitor

FONT = "'DejaVu Sans Mono', 'Noto Sans Mono CJK SC', Menlo, Consolas, monospace"
"""Fonts that have the signs, and Chinese letters; the one that textual names has neither, and is fetched."""
CELL, LINE, RISE = 12.2, 24.4, 18.5
"""Width and height of a cell in the SVG, and how far the baseline is below its top."""
_TEXT = re.compile(
    r'<text class="([^"]*-r\d+)" x="([\d.]+)" y="([\d.]+)" textLength="[\d.]+" (clip-path="[^"]*")>(.*?)</text>', re.S
)
_WIDE = re.compile("[\u1100-\u115f\u2e80-\uffef]|[^\u1100-\u115f\u2e80-\uffef]+")
"""Letters of two cells one by one, all others together."""
_RUN = re.compile(f"([{BLOCKS}▌░])\\1*|\\S+(?: \\S+)*")


async def picture(app: Monitor, size: tuple[int, int], keys: tuple[str, ...] = (), title: str = "dstune") -> str:
    """Runs the app without a terminal until the feed's last sample (live: a diagnosed one) and the log are in, presses the keys, and draws."""
    async with app.run_test(size=size) as pilot:
        for _ in range(600):
            await pilot.pause(0.05)
            seen = app.state.ended or (app.feed.live and app.state.diagnosed and app.state.samples > 3)
            if seen and app.follower.read():
                break
        await pilot.pause()
        app.judge_again()
        await settled(app)
        app.view.chosen = 0
        await pilot.press(*keys)
        await settled(app)
        app.note = ""
        app.draw()
        await pilot.pause()
        return portable(str(app.export_screenshot(title=title)))


async def settled(app: Monitor) -> None:
    """Until no worker runs; one that a newer one replaced is no failure here."""
    while any(not worker.is_finished for worker in app.workers):
        await asyncio.sleep(0.01)


def portable(svg: str) -> str:
    """The SVG without what viewers disagree on: fetched fonts, leading blanks, the width of letters, the seams between blocks."""
    svg = re.sub(r"@font-face\s*{[^}]*}", "", svg)
    svg = re.sub(r"font-family: *[\"']?Fira Code[^;]*;", f"font-family: {FONT};", svg)
    return _TEXT.sub(lambda m: "".join(_placed(m[1], float(m[2]), float(m[3]), m[4], html.unescape(m[5]))), svg)


def _placed(style: str, x: float, y: float, clip: str, text: str) -> Iterator[str]:
    """One run of equal style in pieces, each where its cells are."""
    text = text.replace("\xa0", " ")
    for run in _RUN.finditer(text):
        at, piece = x + CELL * cell_len(text[: run.start()]), run[0]
        if piece[0] in BLOCKS + "▌░":
            yield _block(style, at, y - RISE, piece)
            continue
        for part in _WIDE.findall(piece):
            words = part.strip()
            first = at + CELL * part.index(words)
            at += CELL * cell_len(part)
            if not words:
                continue
            shown = html.escape(words).replace(" ", "&#160;")
            yield f'<text class="{style}" x="{first:.5g}" y="{y:.5g}" textLength="{CELL * cell_len(words):.5g}" {clip}>{shown}</text>'


def _block(style: str, x: float, top: float, run: str) -> str:
    """A run of one block sign as a rectangle."""
    width, height, shade = CELL * len(run), LINE, ""
    if run[0] == "▌":
        width = CELL * (len(run) - 0.5)
    elif run[0] == "░":
        shade = ' fill-opacity="0.3"'
    else:
        height = LINE * (BLOCKS.index(run[0]) + 1) / len(BLOCKS)
    return f'<rect class="{style}" x="{x:.5g}" y="{top + LINE - height:.5g}" width="{width:.5g}" height="{height:.4g}"{shade} shape-rendering="crispEdges"/>'
