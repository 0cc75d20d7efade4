"""A bare prompt, or one whose turns are plain words (`f"User: {question}\\nAssistant:"`) → the chat template, and the answer cut by tokens."""

from __future__ import annotations

import re

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_prompt import add_chat_template, encodings
from dstune.readers.app_edit_sites import Program
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, text_of, walk

_ASKS = re.compile(r"\s*(?:User|USER|Human|Question|Q|用户|问题|提问|问)\s*[:：]\s*")
_ANSWERS = re.compile(r"\s*((?:Assistant|ASSISTANT|AI|Bot|Answer|A|助手|回答|答)\s*[:：])\s*")


def chat_template(program: Program, context: Context) -> cst.Module | None:
    """The chat template in place of a bare prompt. Turns in plain words are taken off first, and what cut the answer by the prompt's
    text: the answer is cut by tokens then, since a marked prompt is longer than its text.

    None where the words hold more than one turn, or where something else reads the prompt.
    """
    from dstune.readers.app_edit_answer import slice_prompt

    try:
        bare = _bare(program)
    except _UnsafeError:
        return None
    if bare is None:
        return add_chat_template(program, context)
    templated = add_chat_template(Program(Tree(bare)), context)
    if templated is None:
        return None
    after = Program(Tree(templated))
    sliced = slice_prompt(after, context)
    if sliced is None and not any(re.search(r"\.shape\[|len\(|input_len", code) for code in _slices(after.tree)):
        return None
    return sliced or templated


def _slices(tree: Tree) -> list[str]:
    """The code of all slices `x[a:]` of the program."""
    return [tree.code(s) for s in tree.find(cst.Subscript) if any(isinstance(e.slice, cst.Slice) for e in s.slice)]


class _UnsafeError(Exception):
    """Something reads the prompt that would not be what it was."""


def _bare(program: Program) -> cst.Module | None:
    """The program with the question where the turns stood, and without cuts by the prompt's text; None where there are neither."""
    tree, edits = program.tree, Edits()
    for call, _, _ in encodings(program):
        prompt = next((a.value for a in call.args if a.keyword is None and not a.star), None)
        if prompt is None or callee(call)[1] == "apply_chat_template":
            continue
        name, scope = dotted(prompt), tree.function(call)
        given = tree.assigned(name, scope) if name and "." not in name else []
        turn = _turn(tree, given[0].value if len(given) == 1 else prompt)
        cuts = _cuts(tree, name, turn[1] if turn else "", scope or tree.module)
        for whole, text in cuts:
            edits.put(whole, text)
        if turn is None:
            continue
        if name and (tree.function(given[0]) is not scope or _grows(tree, name, scope)):
            raise _UnsafeError
        read = [
            n
            for n in walk(scope or tree.module, cst.Name)
            if n.value == name and not isinstance(tree.parent(n), cst.AssignTarget)
        ]
        if any(n is not prompt and not any(tree.within(n, whole) for whole, _ in cuts) for n in read):
            raise _UnsafeError
        edits.put(given[0].value if name else prompt, turn[0])  # type: ignore[arg-type]
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
            elif isinstance(part, cst.FormattedStringExpression) and not part.conversion and not part.format_spec:
                parts.append(part.expression)
            else:
                return None
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
            by = inner.args[0].value if inner.args else None
            mine = (mark and (text_of(by) or "").strip() == mark) or (name and dotted(by) == name)
            if mine and code in ("-1", "1"):
                found.append((whole, inner.func.value))
    for call in walk(scope, cst.Call):
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in ("replace", "removeprefix") or not name:
            continue
        values = [a.value for a in call.args]
        if dotted(values[0] if values else None) == name and all(text_of(v) == "" for v in values[1:]):
            found.append((call, call.func.value))
    return found


TABLE = {"add-chat-template": chat_template}
