"""Where a program loads, generates, decodes and serves: call sites with their keywords, through dicts, variables and partials."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from dstune.readers.app_edit_tree import Edits, Tree, callee, constant, dotted, expression, text_of

_MODEL = re.compile(r"(?:^|\.)(?:Auto)?\w*(?:Model|LM|ForConditionalGeneration)\w*$")
_TOKENIZER = re.compile(r"(?:^|\.)\w*(?:Tokenizer|Processor)(?:Fast)?$")
_TOKENS = re.compile(r"^(?:model_)?(?:inputs?|enc|encod\w*|batch|toks|tokens|tokeni[sz]ed\w*)$")
_CHAIN = frozenset(("to", "cuda", "cpu", "half", "bfloat16", "float", "eval", "train", "requires_grad_"))
_NAMED = re.compile(r"(?i)(?:^|[._])\w*(?:model|llm|lm)$")


@dataclass(frozen=True, slots=True)
class Found:
    """A keyword at a site: the call or dict that holds it, its element there, and its value."""

    holder: cst.Call | cst.Dict
    element: Any
    value: cst.BaseExpression


@dataclass(slots=True)
class Site:
    """A call and everything that gives it keywords. `closed` is false where a `**` could not be followed."""

    call: cst.Call
    holders: list[cst.Call | cst.Dict]
    later: list[tuple[str, cst.Assign]] = field(default_factory=list)
    closed: bool = True
    skip: int = 0

    def get(self, name: str) -> Found | None:
        """The keyword, wherever it is written."""
        for holder in self.holders:
            for element in elements(holder):
                if key_of(element) == name:
                    return Found(holder, element, element.value)
        return None

    def set_later(self, name: str) -> list[cst.Assign]:
        """`kwargs["name"] = …` statements."""
        return [a for key, a in self.later if key == name]

    def has(self, name: str) -> bool:
        """Whether the keyword is given at all."""
        return self.get(name) is not None or bool(self.set_later(name))

    def positional(self) -> list[cst.Arg]:
        """Arguments by position (after a partial's function)."""
        return [a for a in self.call.args[self.skip :] if a.keyword is None and not a.star]


def elements(holder: cst.Call | cst.Dict) -> Sequence[Any]:
    """Arguments of a call or entries of a dict."""
    return holder.args if isinstance(holder, cst.Call) else holder.elements


def key_of(element: Any) -> str:
    """The keyword of an argument or the text key of an entry, "" for others."""
    if isinstance(element, cst.Arg):
        return element.keyword.value if element.keyword else ""
    if isinstance(element, cst.DictElement):
        return text_of(element.key) or ""
    return ""


def site(tree: Tree, call: cst.Call, skip: int = 0) -> Site:
    """The call with its keywords followed through `**`."""
    found = Site(call, [call], skip=skip)
    _follow(tree, found, call, set())
    return found


def _follow(tree: Tree, found: Site, holder: cst.Call | cst.Dict, seen: set[str]) -> None:
    for element in elements(holder):
        star = element.star == "**" if isinstance(element, cst.Arg) else isinstance(element, cst.StarredDictElement)
        if not star:
            continue
        value = element.value
        if isinstance(value, cst.Dict) or (isinstance(value, cst.Call) and callee(value) == ("", "dict")):
            found.holders.append(value)
            _follow(tree, found, value, seen)
            continue
        name = dotted(value)
        if name and name not in seen:
            seen.add(name)
            if _variable(tree, found, name, element, seen):
                continue
        if not _inputs(tree, name, element):
            found.closed = False


def _variable(tree: Tree, found: Site, name: str, at: cst.CSTNode, seen: set[str]) -> bool:
    """Follows `**name` to the one dict that was assigned to it."""
    scope = tree.function(at)
    values = [a.value for a in tree.assigned(name, scope)]
    if len(values) != 1:
        return False
    value = values[0]
    if not (isinstance(value, cst.Dict) or (isinstance(value, cst.Call) and callee(value) == ("", "dict"))):
        return False
    found.holders.append(value)
    _follow(tree, found, value, seen)
    for assign in tree.find(cst.Assign):
        target = assign.targets[0].target
        if isinstance(target, cst.Subscript) and dotted(target.value) == name and isinstance(target.slice[0].slice, cst.Index):
            found.later.append((text_of(target.slice[0].slice.value) or "", assign))
    updates = [c for c in tree.calls if callee(c) in ((name, "update"), (name, "setdefault"))]
    found.closed = found.closed and not updates
    return True


def _inputs(tree: Tree, name: str, at: cst.CSTNode) -> bool:
    """Whether `**name` is what a tokenizer returned: it brings ids and a mask, and no setting."""
    function = tree.function(at)
    values = [a.value for a in tree.assigned(name, function)] if name else []
    if not values:
        return bool(_TOKENS.search(name))
    return bool(values) and all(_made_by_tokenizer(v) for v in values if v is not None)


def _made_by_tokenizer(value: cst.BaseExpression) -> bool:
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in ("to", "cuda"):
        value = value.func.value
    if isinstance(value, cst.DictComp):
        return True
    if not isinstance(value, cst.Call):
        return False
    name = callee(value)[1]
    return (
        name in ("apply_chat_template", "batch_encode_plus", "encode_plus", "pad", "__call__")
        or "tok" in name.lower()
        or "processor" in name.lower()
    )


class Program:
    """What a program does, found once per tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.loads = [c for c in tree.calls if is_load(c, _MODEL)]
        self.tokenizer_loads = [c for c in tree.calls if is_load(c, _TOKENIZER)]
        self.pipelines = [c for c in tree.calls if callee(c)[1] == "pipeline" and callee(c)[0] in ("", "transformers")]
        self.models = {n for c in self.loads for n in bound(tree, c)}
        self.tokenizers = {n for c in self.tokenizer_loads for n in bound(tree, c)}
        self.pipes = {n for c in self.pipelines for n in bound(tree, c)}
        self._vllm = {n for c in tree.calls if callee(c)[1] in ("LLM", "AsyncLLMEngine") for n in bound(tree, c)}
        if not self.tokenizers:
            self.tokenizers = {
                n for n in _receivers(tree, ("decode", "batch_decode", "apply_chat_template")) if "tok" in n.lower()
            }
        self.generates = list(self._generates())

    def _generates(self) -> Iterator[Site]:
        for call in self.tree.calls:
            left, name = callee(call)
            if name == "generate" and self.is_model(left):
                yield site(self.tree, call)
            elif name == "partial" and call.args and self._target(call.args[0].value):
                yield site(self.tree, call, 1)
            elif name == "Thread":
                found = self._threaded(call)
                if found is not None:
                    yield found
            elif (f"{left}.{name}" if left else name) in self.pipes:
                yield site(self.tree, call)

    def _target(self, node: cst.BaseExpression) -> bool:
        name = dotted(node)
        return (name.endswith(".generate") and self.is_model(name.removesuffix(".generate"))) or name in self.pipes

    def _threaded(self, call: cst.Call) -> Site | None:
        by_name = {a.keyword.value: a.value for a in call.args if a.keyword}
        if "target" not in by_name or not self._target(by_name["target"]):
            return None
        value = by_name.get("kwargs")
        if value is None:
            return None
        found = Site(call, [], skip=len(call.args))
        if isinstance(value, cst.Dict) or (isinstance(value, cst.Call) and callee(value) == ("", "dict")):
            found.holders.append(value)
            _follow(self.tree, found, value, set())
        elif not (dotted(value) and _variable(self.tree, found, dotted(value), call, {dotted(value)})):
            found.closed = False
        return found if found.holders else None

    def is_model(self, name: str) -> bool:
        """Whether a dotted name is (or by its name must be) a transformers model."""
        return bool(name) and name not in self._vllm and (name in self.models or bool(_NAMED.search(name)))

    def configs(self) -> list[Site]:
        """`GenerationConfig(…)` calls."""
        return [site(self.tree, c) for c in self.tree.calls if callee(c)[1] == "GenerationConfig"]


def is_load(call: cst.Call, pattern: re.Pattern[str]) -> bool:
    """Whether a call is `X.from_pretrained(…)` with X of the pattern (or a partial of it)."""
    left, name = callee(call)
    if name == "partial" and call.args:
        left, _, name = dotted(call.args[0].value).rpartition(".")
    return name == "from_pretrained" and bool(pattern.search(left)) and "Config" not in left


def _receivers(tree: Tree, names: tuple[str, ...]) -> set[str]:
    return {callee(c)[0] for c in tree.calls if callee(c)[1] in names and callee(c)[0]}


def outermost(tree: Tree, call: cst.BaseExpression) -> cst.BaseExpression:
    """The whole chain `call.to("cuda").eval()` that a call begins."""
    here = call
    while True:
        up = tree.parent(here)
        over = tree.parent(up) if up is not None else None
        if (
            isinstance(up, cst.Attribute)
            and up.value is here
            and up.attr.value in _CHAIN
            and isinstance(over, cst.Call)
            and over.func is up
        ):
            here = over
        else:
            return here


def bound(tree: Tree, call: cst.BaseExpression) -> list[str]:
    """Names that the value of a call (or of the chain on it) is assigned to."""
    whole = outermost(tree, call)
    parent = tree.parent(whole)
    if isinstance(parent, cst.Assign):
        return [n for t in parent.targets if (n := dotted(t.target))]
    if isinstance(parent, cst.AnnAssign):
        return [n] if (n := dotted(parent.target)) else []
    if isinstance(parent, cst.NamedExpr):
        return [n] if (n := dotted(parent.target)) else []
    return []


def without(holder_elements: Sequence[Any], gone: Any) -> list[Any]:
    """The elements less one, with the whitespace of the closing bracket kept."""
    rest = [e for e in holder_elements if e is not gone]
    place = next(i for i, e in enumerate(holder_elements) if e is gone)
    if not rest or place < len(rest):
        return rest
    last = rest[-1]  # the removed one was the last: what stood before the bracket goes to the new last
    if isinstance(gone.comma, cst.Comma):
        before = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else cst.SimpleWhitespace("")
        rest[-1] = last.with_changes(
            comma=gone.comma.with_changes(whitespace_after=_closing(before, gone.comma.whitespace_after))
        )
    elif isinstance(last, cst.Arg):
        before = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else cst.SimpleWhitespace("")
        rest[-1] = last.with_changes(
            comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=_closing(before, gone.whitespace_after_arg)
        )
    else:
        rest[-1] = last.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return rest


def _closing(before: Any, closing: Any) -> Any:
    """The bracket's whitespace after the removed element, with the comment of the element that is last now."""
    if isinstance(closing, cst.ParenthesizedWhitespace):
        first = before.first_line if isinstance(before, cst.ParenthesizedWhitespace) else cst.TrailingWhitespace()
        return closing.with_changes(first_line=first)
    return closing


def appended(holder: cst.Call | cst.Dict, new: Any) -> Any:
    """The call or dict with one element more, laid out as the others are."""
    old = list(elements(holder))
    is_call = isinstance(holder, cst.Call)
    if not old:
        return holder.with_changes(args=[new]) if is_call else holder.with_changes(elements=[new])
    last = old[-1]
    opening = holder.whitespace_before_args if isinstance(holder, cst.Call) else holder.lbrace.whitespace_after
    between: Any = cst.SimpleWhitespace(" ")
    if len(old) > 1 and isinstance(old[-2].comma, cst.Comma):
        between = old[-2].comma.whitespace_after
    elif isinstance(opening, cst.ParenthesizedWhitespace):
        between = opening
    if isinstance(between, cst.ParenthesizedWhitespace):
        between = between.with_changes(
            first_line=between.first_line.with_changes(comment=None, whitespace=cst.SimpleWhitespace("")), empty_lines=[]
        )
    if isinstance(last.comma, cst.Comma):
        after = last.comma.whitespace_after
        if isinstance(after, cst.ParenthesizedWhitespace) and isinstance(between, cst.ParenthesizedWhitespace):
            between = between.with_changes(first_line=after.first_line, empty_lines=after.empty_lines)
            after = after.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
        if not is_call and isinstance(between, cst.ParenthesizedWhitespace):
            after = cst.SimpleWhitespace("")
        old[-1] = last.with_changes(comma=last.comma.with_changes(whitespace_after=between))
        new = new.with_changes(comma=cst.Comma(whitespace_after=after))
    else:
        if is_call:
            new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
            old[-1] = last.with_changes(
                comma=cst.Comma(whitespace_after=between), whitespace_after_arg=cst.SimpleWhitespace("")
            )
        else:
            old[-1] = last.with_changes(comma=cst.Comma(whitespace_after=between))
    return holder.with_changes(args=[*old, new]) if is_call else holder.with_changes(elements=[*old, new])


def keyword(holder: cst.Call | cst.Dict, name: str, value: str) -> Any:
    """A new argument or entry."""
    if isinstance(holder, cst.Call):
        equal = cst.AssignEqual(whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace(""))
        return cst.Arg(expression(value), keyword=cst.Name(name), equal=equal)
    return cst.DictElement(cst.SimpleString(f'"{name}"'), expression(value))


def add_keyword(edits: Edits, holder: cst.Call | cst.Dict, name: str, value: str) -> None:
    """Gives the holder a keyword that it does not have."""
    edits.add(holder, lambda n: appended(n, keyword(n, name, value)))


def drop_keyword(edits: Edits, found: Found) -> None:
    """Takes a keyword away."""
    name = key_of(found.element)

    def edit(node: Any) -> Any:
        gone = next((e for e in elements(node) if key_of(e) == name), None)
        if gone is None:
            return node
        rest = without(elements(node), gone)
        if isinstance(node, cst.Call):
            return node.with_changes(args=rest)
        closing = node.rbrace.whitespace_before
        if rest and gone is node.elements[-1] and isinstance(closing, cst.ParenthesizedWhitespace):
            # LibCST keeps the comment of a dict's last entry at the brace: it goes with the entry, and that of the new last one comes there
            before = node.elements[-2].comma.whitespace_after
            space = _closing(before, closing)
            return node.with_changes(elements=rest, rbrace=node.rbrace.with_changes(whitespace_before=space))
        return node.with_changes(elements=rest)

    edits.add(found.holder, edit)


def rename_keyword(edits: Edits, found: Found, new: str) -> None:
    """Gives a keyword another name."""
    if isinstance(found.element, cst.Arg):
        edits.add(found.element, lambda n: n.with_changes(keyword=cst.Name(new)))
    else:
        quote = found.element.key.quote if isinstance(found.element.key, cst.SimpleString) else '"'
        edits.add(found.element, lambda n: n.with_changes(key=cst.SimpleString(f"{quote}{new}{quote}")))


def same_value(node: cst.BaseExpression, value: str) -> bool:
    """Whether an expression already says this value."""
    return cst.Module([]).code_for_node(node).replace("'", '"') == value.replace("'", '"')


def set_at(tree: Tree, edits: Edits, where: Site, name: str, value: str) -> bool | None:
    """Sets a keyword at a site: a literal is replaced (at its variable's definition too), a missing one added.

    True when something changes, False when it says so already, None when it cannot be done safely: the value is computed, or
    the site takes a `**` that may bring the keyword.
    """
    later = where.set_later(name)
    if later:
        if len(later) > 1 or not constant(later[0].value):
            return None
        if same_value(later[0].value, value):
            return False
        edits.put(later[0].value, expression(value))
        return True
    found = where.get(name)
    if found is None:
        if not where.closed:
            return None
        add_keyword(edits, where.holders[0], name, value)
        return True
    return _set_value(tree, edits, found.value, value)


def _set_value(tree: Tree, edits: Edits, node: cst.BaseExpression, value: str) -> bool | None:
    if same_value(node, value):
        return False
    if constant(node) or dotted(node).startswith("torch."):
        edits.put(node, expression(value))
        return True
    entry = _entry(tree, node)
    if entry is not None:
        if same_value(entry, value):
            return False
        edits.put(entry, expression(value))
        return True
    name = dotted(node)
    default = tree.default(name, node) if name else None
    if default is not None and constant(default):
        if same_value(default, value):
            return False
        edits.put(default, expression(value))
        return True
    given = tree.assigned(name, tree.function(node)) if name else []
    if (
        len(given) == 1
        and given[0].value is not None
        and (constant(given[0].value) or dotted(given[0].value).startswith("torch."))
    ):
        if same_value(given[0].value, value):
            return False
        if sum(1 for n in tree.find(cst.Name) if n.value == name) <= 2:  # used here only
            edits.put(given[0].value, expression(value))
        else:
            edits.put(node, expression(value))
        return True
    return None


def _entry(tree: Tree, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The literal that `CONFIG["model"]["dtype"]` means, where CONFIG is one dict and this is the entry's only use."""
    keys: list[str] = []
    here = node
    while isinstance(here, cst.Subscript) and len(here.slice) == 1 and isinstance(here.slice[0].slice, cst.Index):
        key = text_of(here.slice[0].slice.value)
        if key is None:
            return None
        keys.insert(0, key)
        here = here.value
    name = dotted(here)
    given = tree.assigned(name, tree.function(node)) if name and keys else []
    code = tree.code(node).replace("'", '"')
    if len(given) != 1 or sum(tree.code(s).replace("'", '"') == code for s in tree.find(cst.Subscript)) != 1:
        return None
    value: cst.BaseExpression | None = given[0].value
    for key in keys:
        value = next((e.value for e in value.elements if key_of(e) == key), None) if isinstance(value, cst.Dict) else None
    return value if value is not None and (constant(value) or dotted(value).startswith("torch.")) else None
