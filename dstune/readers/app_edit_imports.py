"""Import lines of a user's program: one more at the right place, a statement behind them, one that nothing needs any more."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import libcst as cst

from dstune.readers.app_edit_tree import Edits, Tree, dotted, statements, text_of


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


def torch_switch(tree: Tree, loads: Sequence[cst.CSTNode], line: str) -> cst.Module | None:
    """The module with a statement of torch (`torch.…`) behind the imports that run before these loads; None where none surely does.

    Inner blocks first: what a function imports is there when it goes on. Behind torch's own import, a guarded one
    (`try: import torch`) too, else behind that of transformers, which needs torch, with an `import torch` of its own.
    """
    blocks = [
        (over, n) for node in (loads[0], *tree.above(loads[0])) if (over := tree.parent(node)) and (n := _place(over, node))
    ]
    for number, (block, end) in enumerate(blocks):
        if not all(tree.within(load, block) for load in loads):
            continue
        lines = _body(block)[:end]
        guards = [s.body for s in lines if isinstance(s, cst.Try | cst.With) and isinstance(s.body, cst.IndentedBlock)]
        for package in ("torch", "transformers"):
            for body, upto in ((block, end), *((g, len(g.body)) for g in guards)):
                own = _imports(_body(body)[:upto])
                if any(_root(s) == package for s in own):
                    around = [s for outer, n in blocks[number + 1 :] for s in _imports(_body(outer)[:n])]
                    torch = next(filter(None, map(_torch, [*own, *_imports(lines), *around])), "")
                    text = line.replace("torch", torch, 1) if torch else f"import torch\n\n{line}"
                    return _set_behind(tree, body, upto, statements(tree, text))
    return None


def _body(block: cst.CSTNode) -> Sequence[Any]:
    return block.body if isinstance(block, cst.Module | cst.IndentedBlock) else ()


def _place(block: cst.CSTNode, node: cst.CSTNode) -> int:
    """How many statements of its block or module stand before this one; 0 for a node that is none."""
    return next((n for n, s in enumerate(_body(block)) if s is node), 0)


def _imports(lines: Sequence[Any]) -> list[Any]:
    return [small for line in lines if isinstance(line, cst.SimpleStatementLine) for small in line.body if _root(small)]


def _torch(small: Any) -> str:
    """What an import statement calls torch, "" where it does not bind it."""
    for alias in small.names if isinstance(small, cst.Import) else ():
        name = dotted(alias.name)
        if alias.asname is None and name.partition(".")[0] == "torch":
            return "torch"
        if alias.asname is not None and name == "torch":
            return dotted(alias.asname.name)
    return ""


def _set_behind(tree: Tree, block: cst.CSTNode, upto: int, new: Sequence[Any]) -> cst.Module:
    """Statements behind the last import of a block's first `upto` lines, the last of them set off by blank lines."""
    body = _body(block)
    at = max(n for n, line in enumerate(body[:upto]) if _imports([line])) + 1
    gap = [cst.EmptyLine(indent=False)]
    below = list(body[at:])
    if below and (not below[0].leading_lines or below[0].leading_lines[0].comment):
        below[0] = below[0].with_changes(leading_lines=[*gap, *below[0].leading_lines])
    put = [*body[:at], *new[:-1], new[-1].with_changes(leading_lines=gap), *below]
    edits = Edits()
    edits.add(block, lambda n: n.with_changes(body=put))
    return edits.made(tree.module)


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
