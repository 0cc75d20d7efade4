"""A State of `gr.Interface` that has no partner: the page does not start, and nothing reads the state."""

from __future__ import annotations

from typing import Any

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_keywords import made
from dstune.readers.app_edit_sites import Program, Site, site, without
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, text_of, walk


def drop_lone_state(program: Program, context: Context) -> cst.Module | None:
    """`inputs=[box, gr.State()]` without a State among the outputs: the input goes, and the handler's parameter for it.

    Only where the handler never reads that parameter and nobody else calls it: what a read one was meant for is for a person to say.
    """
    tree, edits = program.tree, Edits()
    for call in tree.calls:
        if callee(call)[1] != "Interface" or callee(call)[0] not in ("gr", "gradio"):
            continue
        where = site(tree, call)
        handler, inputs, outputs = (_given(where, n, name) for n, name in enumerate(("fn", "inputs", "outputs")))
        if handler is None or not isinstance(inputs, cst.List):
            continue
        states = [e for e in inputs.elements if _is_state(e.value)]
        if len(states) != 1 or outputs is None or _states(outputs):
            continue
        place = next(n for n, e in enumerate(inputs.elements) if e is states[0])
        function = _function(tree, dotted(handler))
        if function is None or not _drop_parameter(edits, function, place):
            return None
        edits.put(inputs, inputs.with_changes(elements=without(inputs.elements, states[0])))
    return made(program, edits)


def _given(where: Site, number: int, name: str) -> cst.BaseExpression | None:
    """An argument by its name or place."""
    found = where.get(name)
    if found is not None:
        return found.value
    placed = where.positional()
    return placed[number].value if len(placed) > number else None


def _is_state(node: cst.BaseExpression) -> bool:
    return (isinstance(node, cst.Call) and callee(node)[1] in ("State", "Variable")) or text_of(node) == "state"


def _states(node: cst.BaseExpression) -> bool:
    held = [e.value for e in node.elements] if isinstance(node, cst.List | cst.Tuple) else [node]
    return any(_is_state(e) or not isinstance(e, cst.Call | cst.SimpleString) for e in held)


def _function(tree: Tree, name: str) -> cst.FunctionDef | None:
    """The one function of that name, where its name stands in its definition and once elsewhere: as the handler."""
    found = [f for f in tree.find(cst.FunctionDef) if f.name.value == name]
    if len(found) != 1 or found[0].decorators:
        return None
    return found[0] if sum(n.value == name for n in tree.find(cst.Name)) == 2 else None


def _drop_parameter(edits: Edits, function: cst.FunctionDef, place: int) -> bool:
    params = function.params
    if params.posonly_params or params.kwonly_params or isinstance(params.star_arg, cst.Param) or place >= len(params.params):
        return False
    gone = params.params[place]
    if any(n.value == gone.name.value for n in walk(function.body, cst.Name)):
        return False
    kept: list[Any] = [p for p in params.params if p is not gone]
    if kept and place == len(kept):
        kept[-1] = kept[-1].with_changes(comma=gone.comma)
    edits.add(params, lambda n: n.with_changes(params=kept))
    return True


TABLE = {"drop-lone-state": drop_lone_state}
