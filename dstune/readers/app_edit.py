"""Code changes of users' programs by name. Each keeps formatting and comments and touches nothing else."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

from dstune.readers.app_edit_context import Context

ROOMS = (
    "keywords",
    "limit",
    "place",
    "prompt",
    "words",
    "answer",
    "run",
    "web",
    "gradio",
    "load",
    "stream",
    "endpoint",
    "chatbot",
    "pairs",
    "system",
    "workers",
    "guard",
    "state",
    "ends",
)
Change = Callable[[Any, Context], Any]
"""(program, context) → the edited module, or None where it does not apply or cannot be done safely."""


@cache
def edits() -> dict[str, Change]:
    """All edits by the name that recipes use in `edit = "…"`."""
    found: dict[str, Change] = {}
    for room in ROOMS:
        found.update(importlib.import_module(f"dstune.readers.app_edit_{room}").TABLE)
    return found


def edited(text: str, name: str, context: Context | None = None) -> str | None:
    """The program after one edit. None: nothing to do, not safe, or not parseable: a person has to look.

    The result always parses; `text` has `\\n` endings.
    """
    return _changed(text, lambda program: edits()[name](program, context or Context()))


def keyword_set(text: str, key: str, value: str | None) -> str | None:
    """The program with one setting (`generate.top_p`) written at its calls as Python source; value None removes it."""
    from dstune.readers.app_edit_keywords import set_keyword

    return _changed(text, lambda program: set_keyword(program, key, value))


def _changed(text: str, change: Callable[[Any], Any]) -> str | None:
    import libcst as cst

    from dstune.readers.app_edit_sites import Program
    from dstune.readers.app_edit_tree import Tree

    try:
        module = cst.parse_module(text)
    except (cst.ParserSyntaxError, UnicodeError):
        return None
    after = change(Program(Tree(module)))
    if after is None or after.code == text:
        return None
    code: str = after.code
    try:
        compile(code, "<edited>", "exec", flags=0x2000, dont_inherit=True)  # PyCF_ALLOW_TOP_LEVEL_AWAIT: notebooks have it
    except (SyntaxError, ValueError):
        return None
    return code
