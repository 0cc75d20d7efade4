"""Templates of `recipes/templates/`: strict, without escaping, in the language in use."""

from __future__ import annotations

import json
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any

from dstune.catalog import root
from dstune.lang import say

if TYPE_CHECKING:
    from jinja2 import Environment


def fill(name: str, **values: Any) -> str:
    """The text of `<name>.j2`; an undefined name is an error of ours."""
    return _environment().get_template(f"{name}.j2").render(say=say, **values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(root() / "templates"), undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )  # fmt: skip
    environment.filters["sh"] = shlex.quote
    environment.filters["exec"] = lambda words: json.dumps(list(words), ensure_ascii=False)
    environment.filters["yaml"] = yaml_scalar
    environment.filters["note"] = note
    environment.filters["number"] = _number
    environment.filters["req"] = lambda pin: f'"{pin}"' if "[" in pin else pin
    return environment


def yaml_scalar(value: Any) -> str:
    """A value as YAML 1.1 and 1.2 both read it: text in double quotes, `true`, numbers."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    return str(value) if isinstance(value, int | float) else json.dumps(str(value), ensure_ascii=False)


def _number(text: str) -> str | int | float:
    """A number that was typed, as a number."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def note(text: str, indent: int = 0, width: int = 118) -> str:
    """A text as comment lines of at most `width` columns (a Chinese character counts two)."""
    lead, lines, line, columns = " " * indent + "# ", [], "", 0
    for word in _pieces(" ".join(text.split())):
        size = sum(2 if ord(c) > 0x2E7F else 1 for c in word)
        if line and columns + size > width - len(lead):
            lines.append(line.rstrip())
            line, columns, word = "", 0, word.lstrip()
            size = sum(2 if ord(c) > 0x2E7F else 1 for c in word)
        line, columns = line + word, columns + size
    return "\n".join(lead + part for part in [*lines, line.rstrip()])


def _pieces(text: str) -> list[str]:
    """Where a line may break: before a space, and after a Chinese character that no closing mark follows."""
    out: list[str] = []
    for i, c in enumerate(text):
        wide = ord(c) > 0x2E7F
        if not i or c == " " or (wide and ord(text[i - 1]) > 0x2E7F and c not in "，。；：、）！？”"):
            out.append(c)
        else:
            out[-1] += c
    return out
