"""The condition language of the recipes: Python expressions over fact names, three-valued.

Allowed: `and or not`, comparisons (chained too), `in`, arithmetic, constants, lists, names of the form `family.name`, and
`x is unknown` / `x is not unknown`. Nothing can be called. A name that was not read is `UNKNOWN`; it travels through every
operator except where the other side decides (`false and unknown` is false, `true or unknown` is true). Text compares
without regard to case; `Version` compares by its numbers.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from functools import cache, total_ordering
from typing import Any

from dstune.errors import RecipeError


class _Unknown:
    """The third truth value."""

    def __repr__(self) -> str:
        return "unknown"

    def __bool__(self) -> bool:
        raise TypeError("unknown is neither true nor false")


UNKNOWN = _Unknown()
Lookup = Callable[[str], Any]

_NUMBER = re.compile(r"\d+")
_VERSION = re.compile(r"\d+(?:\.\d+)*")


@total_ordering
class Version:
    """A version or any dotted number (driver, CUDA, compute capability), compared by its leading numbers.

    `Version("12.4") == "12.4.0"`; what follows the numbers (`rc1`, `+cu124`) is kept for printing and ignored.
    """

    __slots__ = ("parts", "text")

    def __init__(self, text: object) -> None:
        self.text = str(text)
        found = _VERSION.search(self.text)
        self.parts = tuple(int(n) for n in _NUMBER.findall(found.group())) if found else ()

    def _key(self, other: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
        theirs = other.parts if isinstance(other, Version) else Version(other).parts
        width = max(len(self.parts), len(theirs))
        return self.parts + (0,) * (width - len(self.parts)), theirs + (0,) * (width - len(theirs))

    def __eq__(self, other: object) -> bool:
        mine, theirs = self._key(other)
        return mine == theirs

    def __lt__(self, other: object) -> bool:
        mine, theirs = self._key(other)
        return mine < theirs

    def __hash__(self) -> int:
        return hash(self.parts)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return self.text


def _contains(item: Any, box: Any) -> bool:
    if isinstance(box, list | tuple):
        return any(_equal(item, b) for b in box)
    return str(item).casefold() in str(box).casefold()


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, str) and isinstance(b, str):
        return a.casefold() == b.casefold()
    return bool(a == b)


_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: _equal,
    ast.NotEq: lambda a, b: not _equal(a, b),
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: _contains,
    ast.NotIn: lambda a, b: not _contains(a, b),
}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Expr:
    """A parsed condition: `names` it reads, `__call__(lookup)` → its value or `UNKNOWN`."""

    __slots__ = ("_run", "names", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        names: dict[str, None] = {}
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except SyntaxError as error:
            raise RecipeError(f"condition {text!r} is not readable", str(error)) from None
        self._run = _build(tree.body, names, text)
        self.names = tuple(names)

    def __call__(self, lookup: Lookup) -> Any:
        return self._run(lookup)


@cache
def parse(text: str) -> Expr:
    """The condition, parsed once per process. Raises `RecipeError` for what the language does not have."""
    return Expr(text)


def evaluate(text: str, lookup: Lookup) -> Any:
    """Value of a condition; "" is true."""
    return parse(text)(lookup) if text else True


def _build(node: ast.AST, names: dict[str, None], text: str) -> Callable[[Lookup], Any]:
    match node:
        case ast.Constant(value=value):
            return lambda lookup: value
        case ast.Attribute(value=ast.Name(id=family), attr=attr):
            name = f"{family}.{attr}"
            names[name] = None
            return lambda lookup: lookup(name)
        case ast.List(elts=elts) | ast.Tuple(elts=elts):
            parts = [_build(e, names, text) for e in elts]
            return lambda lookup: [p(lookup) for p in parts]
        case ast.BoolOp(op=op, values=values):
            return _boolean(isinstance(op, ast.And), [_build(v, names, text) for v in values])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _build(operand, names, text)
            return lambda lookup: UNKNOWN if (v := inner(lookup)) is UNKNOWN else not v
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _build(operand, names, text)
            return lambda lookup: UNKNOWN if (v := inner(lookup)) is UNKNOWN else -v
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Name(id="unknown")]):
            inner, wanted = _build(left, names, text), isinstance(op, ast.Is)
            return lambda lookup: (inner(lookup) is UNKNOWN) is wanted
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(o) in _COMPARE for o in ops):
            operands = [_build(n, names, text) for n in (left, *rest)]
            return _compare(operands, [_COMPARE[type(o)] for o in ops])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _compare([_build(left, names, text), _build(right, names, text)], [_ARITHMETIC[type(op)]])
    raise RecipeError(f"condition {text!r} uses {type(node).__name__}", "the condition language does not have it")


def _boolean(is_and: bool, parts: list[Callable[[Lookup], Any]]) -> Callable[[Lookup], Any]:
    def run(lookup: Lookup) -> Any:
        open_ = False
        for part in parts:
            value = part(lookup)
            if value is UNKNOWN:
                open_ = True
            elif bool(value) is not is_and:
                return not is_and
        return UNKNOWN if open_ else is_and

    return run


def _compare(operands: list[Callable[[Lookup], Any]], ops: list[Callable[[Any, Any], Any]]) -> Callable[[Lookup], Any]:
    def run(lookup: Lookup) -> Any:
        values = [o(lookup) for o in operands]
        if any(v is UNKNOWN for v in values):
            return UNKNOWN
        result: Any = True
        for op, a, b in zip(ops, values, values[1:], strict=False):
            try:
                result = op(a, b)
            except (TypeError, ZeroDivisionError):
                return UNKNOWN
            if result is False:
                return False
        return result

    return run
