"""A prompt whose turns are plain words (`f"User: {question}\\nAssistant:"`) → the question alone, for the chat template to mark."""

from __future__ import annotations

import re

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_prompt import add_chat_template, cut_afterwards, encodings
from dstune.readers.app_edit_sites import Program
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, text_of, walk

_ASKS = re.compile(r"\s*(?:User|USER|Human|Question|Q|用户|问题|提问|问)\s*[:：]\s*")
_ANSWERS = re.compile(r"\s*((?:Assistant|ASSISTANT|AI|Bot|Answer|A|助手|回答|答)\s*[:：])\s*")


def chat_template(program: Program, context: Context) -> cst.Module | None:
    """The chat template in place of a bare prompt; turns in plain words are taken off first, and what cut the answer by them.

    None where the words hold more than one turn, or where something else reads the prompt.
    """
    from dstune.readers.app_edit_answer import slice_prompt

    bare = _bare(program)
    if bare is None:
        return add_chat_template(program, context)
    templated = add_chat_template(Program(Tree(bare)), context)
    if templated is None:
        return None
    after = Program(Tree(templated))
    sliced = slice_prompt(after, context)
    if sliced is None and not all(cut_afterwards(after.tree, where) for where in after.generates):
        return None
    return sliced or templated


def _bare(program: Program) -> cst.Module | None:
    """The program with the question where the turns stood; None where there are none, or not safely."""
    tree, edits = program.tree, Edits()
    for call, _, where in encodings(program):
        prompt = next((a.value for a in call.args if a.keyword is None and not a.star), None)
        if prompt is None or callee(call)[1] == "apply_chat_template":
            continue
        name, scope = dotted(prompt), tree.function(call)
        given = tree.assigned(name, scope) if name and "." not in name else []
        if name and (len(given) != 1 or tree.function(given[0]) is not scope or _grows(tree, name, scope)):
            return None
        turn = _turn(tree, given[0].value if name else prompt)
        if turn is None:
            return None
        question, mark = turn
        cuts = _cuts(tree, name, mark, scope or tree.module)
        read = [
            n
            for n in walk(scope or tree.module, cst.Name)
            if n.value == name and not isinstance(tree.parent(n), cst.AssignTarget)
        ]
        if any(n is not prompt and not any(tree.within(n, whole) for whole, _ in cuts) for n in read):
            return None
        edits.put(given[0].value if name else prompt, question)  # type: ignore[arg-type]
        for whole, text in cuts:
            edits.put(whole, text)
    return edits.made(tree.module) if edits else None


def _grows(tree: Tree, name: str, scope: cst.FunctionDef | None) -> bool:
    return any(dotted(a.target) == name for a in walk(scope or tree.module, cst.AugAssign))


def _turn(tree: Tree, value: cst.BaseExpression | None) -> tuple[cst.BaseExpression, str] | None:
    """(the question, the words that open the answer) of one turn in plain words."""
    parts: list[str | cst.BaseExpression] = []
    if isinstance(value, cst.FormattedString):
        quoted = value.quote
        for part in value.parts:
            if isinstance(part, cst.FormattedStringText):
                text = text_of(cst.SimpleString(f"{quoted}{part.value}{quoted}"))
                parts.append(text if text is not None else "\0")
            elif part.conversion or part.format_spec:
                return None
            else:
                parts.append(part.expression)
    elif isinstance(value, cst.BinaryOperation):
        left = value.left
        if not isinstance(left, cst.BinaryOperation) or not all(isinstance(b.operator, cst.Add) for b in (value, left)):
            return None
        parts = [text_of(left.left) or "\0", left.right, text_of(value.right) or "\0"]
    if len(parts) != 3 or not isinstance(parts[0], str) or not isinstance(parts[2], str) or isinstance(parts[1], str):
        return None
    opens = _ANSWERS.fullmatch(parts[2])
    return (parts[1], opens[1]) if opens and _ASKS.fullmatch(parts[0]) else None


def _cuts(tree: Tree, name: str, mark: str, scope: cst.CSTNode) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """(expression, the text that it cuts) of `text.split("Assistant:")[-1]`, `text[len(prompt):]` and `text.replace(prompt, "")`."""
    found: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
    for whole in walk(scope, cst.Subscript):
        inner, code = whole.value, tree.code(whole.slice[0]).replace(" ", "")
        if name and code == f"len({name}):":
            found.append((whole, inner))
        elif (
            isinstance(inner, cst.Call)
            and isinstance(inner.func, cst.Attribute)
            and inner.func.attr.value in ("split", "rsplit")
        ):
            by = text_of(inner.args[0].value) if inner.args else None
            if by is not None and by.strip() == mark and code in ("-1", "1"):
                found.append((whole, inner.func.value))
    for call in walk(scope, cst.Call):
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in ("replace", "removeprefix") or not name:
            continue
        values = [a.value for a in call.args]
        if dotted(values[0] if values else None) == name and all(text_of(v) == "" for v in values[1:]):
            found.append((call, call.func.value))
    return found


TABLE = {"add-chat-template": chat_template}
