"""Errors that a program gives its user as the answer and writes nowhere: its log is silent then."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dstune.model import Fact
from dstune.readers.app_seen import Seen

_BROAD = frozenset(("Exception", "BaseException", "RuntimeError", "OutOfMemoryError"))
_TELLS = frozenset(
    ("print", "print_exc", "print_exception", "exception", "error", "warning", "critical", "log", "capture_exception", "write")
)
"""Last names of calls that put an error into a log or on a console."""


def smells(seen: Seen) -> Iterator[Fact]:
    """`app.error_as_answer`, once for each place."""
    answering = [g.call.node for g in seen.generations] + [c.node for c in seen.completions]
    for handler in (n for n in seen.index.nodes if isinstance(n, ast.ExceptHandler)):
        if handler.name and _broad(seen, handler) and _given(handler) and not _told(seen, handler):
            attempt = seen.index.parent[handler]
            around = seen.index.inside(handler, ast.FunctionDef, ast.AsyncFunctionDef)
            if isinstance(attempt, ast.Try) and around is not None and _answers(seen, attempt, answering):
                yield seen.smell("error_as_answer", handler)


def _broad(seen: Seen, handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or seen.index.dotted(kind).rsplit(".", 1)[-1] in _BROAD for kind in kinds)


def _given(handler: ast.ExceptHandler) -> bool:
    """Whether the exception itself is (a part of) what is returned, yielded or sent as an HTTP error, which no server logs."""
    for node in (n for statement in handler.body for n in ast.walk(statement)):
        match node:
            case ast.Return(value=value) | ast.Yield(value=value) if value is not None:
                pass
            case ast.Raise(exc=ast.Call(func=ast.Name(id="HTTPException") | ast.Attribute(attr="HTTPException")) as value):
                pass
            case _:
                continue
        if any(isinstance(n, ast.Name) and n.id == handler.name for n in ast.walk(value)):
            return True
    return False


def _told(seen: Seen, handler: ast.ExceptHandler) -> bool:
    for node in (n for statement in handler.body for n in ast.walk(statement)):
        match node:
            case ast.Raise(exc=None):
                return True
            case ast.Call(func=func):
                name = seen.index.dotted(func)
                if name.rsplit(".", 1)[-1] in _TELLS or "log" in name.lower():
                    return True
    return False


def _answers(seen: Seen, attempt: ast.Try, answering: list[ast.Call]) -> bool:
    """Whether the answer is made under this `try`, here or in a function of this file that it calls."""
    calls = [n for statement in attempt.body for n in ast.walk(statement) if isinstance(n, ast.Call)]
    if any(call in answering for call in calls):
        return True
    called = [f for call in calls if (f := seen.function_of(call.func)) is not None]
    return any(seen.within(node, f) for start in called for f in seen.reach(start) for node in answering)
