"""Edits of what goes into generate and what is decoded of it: the ids alone, and the new tokens alone."""

from __future__ import annotations

import re

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_keywords import callee_name, made
from dstune.readers.app_edit_prompt import bound_result, cut_afterwards, is_messages
from dstune.readers.app_edit_sites import Program, Site, add_keyword, site
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, expression, walk


def ids_of(program: Program, where: Site) -> str:
    """An expression for the token ids that a generate site starts from, "" where it cannot be told."""
    tree = program.tree
    for holder in where.holders:
        items = holder.args if isinstance(holder, cst.Call) else holder.elements
        for item in items:
            starred = item.star == "**" if isinstance(item, cst.Arg) else isinstance(item, cst.StarredDictElement)
            if (
                starred
                and dotted(item.value)
                and not isinstance(_dict_of(tree, item), cst.Dict)
                and not _is_dict_call(_dict_of(tree, item))
            ):
                return f'{dotted(item.value)}["input_ids"]'
    found = where.get("input_ids") or where.get("inputs")
    node = found.value if found else next((a.value for a in where.positional()), None)
    if node is None:
        return ""
    return _ids(program, node, where.call)


def _dict_of(tree: Tree, item: cst.Arg | cst.BaseDictElement) -> cst.BaseExpression | None:
    values = tree.assigned(dotted(item.value), tree.function(item))
    return values[0].value if len(values) == 1 else None


def _is_dict_call(node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.Call) and callee(node) == ("", "dict")


def _ids(program: Program, node: cst.BaseExpression, at: cst.CSTNode) -> str:
    tree = program.tree
    code = tree.code(node)
    while (
        isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in ("to", "cuda", "long")
    ):
        node = node.func.value
        code = tree.code(node)
    name = dotted(node)
    if isinstance(node, cst.Subscript) or (name and name.endswith(".input_ids")):
        return code
    if not name:
        return ""
    given = tree.assigned(name, tree.function(at))
    if len(given) > 1:  # `x = tok(…)`, then `x = x.to(…)`
        given = [
            a for a in given if a.value is not None and not (isinstance(a.value, cst.Call) and callee(a.value) == (name, "to"))
        ]
    if len(given) != 1 or given[0].value is None:
        return name if re.search(r"ids|tensor", name) else ""
    value = given[0].value
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in ("to", "cuda"):
        value = value.func.value
    if isinstance(value, cst.Call):
        left, called = callee(value)
        full = f"{left}.{called}" if left else called
        if full in program.tokenizers:
            return f'{name}["input_ids"]'
        if called == "apply_chat_template":
            flag = site(tree, value).get("return_dict")
            return (
                f'{name}["input_ids"]'
                if flag is not None and dotted(flag.value) == "True"
                else (name if flag is not None else "")
            )
        return name if called == "encode" or called in ("tensor", "cat") else ""
    return name if re.search(r"input_ids", tree.code(value)) else ""


def slice_prompt(program: Program, context: Context) -> cst.Module | None:
    """Decodes the new tokens only: `outputs[0]` → `outputs[0][inputs["input_ids"].shape[1]:]`; for a pipeline `return_full_text=False`."""
    tree, edits = program.tree, Edits()
    for where in program.generates:
        left, name = callee(where.call)
        full = f"{left}.{name}" if left else name
        if full in program.pipes:
            given = next(iter(where.positional()), None)
            if given is not None and (isinstance(given.value, cst.List) or is_messages(tree, given.value, where.call)):
                continue  # with messages the answer is the last of them
            if not where.has("return_full_text") and where.closed:
                add_keyword(edits, where.holders[0], "return_full_text", "False")
            continue
        if cut_afterwards(tree, where):
            continue
        decodes = _decodes(program, where)
        ids = ids_of(program, where) or (_as_dict(program, edits, where) if decodes else "")
        for decode in decodes:
            argument = next((a.value for a in decode.args if a.keyword is None), None)
            if argument is None or not ids:
                return None
            start = f"{ids}.shape[1]"
            if callee_name(decode) == "batch_decode":
                if isinstance(argument, cst.Subscript):
                    continue
                cut: cst.BaseExpression = cst.ensure_type(expression(f"x[:, {start}:]"), cst.Subscript).with_changes(
                    value=argument
                )
            else:
                if _sliced(argument):
                    continue
                cut = cst.ensure_type(expression(f"x[{start}:]"), cst.Subscript).with_changes(value=argument)
            edits.put(argument, cut)
    return made(program, edits)


def _as_dict(program: Program, edits: Edits, where: Site) -> str:
    """`x = tok.apply_chat_template(…)` and `generate(x)` → a dict in every version of transformers, unpacked; its ids, "" where not safe.

    4.x returns the ids alone and 5 a dict unless told; `return_dict=True` says the same to both.
    """
    tree = program.tree
    argument = next((a for a in where.call.args if a.keyword is None and not a.star), None)
    name = dotted(argument.value) if argument is not None else ""
    if argument is None or not name or "." in name or argument is not where.call.args[0] or where.skip:
        return ""
    given = [a for a in tree.assigned(name, tree.function(where.call)) if a.value is not None]
    value = given[0].value if len(given) == 1 else None
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in ("to", "cuda"):
        value = value.func.value
    if not isinstance(value, cst.Call) or callee_name(value) != "apply_chat_template":
        return ""
    template = site(tree, value)
    scope: cst.CSTNode = tree.function(where.call) or tree.module
    uses = [n for n in walk(scope, cst.Name) if n.value == name and n is not argument.value]
    uses = [n for n in uses if not isinstance(tree.parent(n), cst.AssignTarget)]
    shapes = [n for n in uses if isinstance(up := tree.parent(n), cst.Attribute) and up.value is n and up.attr.value == "shape"]
    if template.has("return_dict") or not template.has("return_tensors") or not template.closed or len(uses) != len(shapes):
        return ""
    for node in shapes:
        edits.put(node, expression(f'{name}["input_ids"]'))
    add_keyword(edits, value, "return_dict", "True")
    edits.add(argument, lambda n: n.with_changes(star="**"))
    return f'{name}["input_ids"]'


def _sliced(node: cst.BaseExpression) -> bool:
    return any(isinstance(e.slice, cst.Slice) for s in walk(node, cst.Subscript) for e in s.slice)


def _decodes(program: Program, where: Site) -> list[cst.Call]:
    """Calls that decode what a generate site returned."""
    tree = program.tree
    names, scope = set(bound_result(tree, where.call)), tree.function(where.call)
    found = []
    for call in tree.calls:
        left, name = callee(call)
        if name not in ("decode", "batch_decode") or not (
            left in program.tokenizers or "tok" in left.lower() or "processor" in left.lower()
        ):
            continue
        if tree.within(where.call, call) or (
            scope is tree.function(call)
            and tree.before(where.call, call)
            and any(dotted(n) in names for n in walk(call, cst.Name))
        ):
            found.append(call)
    return found


def unpack_batch_encoding(program: Program, context: Context) -> cst.Module | None:
    """`model.generate(inputs)` with what a tokenizer returned → `model.generate(**inputs)`."""
    tree, edits = program.tree, Edits()
    for where in program.generates:
        if where.skip or callee(where.call)[1] != "generate":
            continue
        argument = next((a for a in where.call.args if a.keyword is None and not a.star), None)
        if argument is None or argument is not where.call.args[0]:
            continue
        node = argument.value
        inner = node
        while isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute) and inner.func.attr.value in ("to", "cuda"):
            inner = inner.func.value
        direct = isinstance(inner, cst.Call) and _is_encoding(program, inner)
        name = dotted(node)
        given = [a.value for a in tree.assigned(name, tree.function(where.call)) if a.value is not None] if name else []
        if direct or (given and all(_is_encoding(program, v, name) for v in given)):
            edits.add(argument, lambda n: n.with_changes(star="**"))
        else:
            _as_dict(program, edits, where)
    return made(program, edits)


def _is_encoding(program: Program, value: cst.BaseExpression, name: str = "") -> bool:
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in ("to", "cuda"):
        value = value.func.value
    if name and dotted(value) == name:
        return True
    if not isinstance(value, cst.Call):
        return False
    left, called = callee(value)
    full = f"{left}.{called}" if left else called
    if called == "apply_chat_template":
        flag = site(program.tree, value).get("return_dict")
        return flag is not None and dotted(flag.value) == "True"
    return full in program.tokenizers or called in ("encode_plus", "batch_encode_plus")


TABLE = {"slice-prompt": slice_prompt, "unpack-batch-encoding": unpack_batch_encoding}
