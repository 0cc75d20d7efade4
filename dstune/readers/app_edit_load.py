"""Loads of model and tokenizer moved out of what runs per request."""

from __future__ import annotations

import builtins
from typing import Any

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_sites import Program, bound
from dstune.readers.app_edit_tail_parts import reads_of
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, parameters, walk, walk_shallow


def move_load_out(program: Program, context: Context) -> cst.Module | None:
    """Statements that load a model or tokenizer leave the function that runs per request and stand before it, once.

    Only where they need nothing of the function: arguments are literals or module-level names. A loader function that is called
    per request is called once instead.
    """
    tree = program.tree
    loads = [*program.loads, *program.tokenizer_loads, *program.pipelines]
    loaders = {f.name.value: f for c in loads if (f := tree.function(c)) is not None and _is_loader(tree, f)}
    calls = [c for c in loads if (f := tree.function(c)) is not None and f.name.value not in loaders]
    calls += [c for c in tree.calls if callee(c)[1] in loaders and not callee(c)[0] and tree.function(c) is not None]
    edits = Edits()
    moved: dict[cst.CSTNode, list[Any]] = {}
    for function in dict.fromkeys(f for c in calls if (f := tree.function(c)) is not None):
        if function.name.value in loaders or function.name.value in ("__init__", "setup", "lifespan", "main", "load", "_load"):
            continue
        if any("cache" in tree.code(d) or "contextmanager" in tree.code(d) for d in function.decorators):
            continue
        mine = [c for c in calls if tree.function(c) is function]
        lines = _lines(tree, function, mine)
        if lines is None or len(_block(function)) == len(lines) + _docstring(function):
            continue
        names = [n for line in lines for n in _targets(line)]
        if not _independent(tree, function, lines, names) or any(_taken(tree, n, function) for n in names):
            continue
        top = _top(tree, function)
        needs = [loaders[callee(c)[1]] for c in mine if callee(c)[1] in loaders]
        place = _place(tree, top, lines, needs)
        if place is None:
            continue
        for line in lines:
            edits.drop(line)
        first = next(line for line in _block(function)[_docstring(function) :] if line not in lines)
        if _block(function)[_docstring(function)] in lines:  # no blank line where the body begins now
            edits.add(first, lambda n: n.with_changes(leading_lines=[e for e in n.leading_lines if e.comment]))
        moved.setdefault(place, []).extend(lines)
    for place, lines in moved.items():
        _put_before(edits, place, lines)
    return edits.made(tree.module) if edits else None


def _is_loader(tree: Tree, function: cst.FunctionDef) -> bool:
    """A function that only loads: it returns what it loaded and takes no request."""
    returns = [r for r in walk_shallow(function.body, cst.Return) if r.value is not None]
    loaded = {n for a in walk_shallow(function.body, cst.Assign) for n in [dotted(a.targets[0].target)] if n}
    given = [{n.value for n in walk(r.value, cst.Name)} for r in returns]
    direct = [r for r in returns if any(callee(c)[1] in ("from_pretrained", "pipeline") for c in walk(r, cst.Call))]
    required = [p for p in function.params.params if p.default is None]
    generates = any(callee(c)[1] == "generate" for c in walk(function, cst.Call))
    return not generates and not required and bool(returns) and (bool(direct) or all(g and g <= loaded for g in given))


def _lines(tree: Tree, function: cst.FunctionDef, calls: list[cst.Call]) -> list[Any] | None:
    """The statements of the function's own block that load, and those that finish what was loaded, in order."""
    block = _block(function)
    lines: list[Any] = []
    for call in calls:
        line = tree.statement(call)
        if line not in block or not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return None
        assigned = bound(tree, call) or [
            dotted(e.value)
            for a in walk(line, cst.Assign)
            if isinstance(a.targets[0].target, cst.Tuple)
            for e in a.targets[0].target.elements
        ]
        if not assigned or not all(n and "." not in n for n in assigned):
            return None
        if line not in lines:
            lines.append(line)
    names = {n for line in lines for n in _targets(line)}
    for line in block:
        if (
            line not in lines
            and isinstance(line, cst.SimpleStatementLine)
            and len(line.body) == 1
            and _finishes(line.body[0], names)
        ):
            lines.append(line)
    if not any(walk(function.body, cst.Global)):
        return [line for line in block if line in lines]
    return None


def _finishes(small: Any, names: set[str]) -> bool:
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        left, name = callee(small.value)
        return left in names and name in ("eval", "to", "cuda", "half", "requires_grad_")
    if isinstance(small, cst.Assign):
        target = dotted(small.targets[0].target)
        if "." in target:
            return target.partition(".")[0] in names
        return target in names and isinstance(small.value, cst.Call) and callee(small.value)[0] == target
    return False


def _targets(line: Any) -> list[str]:
    small = line.body[0]
    if isinstance(small, cst.Assign):
        target = small.targets[0].target
        if isinstance(target, cst.Tuple):
            return [dotted(e.value) for e in target.elements]
        return [n] if (n := dotted(target)) and "." not in n else []
    if isinstance(small, cst.AnnAssign):
        return [n] if (n := dotted(small.target)) else []
    return []


def _block(function: cst.FunctionDef) -> list[Any]:
    return list(function.body.body) if isinstance(function.body, cst.IndentedBlock) else []


def _docstring(function: cst.FunctionDef) -> int:
    return 1 if function.get_docstring() is not None else 0


def _independent(tree: Tree, function: cst.FunctionDef, lines: list[Any], names: list[str]) -> bool:
    """Whether the lines read nothing that the function makes, and nothing else in it gives these names a value."""
    own = {*parameters(function)}
    for assign in walk(function.body, cst.Assign):
        line = tree.statement(assign)
        if line in lines:
            continue
        targets = {n.value for t in assign.targets for n in walk(t.target, cst.Name)}
        if targets & set(names) and not any(isinstance(t.target, cst.Attribute | cst.Subscript) for t in assign.targets):
            return False
        own |= targets
    own |= {n.value for w in walk(function.body, cst.AsName) for n in walk(w, cst.Name)}
    own |= {n.value for f in walk(function.body, cst.For) for n in walk(f.target, cst.Name)}
    read = {n for line in lines for n in reads_of(tree, line)}
    return not ((read - set(names)) & own) and "self" not in read


def _taken(tree: Tree, name: str, function: cst.FunctionDef) -> bool:
    """Whether the module or another function already means something by a name."""
    if any(f.name.value == name for f in tree.functions) or any(tree.function(a) is None for a in tree.assigned(name)):
        return True
    return any(name in parameters(f) for f in tree.functions if tree.within(function, f) and f is not function)


def _top(tree: Tree, function: cst.FunctionDef) -> cst.CSTNode:
    """The module-level statement that holds the function."""
    here: cst.CSTNode = function
    while True:
        up = tree.parent(here)
        if up is None or isinstance(up, cst.Module):
            return here
        here = up


def _place(tree: Tree, top: cst.CSTNode, lines: list[Any], needs: list[cst.FunctionDef]) -> cst.CSTNode | None:
    """The module-level statement before which the lines can stand: everything they read is defined by then."""
    body: list[Any] = list(tree.module.body)
    at = next(i for i, s in enumerate(body) if s is top)
    defined = _defined(body[:at])
    read = {n for line in lines for n in reads_of(tree, line)} - {n for line in lines for n in _targets(line)}
    missing = read - defined - set(dir(builtins))
    if not missing:
        return top
    later = [i for i in range(at, len(body)) if _defined([body[i]]) & missing]
    if not later or missing - _defined(body) or not isinstance(top, cst.FunctionDef):
        return None
    place = max(later) + 1
    own = next((f.name.value for f in [top]), "")
    called = any(
        own in {n.value for n in walk(s, cst.Name)}
        for s in body[at + 1 : place]
        if not isinstance(s, cst.FunctionDef | cst.ClassDef)
    )
    return body[place] if place < len(body) and not called else None


def _defined(body: list[Any]) -> set[str]:
    found: set[str] = set()
    for line in body:
        if isinstance(line, cst.FunctionDef | cst.ClassDef):
            found.add(line.name.value)
            continue
        for alias in walk(line, cst.ImportAlias):
            found.add(dotted(alias.asname.name) if alias.asname else dotted(alias.name).partition(".")[0])
        for target in walk(line, cst.AssignTarget):
            found |= {n.value for n in walk(target, cst.Name)}
        for annotated in walk(line, cst.AnnAssign):
            found.add(dotted(annotated.target))
    return found


def _put_before(edits: Edits, place: cst.CSTNode, lines: list[Any]) -> None:
    edits.add(place, lambda n: _before(n, lines))


def _before(node: Any, lines: list[Any]) -> Any:
    """The lines and then the statement, with two blank lines between where a definition follows."""
    blank = cst.EmptyLine(indent=False)
    comments = [[e for e in line.leading_lines if e.comment] for line in lines]
    new = [line.with_changes(leading_lines=c) for line, c in zip(lines, comments, strict=True)]
    gap = [e for e in node.leading_lines if not e.comment]
    new[0] = new[0].with_changes(leading_lines=[*gap, *new[0].leading_lines])
    rest = node.leading_lines
    if not any(not e.comment for e in rest):
        rest = [blank, blank, *rest]
    return cst.FlattenSentinel([*new, node.with_changes(leading_lines=rest)])


TABLE = {"move-load-out": move_load_out}
