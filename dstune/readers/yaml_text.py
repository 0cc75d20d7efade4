"""YAML of strangers → trees, in bounded time and memory: aliases that multiply, nesting without end and huge numbers are refused."""

from __future__ import annotations

from typing import Any

from dstune.lang import say

LARGEST = 500_000
"""Characters. ruamel reads about 60 kB a second."""
DEEPEST = 200
MOST = 200_000
"""Values of a document, those that aliases repeat counted each time; `docker compose` has a like limit."""


class UnboundedError(ValueError):
    """A text that would cost too much to read; the message says why."""


def load(text: str) -> list[Any]:
    """The documents of a text, comments and line numbers kept. Raises ruamel's `YAMLError`, or `UnboundedError`."""
    from ruamel.yaml import YAML

    if len(text) > LARGEST:
        raise UnboundedError(say(f"{len(text) >> 10} kB are too long", f"{len(text) >> 10} kB 过长"))
    depth = 0
    for c in text:
        if c in "[{":
            depth += 1
            if depth > DEEPEST:
                raise UnboundedError(_deep())
        elif c in "]}" and depth:
            depth -= 1
    try:
        documents = list(YAML(typ="rt").load_all(text))
        sizes: dict[int, int] = {}
        if sum(_size(d, sizes) for d in documents) > MOST:
            raise UnboundedError(say("its aliases repeat too much", "别名重复展开过多"))
    except UnboundedError:
        raise
    except RecursionError:
        raise UnboundedError(_deep()) from None
    except (ValueError, ArithmeticError) as error:  # a number of 5,000 digits, a 99th month
        raise UnboundedError(str(error).partition(";")[0]) from None
    return documents


def _deep() -> str:
    return say("it is nested too deeply", "嵌套过深")


def _size(node: Any, sizes: dict[int, int]) -> int:
    if not isinstance(node, dict | list):
        return 1
    known = sizes.get(id(node))
    if known is None:
        sizes[id(node)] = MOST + 1  # what holds itself has no end
        parts = node.values() if isinstance(node, dict) else node
        known = sizes[id(node)] = 1 + sum(_size(part, sizes) for part in parts)
    return known
