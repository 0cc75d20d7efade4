"""Expressions for all lines that differ in digits and ids only: what one line does not hold, none like it holds."""

from __future__ import annotations

import re
from typing import Any

from dstune.catalog.signatures import REPEATS, exact, joined, parsed


def wide(pattern: str, ids: bool = False) -> Any:
    """The tree of an expression for all lines that differ in digits only; `ids`: or in ids (words of 8 or more of `0-9a-f`) of one length.

    Where it finds nothing, the expression itself finds nothing in any of those lines. True: it is the expression itself; False: there is none.
    """
    tree = parsed(pattern, "")
    if ids and (tree.state.flags & re.IGNORECASE or not _clear_of_ids(tree)):
        return False
    wider = _wide(tree, _HEX if ids else _DIGITS)
    return wider is tree if wider is None or wider is tree else wider


def made(tree: Any) -> re.Pattern[str]:
    """The expression of a tree."""
    expression: re.Pattern[str] = re._compiler.compile(tree, re.MULTILINE)  # type: ignore[attr-defined]
    return expression


_DIGITS, _HEX = frozenset(b"0123456789"), frozenset(b"0123456789abcdef")
_PARSER: Any = re._parser  # type: ignore[attr-defined]


def _wide(tree: Any, of: frozenset[int]) -> Any:
    """A sequence in which each digit is any digit, and each class with one of `of` has all; itself where that is so; None where it cannot be."""
    ranges = [(_PARSER.RANGE, (48, 57)), *([(_PARSER.RANGE, (97, 102))] if of is _HEX else [])]
    items: list[tuple[Any, Any]] = []
    for op, value in tree:
        name, new = str(op), value
        if name == "LITERAL" and value in _DIGITS:
            op, new = _PARSER.IN, ranges[:1]
        elif name == "NOT_LITERAL" and value in of:
            return None
        elif name == "IN" and not _all_or_none(value, of):
            if str(value[0][0]) == "NEGATE":
                return None
            new = [*value, *ranges]
        elif name == "BRANCH":
            inner = [_wide(branch, of) for branch in value[1]]
            new = value if all(a is b for a, b in zip(inner, value[1], strict=True)) else (value[0], inner)
            if None in inner:
                return None
        elif name in ("SUBPATTERN", "ASSERT", "ASSERT_NOT", "ATOMIC_GROUP", *REPEATS):
            was = value if name == "ATOMIC_GROUP" else value[-1]
            now = _wide(was, of)
            if now is not was:
                if now is None or name in ("ASSERT_NOT", "ATOMIC_GROUP", "POSSESSIVE_REPEAT"):  # where a wider one finds less
                    return None
                new = (*value[:-1], now)
        elif name not in ("LITERAL", "NOT_LITERAL", "IN", "AT", "ANY"):
            return None
        items.append((op, new))
    same = all(a[1] is b[1] for a, b in zip(items, tree, strict=True))
    return tree if same else _PARSER.SubPattern(tree.state, items)


def _all_or_none(members: Any, of: frozenset[int]) -> bool:
    """Whether a class takes all characters of a set, or none."""
    taken: set[int] = set()
    for kind, member in members:
        if str(kind) == "CATEGORY":
            whole = {
                "CATEGORY_DIGIT": _DIGITS,
                "CATEGORY_NOT_DIGIT": of - _DIGITS,
                "CATEGORY_WORD": of,
                "CATEGORY_NOT_SPACE": of,
            }
            taken |= whole.get(str(member), frozenset())
        elif str(kind) != "NEGATE":
            low, high = member if str(kind) == "RANGE" else (member, member)
            taken.update(c for c in of if low <= c <= high)
    return len(taken & of) in (0, len(of))


IN_ID = re.compile(r"^[0-9a-f]+(?!\w)|(?<!\w)[0-9a-f]+$|(?<!\w)[0-9a-f]{4,}(?!\w)", re.ASCII)
"""Of a text that may be in an id, or reach into one."""


def _clear_of_ids(tree: Any) -> bool:
    """Whether no fixed text of an expression can be in an id, or reach into one."""
    runs: tuple[str, ...] = ("",)
    for op, value in [*tree, (None, None)]:
        name, fixed = str(op), exact(op, value, False)
        if name in ("ASSERT", "ASSERT_NOT") and not _clear_of_ids(value[1]):
            return False
        more = joined(runs, fixed)
        if more is not None:
            runs = more
            continue
        if any(map(IN_ID.search, runs)):
            return False
        runs = fixed or ("",)
        inner = value[1] if name == "BRANCH" else []
        if fixed is None and name == "SUBPATTERN":
            if value[1] or value[2]:  # it changes what letters mean
                return False
            inner = [value[3]]
        elif fixed is None and name in REPEATS:
            inner = [value[2]]
        elif fixed is None and name == "ATOMIC_GROUP":
            inner = [value]
        if not all(map(_clear_of_ids, inner)):
            return False
    return True
