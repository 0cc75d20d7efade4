"""A notebook as one program and back: code cells joined under markers, magics as comments, the JSON around them byte for byte."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_MARK = "# dstune cell "
_MAGIC = "# dstune magic "
_MAGIC_LINE = re.compile(r"^(\s*)(?=[%!?])")
PYTHON_CELL = re.compile(r"%%(?:time|timeit|capture|prun|memit|mprun|debug)\b")
"""Magics whose cell is Python all the same."""
_STYLES: tuple[dict[str, Any], ...] = tuple(
    {"indent": indent, "ensure_ascii": ascii_, "separators": separators}
    for indent in (1, 2, 4, None)
    for ascii_ in (False, True)
    for separators in ((None,) if indent else (None, (",", ":")))
)


def is_notebook(path: str, text: str) -> bool:
    """Whether a text is a Jupyter notebook."""
    return path.endswith(".ipynb") or (text.lstrip().startswith("{") and '"nbformat"' in text[-400:])


def in_cells(text: str, change: Callable[[str], str | None]) -> str | None:
    """The notebook with its code changed by `change`; None where that gives None, mixes cells, or the JSON has a style of its own."""
    try:
        data = json.loads(text)
        cells = [c for c in data["cells"] if c.get("cell_type") == "code"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    tail = text[len(text.rstrip()) :]
    style = next((s for s in _STYLES if json.dumps(data, **s) + tail == text), None)
    if style is None:
        return None
    sources = ["".join(c["source"]) for c in cells]
    joined = "".join(f"{_MARK}{n}\n{_hidden(s)}\n" for n, s in enumerate(sources))
    after = change(joined)
    if after is None:
        return None
    parts = re.split(rf"(?m)^{_MARK}(\d+)\n", after)
    if parts[0].strip() or [int(n) for n in parts[1::2]] != list(range(len(cells))):
        return None
    for cell, old, new in zip(cells, sources, parts[2::2], strict=True):
        shown = _shown(new).removesuffix("\n")
        if shown != old:
            cell["source"] = shown if isinstance(cell["source"], str) else shown.splitlines(keepends=True)
    return json.dumps(data, **style) + tail


def with_magics(text: str, change: Callable[[str], str | None]) -> str | None:
    """A program as an editor exports it from a notebook (`# %%`, `!pip install …`), changed by `change`; magics are comments for it."""
    if not re.search(r"(?m)^\s*[%!]", text):
        return change(text)
    with suppress(SyntaxError, ValueError):
        ast.parse(text)
        return change(text)
    after = change("\n".join(_MAGIC_LINE.sub(rf"\1{_MAGIC}", line) for line in text.split("\n")))
    return None if after is None else _shown(after)


def _shown(source: str) -> str:
    return re.sub(rf"(?m)^(\s*){_MAGIC}", r"\1", source)


def _hidden(source: str) -> str:
    lines = source.split("\n")
    if lines[0].startswith("%%") and not PYTHON_CELL.match(lines[0]):  # the whole cell is not Python
        return "\n".join(f"{_MAGIC}{line}" for line in lines)
    return "\n".join(_MAGIC_LINE.sub(rf"\1{_MAGIC}", line) for line in lines)
