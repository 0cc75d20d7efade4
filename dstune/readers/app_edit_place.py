"""Where a model's layers lie: `device_map` in place of moves by hand."""

from __future__ import annotations

import re
from typing import Any

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_keywords import callee_name, made
from dstune.readers.app_edit_sites import Program, bound, outermost, set_at, site
from dstune.readers.app_edit_tree import Edits, Tree, dotted, drop_statement, walk


def device_map_auto(program: Program, context: Context) -> cst.Module | None:
    """`device_map="auto"` on the load; the moves by hand (`model.to(…)`, layers one by one) go."""
    tree, edits = program.tree, Edits()
    if not program.loads:
        return None
    for call in program.loads:
        where = site(tree, call)
        if set_at(tree, edits, where, "device_map", '"auto"') is None:
            return None
        whole = outermost(tree, call)
        here: cst.BaseExpression = call
        while here is not whole:
            over = tree.parent(tree.parent(here) or here)
            assert isinstance(over, cst.Call)
            if callee_name(over) in ("to", "cuda"):
                edits.add(over, lambda n: n.func.value)
            here = over
        for name in bound(tree, call):
            _drop_moves(tree, edits, name)
            if _moved_still(tree, edits, name):
                return None
    return made(program, edits)


def _moved_still(tree: Tree, edits: Edits, model: str) -> bool:
    """Whether a part of the model is still moved by hand: under a device_map that would tear it out of its hooks."""
    layered = {
        n.value
        for loop in tree.find(cst.For)
        if re.search(rf"\b{re.escape(model)}\b.*\b(?:layers|blocks|h)\b", tree.code(loop.iter))
        for n in walk(loop.target, cst.Name)
    }
    for call in tree.calls:
        if callee_name(call) not in ("to", "cuda", "cpu") or not isinstance(call.func, cst.Attribute):
            continue
        own = _root(call.func.value)
        part = own == model and tree.code(call.func.value) != model
        if (part or own in layered) and not edits.touches(tree, call):
            return True
    return False


def _drop_moves(tree: Tree, edits: Edits, model: str) -> None:
    """Statements that move a model or parts of it to a device, and loops that do nothing else."""
    loops = {loop for loop in tree.find(cst.For) if _only_moves(tree, loop, model)}
    for loop in loops:
        edits.drop(loop)
    for small in [*tree.find(cst.Expr), *tree.find(cst.Assign)]:
        value = small.value
        if not isinstance(value, cst.Call) or any(tree.within(small, loop) for loop in loops):
            continue
        target = dotted(small.targets[0].target) if isinstance(small, cst.Assign) else ""
        if callee_name(value) in ("to", "cuda") and isinstance(value.func, cst.Attribute) and _root(value.func.value) == model:
            own = tree.code(value.func.value)
            if not target or target == own or own.startswith(f"{model}."):
                drop_statement(tree, edits, small)


def _only_moves(tree: Tree, loop: cst.For, model: str) -> bool:
    smalls = _simple(loop.body)
    if not smalls:
        return False
    over_layers = re.search(rf"\b{re.escape(model)}\b.*\blayers\b", tree.code(loop.iter)) is not None
    one = {n.value for n in walk(loop.target, cst.Name)} if over_layers else set()
    calls = [getattr(s, "value", None) for s in smalls if not _chosen(s)]
    moves = [isinstance(c, cst.Call) and callee_name(c) in ("to", "cuda") and _root(c.func) in {model, *one} for c in calls]
    return bool(moves) and all(moves)


def _chosen(small: Any) -> bool:
    """`device = "cuda:0" if i < 14 else "cuda:1"`: a name gets a value without anything being done."""
    named = isinstance(small, cst.Assign) and isinstance(small.targets[0].target, cst.Name)
    return named and not any(True for _ in walk(small.value, cst.Call))


def _simple(block: cst.CSTNode) -> list[Any] | None:
    """The simple statements of a block and of the branches in it; None where it holds anything else."""
    found: list[Any] = []
    for line in getattr(block, "body", ()):
        if isinstance(line, cst.SimpleStatementLine):
            found += [s for s in line.body if not isinstance(s, cst.Pass | cst.Continue)]
            continue
        if not isinstance(line, cst.If):
            return None
        branch: cst.If | cst.Else | None = line
        while branch is not None:
            inner = _simple(branch.body)
            if inner is None:
                return None
            found += inner
            branch = branch.orelse if isinstance(branch, cst.If) else None
    return found


def _root(node: cst.CSTNode) -> str:
    while isinstance(node, cst.Attribute | cst.Subscript | cst.Call):
        name = dotted(node)
        if name.startswith("self."):
            return ".".join(name.split(".")[:2])
        node = node.func if isinstance(node, cst.Call) else node.value
    return dotted(node)


TABLE = {"device-map-auto": device_map_auto}
