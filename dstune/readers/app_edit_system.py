"""The system message of a conversation for a model that wants none (DeepSeek-R1): its text begins the user's turn instead."""

from __future__ import annotations

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_keywords import made
from dstune.readers.app_edit_sites import Program, without
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, expression, text_of, walk

_GAP = "\\n\\n"


def system_into_user(program: Program, context: Context) -> cst.Module | None:
    """`[{"role": "system", …}, {"role": "user", "content": q}]` → one user turn; also where the user's turn is appended later.

    A system message whose user turn cannot be told (another function's, a loop's) stays: a person has to move it.
    """
    tree, edits = program.tree, Edits()
    for conversation in tree.find(cst.List):
        first = conversation.elements[0].value if conversation.elements else None
        if role(first) != "system":
            continue
        text = content(first)
        turn = _user_in(conversation) or _user_behind(tree, conversation) or _user_appended(tree, conversation)
        if text is None or turn is None:
            continue
        edits.add(conversation, lambda n: n.with_changes(elements=without(n.elements, n.elements[0])))
        edits.put(turn, joined(tree, text, turn))
    return made(program, edits)


def role(node: cst.BaseExpression | None) -> str:
    """The role of a message literal, "" for anything else."""
    if not isinstance(node, cst.Dict):
        return ""
    return next((text_of(e.value) or "" for e in _entries(node) if text_of(e.key) == "role"), "")


def content(node: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """The content of a message literal."""
    if not isinstance(node, cst.Dict):
        return None
    return next((e.value for e in _entries(node) if text_of(e.key) == "content"), None)


def _entries(node: cst.Dict) -> list[cst.DictElement]:
    return [e for e in node.elements if isinstance(e, cst.DictElement)]


def _user_in(conversation: cst.List) -> cst.BaseExpression | None:
    """The content of the first user turn of the same list; none where something unknown (`*history`) stands before it."""
    for element in conversation.elements[1:]:
        if isinstance(element, cst.StarredElement):
            break
        if role(element.value) == "user":
            return content(element.value)
    last = conversation.elements[-1]
    return content(last.value) if role(last.value) == "user" else None


def _user_behind(tree: Tree, conversation: cst.List) -> cst.BaseExpression | None:
    """`[system] + history + [user]`: the user turn of the last list of the sum."""
    here: cst.CSTNode = conversation
    while isinstance(up := tree.parent(here), cst.BinaryOperation) and isinstance(up.operator, cst.Add):
        here = up
    if not isinstance(here, cst.BinaryOperation):
        return None
    last = here.right
    return _user_in(cst.List([cst.Element(cst.Name("x")), *last.elements])) if isinstance(last, cst.List) else None


def _user_appended(tree: Tree, conversation: cst.List) -> cst.BaseExpression | None:
    """The user turn that the same function appends last, outside loops over what was said before."""
    scope = tree.function(conversation)
    assign = tree.parent(conversation)
    if scope is None or not isinstance(assign, cst.Assign):
        return None
    name = dotted(assign.targets[0].target)
    found: list[cst.BaseExpression] = []
    for call in walk(scope, cst.Call):
        if callee(call) != (name, "append") or not call.args or not tree.before(conversation, call):
            continue
        if any(isinstance(n, cst.For | cst.While) and tree.within(n, scope) for n in tree.above(call)):
            continue
        turn = call.args[0].value
        if role(turn) == "user" and content(turn) is not None:
            found.append(content(turn))  # type: ignore[arg-type]
    return found[-1] if name and found else None


def joined(tree: Tree, first: cst.BaseExpression, second: cst.BaseExpression) -> cst.BaseExpression:
    """One expression for both texts with an empty line between: into the literal where there is one."""
    if isinstance(first, cst.SimpleString) and "r" not in first.prefix.lower() and first.prefix.lower() in ("", "u"):
        head: cst.BaseExpression = first.with_changes(value=f"{first.value[: -len(first.quote)]}{_GAP}{first.quote}")
        literal = isinstance(second, cst.SimpleString) and second.quote == head.quote and not second.prefix  # type: ignore[attr-defined]
        if literal and len(first.quote) == 1:
            return second.with_changes(value=f"{head.value[:-1]}{second.value[1:]}")  # type: ignore[attr-defined]
    else:
        head = expression(f'{_bracketed(tree, first)} + "{_GAP}"')
    return cst.BinaryOperation(head, cst.Add(), expression(_bracketed(tree, second)))


def _bracketed(tree: Tree, node: cst.BaseExpression) -> str:
    """Source of an operand of +, in brackets where it binds less."""
    code = tree.code(node)
    simple = isinstance(node, cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.SimpleString | cst.FormattedString)
    return code if simple or node.lpar else f"({code})"


TABLE = {"system-into-user": system_into_user}
