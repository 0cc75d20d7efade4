"""Import lines of a user's program: one more at the right place, a statement behind them, one that nothing needs any more."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import libcst as cst

from dstune.readers.app_edit_tree import Edits, Tree, dotted, text_of


def add_import(module: cst.Module, text: str) -> cst.Module:
    """The module with an import line, after its last top-level import; a name of a `from` that is there already joins it."""
    wanted = cst.parse_statement(text, module.config_for_parsing)
    small = cst.ensure_type(wanted, cst.SimpleStatementLine).body[0]
    tree = Tree(module)
    if isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
        source, name = dotted(small.module), dotted(small.names[0].name)
        if tree.imported(source, name):
            return module
        for old in tree.find(cst.ImportFrom):
            if (
                dotted(old.module) == source
                and not isinstance(old.names, cst.ImportStar)
                and tree.function(old) is None
                and not old.relative
            ):
                edits = Edits()
                edits.put(old, old.with_changes(names=_joined(old.names, small.names[0])))
                return edits.made(module)
    elif isinstance(small, cst.Import) and tree.imported(dotted(small.names[0].name)):
        return module
    return module.with_changes(body=_with_import(list(module.body), wanted, _root(small)))


def after_imports(module: cst.Module, text: str) -> cst.Module | None:
    """The module with a statement behind its last top-level import; None where it imports nothing there."""
    body: list[Any] = list(module.body)
    places = [
        n for n, line in enumerate(body) if isinstance(line, cst.SimpleStatementLine) and any(_root(s) for s in line.body)
    ]
    if not places:
        return None
    gap = [cst.EmptyLine(indent=False)]
    line = cst.ensure_type(cst.parse_statement(text, module.config_for_parsing), cst.SimpleStatementLine)
    at = places[-1] + 1
    if at < len(body) and not body[at].leading_lines:
        body[at] = body[at].with_changes(leading_lines=gap)
    return module.with_changes(body=[*body[:at], line.with_changes(leading_lines=gap), *body[at:]])


def without_idle_import(module: cst.Module, before: str, name: str) -> cst.Module:
    """The module without `import name` where an edit took its last use; any other mention, in a comment too, keeps it."""
    word = rf"\b{name}\b"
    if len(re.findall(word, module.code)) != 1 or len(re.findall(word, before)) < 2:
        return module
    body = list(module.body)
    line: Any
    for at, line in enumerate(body[:-1]):
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
        if isinstance(small, cst.Import) and [dotted(a.name) for a in small.names] == [name] and not small.names[0].asname:
            if any(e.comment for e in line.leading_lines) or line.trailing_whitespace.comment:
                return module
            below: Any = body[at + 1]
            if line.leading_lines and not below.leading_lines:
                body[at + 1] = below.with_changes(leading_lines=line.leading_lines)
            return module.with_changes(body=[*body[:at], *body[at + 1 :]])
    return module


def _root(small: Any) -> str:
    """The package that an import line imports from."""
    if isinstance(small, cst.ImportFrom):
        return dotted(small.module).partition(".")[0]
    return dotted(small.names[0].name).partition(".")[0] if isinstance(small, cst.Import) else ""


def _with_import(body: list[Any], wanted: Any, package: str) -> list[Any]:
    """The module's statements with the import: one of the standard library stands with its own, before the others."""
    places: list[int] = []
    for number, line in enumerate(body):
        if isinstance(line, cst.SimpleStatementLine) and any(_root(s) for s in line.body):
            places.append(number)
        elif isinstance(line, cst.If | cst.FunctionDef | cst.ClassDef | cst.For | cst.While | cst.With):
            break
    if not places:
        first = body[0].body[0] if body and isinstance(body[0], cst.SimpleStatementLine) else None
        after = 1 if isinstance(first, cst.Expr) and text_of(first.value) else 0
        return [*body[:after], wanted, *body[after:]]
    standard = [n for n in places if _root(body[n].body[0]) in sys.stdlib_module_names]
    if package not in sys.stdlib_module_names or standard:
        at = max(standard if package in sys.stdlib_module_names else places) + 1
        return [*body[:at], wanted, *body[at:]]
    at, other = places[0], body[places[0]]
    gap = [cst.EmptyLine(indent=False)]
    return [
        *body[:at],
        wanted.with_changes(leading_lines=other.leading_lines),
        other.with_changes(leading_lines=gap),
        *body[at + 1 :],
    ]


def _joined(names: Sequence[cst.ImportAlias], new: cst.ImportAlias) -> list[cst.ImportAlias]:
    last = names[-1]
    if isinstance(last.comma, cst.Comma):  # a parenthesised list with a trailing comma
        between = names[-2].comma if len(names) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return [*names[:-1], last.with_changes(comma=between), new.with_changes(comma=last.comma)]
    between = names[-2].comma if len(names) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [*names[:-1], last.with_changes(comma=between), new]
