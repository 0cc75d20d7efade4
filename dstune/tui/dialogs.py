"""What stands above a screen for a moment: the question before anything is written, and the keys."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.command import CommandPalette
from textual.events import Click
from textual.screen import ModalScreen
from textual.widgets import Static

from dstune.lang import say
from dstune.tui.draw import click, plainly
from dstune.tui.panel import harmless


class Once(ModalScreen[Any]):
    """A dialog that leaves once, however many keys came before it was gone (a paste, a held key)."""

    left = False

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Closes with the answer; a second answer is no answer."""
        if self.left:
            nothing: AwaitComplete = AwaitComplete.nothing()  # type: ignore[no-untyped-call]
            return nothing
        self.left = True
        return super().dismiss(result)


class Palette(CommandPalette, Once):
    """The command palette, which may be paged before its list was ever laid out (a terminal of three lines)."""

    def _action_command_list(self, action: str) -> None:
        with contextlib.suppress(KeyError, IndexError):
            super()._action_command_list(action)


class Confirm(Once):
    """Asks before anything is written, naming the files."""

    BINDINGS: ClassVar[list[Any]] = [Binding("y,enter", "answer(True)", "yes"), Binding("n,escape,q", "answer(False)", "no")]
    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm Static { width: 90%; max-width: 76; height: auto; max-height: 90%; border: heavy $warning; padding: 0 1; background: $surface; }
    Confirm Static.plain { border: ascii $warning; }
    """

    def __init__(self, question: str, plain: bool = False) -> None:
        super().__init__()
        self.question, self.plain = question, plain

    def compose(self) -> ComposeResult:
        """The question and its keys."""
        text = harmless(Text(self.question + "\n\n"), "?")
        text.append(say(" y yes ", " y 是 "), click("screen.answer(True)", "reverse")).append("  ")
        text.append(say(" n no ", " n 否 "), click("screen.answer(False)", "reverse"))
        yield Static(plainly(text) if self.plain else text, classes="plain" if self.plain else "")

    def action_answer(self, yes: bool) -> None:
        """Closes with the answer."""
        self.dismiss(yes)


class Help(Once):
    """All keys; any key or click closes it."""

    DEFAULT_CSS = """
    Help { align: center middle; }
    Help Static { width: auto; max-width: 100%; height: auto; border: round $accent; padding: 0 1; background: $surface; }
    Help Static.plain { border: ascii $accent; }
    """

    def __init__(self, text: str, plain: bool = False) -> None:
        super().__init__()
        self.text, self.plain = text, plain

    def compose(self) -> ComposeResult:
        """The keys."""
        text = Text(self.text)
        yield Static(plainly(text) if self.plain else text, classes="plain" if self.plain else "")

    def on_key(self, event: Any) -> None:
        """Any key closes."""
        event.stop()
        self.dismiss(None)

    def on_click(self, _: Click) -> None:
        """So does a click."""
        self.dismiss(None)
