"""Conversations as pairs (Gradio 3 to 5) → as messages, the only form that the Chatbot of Gradio 6 takes."""

from __future__ import annotations

import re
from typing import Any

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_keywords import made
from dstune.readers.app_edit_sites import Program
from dstune.readers.app_edit_system import content, role
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, expression, parameters, statements, walk

_NAMES = re.compile(r"(?i)hist|chatbot|conversation|dialog")
_PLAIN = '''

def plain(content):
    """The text of a message: Gradio hands it on as text or as parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
'''


def chatbot_messages(program: Program, context: Context) -> cst.Module | None:
    """Functions with a conversation among their parameters, in the idioms of Gradio's own guides; None where one does it another way."""
    tree, edits = program.tree, Edits()
    helper = "plain" if "plain" not in tree.names else "plain_text"
    used = False
    for function in tree.functions:
        for name in [p for p in parameters(function) if _NAMES.search(p)]:
            done = _converted(tree, edits, function, name, helper)
            if done is None:
                return None
            used = used or done
    module = made(program, edits)
    if module is None or not used:
        return module
    new = statements(tree, _PLAIN.replace("def plain(", f"def {helper}("))[0]
    body = list(module.body)
    at = next(i for i, s in enumerate(body) if isinstance(s, cst.FunctionDef | cst.ClassDef))
    blank = cst.EmptyLine(indent=False)
    following = body[at].with_changes(leading_lines=[blank, blank, *(e for e in body[at].leading_lines if e.comment)])
    return module.with_changes(
        body=[*body[:at], new.with_changes(leading_lines=[blank, blank] if at else []), following, *body[at + 1 :]]
    )


def _message(who: str, text: str) -> str:
    return f'{{"role": "{who}", "content": {text}}}'


def _pair(tree: Tree, node: cst.BaseExpression) -> tuple[str, str] | None:
    """(user's text, answer or "") of `[m, None]` or `(m, a)`."""
    if not isinstance(node, cst.List | cst.Tuple) or len(node.elements) != 2:
        return None
    first, second = (tree.code(e.value) for e in node.elements)
    return first, "" if second in ("None", '""', "''") else second


def _turns(tree: Tree, node: cst.BaseExpression) -> str | None:
    """Messages of a pair, without the brackets."""
    pair = _pair(tree, node)
    if pair is None:
        return None
    return ", ".join([_message("user", pair[0]), *([_message("assistant", pair[1])] if pair[1] else [])])


def _converted(tree: Tree, edits: Edits, function: cst.FunctionDef, name: str, helper: str) -> bool | None:
    """Whether the helper is needed; None where the conversation is used in a way that is not known."""
    used, said = False, False
    for node in walk(function.body, cst.BinaryOperation):  # history + [[message, None]]
        if dotted(node.left) == name and isinstance(node.right, cst.List) and len(node.right.elements) == 1:
            turns = _turns(tree, node.right.elements[0].value)
            if turns is None:
                return None
            edits.put(node.right, expression(f"[{turns}]"))
    for call in walk(function.body, cst.Call):
        if callee(call) == (name, "append") and len(call.args) == 1 and not role(call.args[0].value):
            turns = _turns(tree, call.args[0].value)
            if turns is None:
                return None
            edits.put(call, expression(f"{name}.extend([{turns}])" if "assistant" in turns else f"{name}.append({turns})"))
    for loop in walk(function.body, cst.For):
        if dotted(loop.iter if not isinstance(loop.iter, cst.Subscript) else loop.iter.value) != name:
            continue
        if not isinstance(loop.target, cst.Tuple):
            return None
        if not _rebuilt(tree, edits, loop, helper):
            return None
        used = True
    for node in walk(function.body, cst.Subscript):
        inner = node.value
        if not isinstance(inner, cst.Subscript) or dotted(inner.value) != name or _index(tree, inner) != "-1":
            continue
        place, parent = _index(tree, node), tree.parent(node)
        if place == "0" and not isinstance(parent, cst.AssignTarget):
            edits.put(node, expression(f'{helper}({name}[-1]["content"])'))
            used = True
        elif place == "1" and isinstance(parent, cst.AssignTarget | cst.AugAssign):
            said = _answered(tree, edits, function, name, node, parent, said)
        else:
            return None
    return used


def _index(tree: Tree, node: cst.Subscript) -> str:
    part = node.slice[0].slice
    return tree.code(part.value) if isinstance(part, cst.Index) and len(node.slice) == 1 else ""


def _answered(tree: Tree, edits: Edits, function: cst.FunctionDef, name: str, node: Any, parent: Any, said: bool) -> bool:
    """`history[-1][1] = text`: the first one makes the answer's turn, later ones and those in a loop change its content."""
    loop = next((n for n in tree.above(node) if isinstance(n, cst.For | cst.While) and tree.within(n, function)), None)
    line = tree.statement(node)
    empty = statements(tree, f"{name}.append({_message('assistant', chr(34) * 2)})\n")[0]
    if not said and loop is None and isinstance(parent, cst.AssignTarget) and isinstance(line, cst.SimpleStatementLine):
        assign: Any = tree.parent(parent)
        edits.put(assign, cst.Expr(expression(f"{name}.append({_message('assistant', tree.code(assign.value))})")))
        return True
    if not said:
        edits.before(loop or line or node, empty)
    edits.put(node, expression(f'{name}[-1]["content"]'))
    return True


def _rebuilt(tree: Tree, edits: Edits, loop: cst.For, helper: str) -> bool:
    """A loop over pairs that does nothing but append user and assistant messages goes over messages."""
    targets = [dotted(e.value) for e in cst.ensure_type(loop.target, cst.Tuple).elements]
    calls = [c for c in walk(loop.body, cst.Call) if callee(c)[1] in ("append", "extend")]
    names = {callee(c)[0] for c in calls}
    messages = [d for c in calls for d in walk(c, cst.Dict) if role(d)]
    told = [(role(d), tree.code(c)) for d in messages if (c := content(d)) is not None]
    if len(targets) != 2 or len(names) != 1 or told != [("user", targets[0]), ("assistant", targets[1])]:
        return False
    others = [s for s in walk(loop.body, cst.SimpleStatementLine) if not any(c in calls for c in walk(s, cst.Call))]
    if others or any(True for kind in (cst.For, cst.While, cst.Try) for n in walk(loop.body, kind)):
        return False
    turn = tree.fresh("turn", "message_before")
    step = tree.step(loop.body.body[0]) if isinstance(loop.body, cst.IndentedBlock) else tree.module.default_indent
    text = f'for {turn} in x:\n{step}{names.pop()}.append({{"role": {turn}["role"], "content": {helper}({turn}["content"])}})\n'
    new = statements(tree, text)[0].with_changes(iter=loop.iter, leading_lines=loop.leading_lines)
    edits.put(loop, new)
    return True


TABLE = {"chatbot-messages": chatbot_messages}
