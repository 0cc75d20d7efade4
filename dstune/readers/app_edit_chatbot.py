"""A handler behind a Gradio Chatbot that gives a text → one that gives the conversation with the new turn."""

from __future__ import annotations

from typing import Any

import libcst as cst

from dstune.expr import Version
from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_keywords import callee_name, made
from dstune.readers.app_edit_sites import Program, bound, site
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, expression, parameters, text_of, walk, walk_shallow

_EVENTS = frozenset(("click", "submit", "then", "change", "success"))


def chatbot_history(program: Program, context: Context) -> cst.Module | None:
    """`return answer` → `return history + [user turn, assistant turn]` where the only output is a Chatbot that is an input too.

    Messages for Gradio 6 (and `type="messages"`), pairs for the versions before; messages where the version is unknown, as a
    fresh install has them.
    """
    tree, edits = program.tree, Edits()
    bots = {n: c for c in tree.calls if callee(c)[1] == "Chatbot" for n in bound(tree, c)}
    functions = {f.name.value: f for f in tree.functions if tree.function(f) is None}
    for call in tree.calls:
        if callee_name(call) not in _EVENTS:
            continue
        handler, inputs, outputs = _parts(call)
        function = functions.get(dotted(handler)) if handler is not None else None
        if function is None or len(outputs) != 1 or outputs[0] not in bots:
            continue
        names = parameters(function)
        if outputs[0] not in inputs or len(inputs) > len(names):
            return None
        history = names[inputs.index(outputs[0])]
        message = next((n for n, i in zip(names, inputs, strict=False) if i != outputs[0]), "")
        if not message:
            return None
        pairs = _wants_pairs(tree, bots[outputs[0]], context)
        for given in [*walk_shallow(function.body, cst.Return), *walk_shallow(function.body, cst.Yield)]:
            if given.value is not None and not _is_conversation(tree, function, given.value, history):
                _put(edits, given, history, message, pairs)
    return made(program, edits)


def _parts(call: cst.Call) -> tuple[cst.BaseExpression | None, list[str], list[str]]:
    """(handler, names of the inputs, names of the outputs) of an event."""
    given: dict[str, cst.BaseExpression] = {}
    for place, argument in zip(("fn", "inputs", "outputs"), [a for a in call.args if a.keyword is None], strict=False):
        given[place] = argument.value
    given |= {a.keyword.value: a.value for a in call.args if a.keyword is not None}
    return given.get("fn"), _names(given.get("inputs")), _names(given.get("outputs"))


def _names(node: cst.BaseExpression | None) -> list[str]:
    if isinstance(node, cst.List | cst.Tuple):
        return [dotted(e.value) for e in node.elements]
    return [dotted(node)] if node is not None and dotted(node) else []


def _wants_pairs(tree: Tree, bot: cst.Call, context: Context) -> bool:
    kind = site(tree, bot).get("type")
    if kind is not None:
        return text_of(kind.value) == "tuples"
    version = context.versions.get("gradio")
    return bool(version) and Version(version) < Version("6.0")


def _is_conversation(tree: Tree, function: cst.FunctionDef, value: cst.BaseExpression, history: str) -> bool:
    """Whether a value is (made from) the history already: the name itself, a list, a sum with it."""
    if isinstance(value, cst.List | cst.ListComp | cst.Tuple | cst.From):
        return True
    names = {n.value for n in walk(value, cst.Name)}
    if isinstance(value, cst.Name):
        given = [a.value for a in tree.assigned(value.value, function) if a.value is not None]
        return value.value == history or any(
            isinstance(g, cst.List) or history in {n.value for n in walk(g, cst.Name)} for g in given
        )
    return history in names


def _put(edits: Edits, given: Any, history: str, message: str, pairs: bool) -> None:
    turn = (
        f"[({message}, x)]" if pairs else f'[{{"role": "user", "content": {message}}}, {{"role": "assistant", "content": x}}]'
    )
    whole = cst.ensure_type(expression(f"{history} + {turn}"), cst.BinaryOperation)
    slot = next(n for n in walk(whole, cst.Name) if n.value == "x")

    def edit(node: Any) -> Any:
        inside = Edits()
        inside.put(slot, node.value)
        line = cst.SimpleStatementLine([cst.Expr(whole)])
        new: Any = inside.made(cst.Module([line])).body[0]
        space = cst.SimpleWhitespace(" ")
        value = new.body[0].value
        return node.with_changes(value=value, **({"whitespace_after_return": space} if isinstance(node, cst.Return) else {}))

    edits.add(given, edit)


TABLE = {"chatbot-history": chatbot_history}
