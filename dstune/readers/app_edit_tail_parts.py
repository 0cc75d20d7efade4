"""Small questions and changes of the statements behind a generation: what they read, what they set, what only cuts the prompt off."""

from __future__ import annotations

import re
from typing import Any

import libcst as cst

from dstune.readers.app_edit_keywords import callee_name
from dstune.readers.app_edit_tree import Tree, callee, dotted, text_of, walk


class Named(cst.CSTTransformer):
    """Gives a name another one."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__()
        self._old, self._new = old, new

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return updated_node.with_changes(value=self._new) if updated_node.value == self._old else updated_node


def targets_of(small: Any) -> set[str]:
    """Plain names that a statement sets."""
    if isinstance(small, cst.Assign):
        names = [dotted(t.target) for t in small.targets]
        return {n for n in names if n and "." not in n}
    if isinstance(small, cst.AnnAssign | cst.AugAssign):
        name = dotted(small.target)
        return {name} if name and "." not in name else set()
    return set()


def reads_of(tree: Tree, node: cst.CSTNode) -> set[str]:
    """Plain names that a node reads."""
    found = set()
    for name in walk(node, cst.Name):
        parent = tree.parent(name)
        if isinstance(parent, cst.Attribute) and parent.attr is name:
            continue
        if isinstance(parent, cst.Arg) and parent.keyword is name:
            continue
        if isinstance(parent, cst.AssignTarget):
            continue
        found.add(name.value)
    return found


_PURE = re.compile(r"^(?:len|zip|list|tolist|cpu|detach|squeeze|numpy|size)$")


def slicing(value: cst.BaseExpression, source: cst.Call | None) -> bool:
    """Whether an expression only takes parts of what was generated."""
    return all(
        c is source or _PURE.match(callee_name(c)) or (source is not None and _inside(c, source)) for c in walk(value, cst.Call)
    )


def _inside(call: cst.Call, source: cst.Call) -> bool:
    return any(c is call for c in walk(source, cst.Call))


_OF_TEXT = re.compile(
    r"^(?:l?strip|rstrip|r?split|splitlines|r?partition|replace|removeprefix|removesuffix|lower|upper|title|capitalize|format|join|startswith|endswith"
    r"|r?find|count|subn?|compile|findall|escape|unescape|convert|dedent|translate|expandtabs|len|str|bool|list|tuple|dict|set|sum|round|sorted|reversed"
    r"|enumerate|zip|range|isinstance|any|all|append|extend|copy|get|items|keys|values|time|perf_counter|monotonic|now|strftime|isoformat|update)$"
)
"""What takes any beginning of a text: no parser, no look-up that may find nothing, nothing that costs much."""


def takes_a_part(tree: Tree, node: cst.CSTNode, texts: set[str], page: str = "", depth: int = 3) -> bool:
    """Whether a node may run on a text that is not finished, once for each piece. `page`: the name of gradio, whose components may.

    Not where the text goes into a parser (`json.loads`), an unknown function, or an index that exists at the end only (`split("x")[1]`).
    """
    own = {f.name.value: f for f in tree.functions}
    for call in walk(node, cst.Call):
        left, name = callee(call)
        name = name or callee_name(call)
        if not reads_of(tree, call) & texts or (page and left.split(".")[0] == page):
            continue
        if left in ("", "self") and name in own and depth:
            body = own[name].body
            given = {n.value for p in walk(own[name].params, cst.Param) for n in [p.name]}
            named = {n for a in walk(body, cst.Assign) for n in targets_of(a)}
            if takes_a_part(tree, body, given | named, page, depth - 1):
                continue
            return False
        if not _OF_TEXT.match(name):
            return False
    for part in walk(node, cst.Subscript):
        index = part.slice[0].slice
        if reads_of(tree, part.value) & texts and isinstance(part.value, cst.Call) and isinstance(index, cst.Index):
            at, by = tree.code(index.value).replace(" ", ""), callee_name(part.value)
            if not (at in ("0", "-1") and by in ("split", "rsplit")) and by not in ("partition", "rpartition", "subn"):
                return False
    return True


def swapped(node: Any, old: cst.CSTNode, name: str) -> Any:
    """A node with one of its nodes replaced by a name."""
    return node.visit(_One(old, cst.Name(name)))


class _One(cst.CSTTransformer):
    def __init__(self, old: cst.CSTNode, new: cst.CSTNode) -> None:
        super().__init__()
        self._old, self._new = old, new

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        return self._new if original_node is self._old else updated_node


class _Uncut(cst.CSTTransformer):
    """Takes off what cuts the prompt from a text: the streamer skips it."""

    def __init__(self, texts: set[str]) -> None:
        super().__init__()
        self._texts = texts

    def _is_text(self, node: cst.BaseExpression) -> bool:
        while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            node = node.func.value
        return dotted(node) in self._texts

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        part = updated_node.slice[0].slice
        if (
            not isinstance(part, cst.Slice)
            or part.lower is None
            or part.upper is not None
            or not self._is_text(updated_node.value)
        ):
            return updated_node
        cut = any(callee(c) == ("", "len") for c in walk(part.lower, cst.Call))
        return updated_node.value if cut else updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        func = updated_node.func
        if isinstance(func, cst.Attribute) and self._is_text(func.value) and updated_node.args:
            if func.attr.value == "removeprefix":
                return func.value
            if (
                func.attr.value == "replace"
                and text_of(updated_node.args[0].value) is None
                and text_of(updated_node.args[-1].value) == ""
            ):
                return func.value
        return updated_node


def uncut(node: Any, texts: set[str]) -> Any:
    """A node without what cuts the prompt from one of these texts."""
    return node.visit(_Uncut(texts))


def with_added(result: cst.BaseExpression, name: str, values: list[cst.BaseExpression]) -> cst.BaseExpression:
    """`history` → `history + [(message, text)]` in what is handed on."""
    grown = cst.BinaryOperation(_name(name), cst.Add(), cst.List([cst.Element(v) for v in values]))
    if dotted(result) == name:
        return grown
    safe = {id(e.value) for e in result.elements} if isinstance(result, cst.Tuple | cst.List) else set()

    class Grow(cst.CSTTransformer):
        def on_leave(self, original_node: Any, updated_node: Any) -> Any:
            if isinstance(original_node, cst.Name | cst.Attribute) and dotted(original_node) == name:
                return (
                    grown if id(original_node) in safe else grown.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
                )
            return updated_node

    return result.visit(Grow())  # type: ignore[return-value]


def _name(name: str) -> cst.BaseExpression:
    return cst.parse_expression(name)
