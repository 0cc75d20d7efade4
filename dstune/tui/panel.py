"""The one widget that screens draw into: lines of rich text, of which only those that changed are painted again."""

from __future__ import annotations

import re
from typing import ClassVar

from rich.text import Text
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from dstune.tui.draw import Lines, plainly

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys, or what turns the order of letters: a log may hold anything, and so may the name of a process."""


def harmless(text: Text, sign: str = "\ufffd") -> Text:
    """The text with a sign in place of each character that would command the terminal; a C1 control in a log swallows the screen."""
    if _CONTROL.search(text.plain):
        text.plain = _CONTROL.sub(lambda m: m[0] if m[0] == "\n" else sign, text.plain)
    return text


class Panel(ScrollView, can_focus=False):
    """Dumb: it shows what it is given and scrolls. At once a second most lines stay as they are, and cost nothing."""

    DEFAULT_CSS = "Panel { height: 1fr; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }"
    ALLOW_SELECT: ClassVar[bool] = False

    def __init__(self, id: str, plain: bool = False) -> None:
        super().__init__(id=id)
        self._lines: Lines = []
        self._strips: dict[int, Strip] = {}
        self._plain = plain

    def show(self, lines: Lines) -> None:
        """The lines from now on."""
        if self._plain:
            lines = [plainly(line) for line in lines]
        old, self._lines = self._lines, lines
        if len(old) != len(lines):
            self.virtual_size = Size(self.size.width, len(lines))
            self._strips.clear()
            self.refresh()
            return
        top, bottom = self.scroll_offset.y, self.scroll_offset.y + self.size.height
        for y, (a, b) in enumerate(zip(old, lines, strict=True)):
            if a is b or (a.plain == b.plain and a.style == b.style and a.spans == b.spans):
                continue
            self._strips.pop(y, None)
            if top <= y < bottom:
                self.refresh(Region(0, y - top, self.size.width, 1))

    def show_row(self, row: int) -> None:
        """Scrolls so far that this line is seen."""
        height = self.size.height
        if row < self.scroll_offset.y:
            self.scroll_to(y=row, animate=False)
        elif row >= self.scroll_offset.y + height:
            self.scroll_to(y=row - height + 1, animate=False)

    def notify_style_update(self) -> None:
        """Another theme: every line anew."""
        super().notify_style_update()
        self._strips.clear()

    def render_line(self, y: int) -> Strip:
        """One line of what is seen."""
        row, width = y + self.scroll_offset.y, self.size.width
        if row >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        strip = self._strips.get(row)
        if strip is None:
            line = harmless(
                Text().append_text(self._lines[row]), "?" if self._plain else "\ufffd"
            )  # a text without spans would be drawn without its style
            strip = Strip(line.render(self.app.console, end="")).apply_style(self.rich_style)
            self._strips[row] = strip
        return strip.extend_cell_length(width, self.rich_style).crop(0, width)
