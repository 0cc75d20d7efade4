"""A conversation that grows with every turn and is never cut."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dstune.model import Fact
from dstune.readers.app_index import FUNCTIONS, MISSING
from dstune.readers.app_seen import Seen


def smells(seen: Seen) -> Iterator[Fact]:
    """One list that grows with every turn and is never cut: in a handler (shared by all users), or in a pasted fragment."""
    for (scope, name), rows in list(seen.index.assigned.items()):
        if scope is not None or name.startswith(".") or not any(isinstance(r.value, ast.List) for r in rows if not r.how):
            continue
        if not re.search(r"hist|messages|conv|dialog|chat|memory|context", name, re.I):
            continue
        grown = [n for n in seen.index.nodes if _appends(n, name)]
        homes = [seen.index.scope(n) for n in grown]
        handled = [h for h in homes if h is not None and any(h in seen.reach(x.function) for x in seen.handlers)]
        if grown and handled and not _trimmed(seen, name):
            yield seen.smell("history_grows", grown[0])
    if seen.snippet and not seen.loads:
        names = [
            n.func.value.id
            for n in seen.index.nodes
            if isinstance(n, ast.Call)
            and isinstance(n.func, ast.Attribute)
            and n.func.attr in ("append", "extend")
            and isinstance(n.func.value, ast.Name)
        ]
        for name in dict.fromkeys(names):
            if names.count(name) > 1 and re.search(r"hist|messages|conv|dialog|chat", name, re.I) and not _trimmed(seen, name):
                yield seen.smell("history_grows", next(n for n in seen.index.nodes if _appends(n, name)))


def _appends(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=n), attr="append" | "extend")) if n == name:
            return True
        case ast.AugAssign(target=ast.Name(id=n)) if n == name:
            return True
    return False


def _trimmed(seen: Seen, name: str) -> bool:
    for node in seen.index.nodes:
        match node:
            case ast.Subscript(value=ast.Name(id=n), slice=ast.Slice()) if n == name:
                return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id=n), attr="pop" | "clear" | "popleft" | "remove")) if n == name:
                return True
            case ast.Delete(targets=targets) if any(name in ast.unparse(t) for t in targets):
                return True
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=n)]) if n == name:
                return True
            case ast.keyword(arg="truncation", value=value) if seen.index.const(value) not in (False, MISSING):
                return True
            case ast.keyword(arg="maxlen"):
                return True
    for functions in seen.index.functions.values():
        for function in functions:
            if re.search(r"trim|truncate|shorten|summar|prune|reset|clear", function.name) and isinstance(function, FUNCTIONS):
                return True
    return False
