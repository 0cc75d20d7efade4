"""Edits of limits and of what stands at the edge: how long a prompt may be, where a slider begins, switches of torch."""

from __future__ import annotations

import re

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_imports import torch_switch
from dstune.readers.app_edit_keywords import callee_name, drop_max_length, made
from dstune.readers.app_edit_prompt import encodings
from dstune.readers.app_edit_sites import Program, Site, add_keyword, bound, set_at, site
from dstune.readers.app_edit_tree import Edits, Tree, callee, constant, dotted, drop_statement, parameters, text_of

ANSWER_CAP = 4096
"""Where a slider of new tokens begins, if it reaches that far: the room that reasoning takes (recipes/symptoms/reasoning-truncated-by-max-tokens.toml)."""


def limit_prompt(program: Program, context: Context) -> cst.Module | None:
    """The prompt is cut to what the model's context leaves beside the answer, at its left end: the newest words stay.

    `truncation=True, max_length=model.config.max_position_embeddings - max_new_tokens` at each call that makes a prompt's tensors,
    `truncation_side="left"` where the tokenizer is loaded. Not where the limit of the answer is out of reach of that call.
    """
    return _limited(program, {})


def max_length_to_prompt(program: Program, context: Context) -> cst.Module | None:
    """`max_length` goes, and the prompt is cut instead: to `max_length` less `max_new_tokens` where both stood, else to the model's context."""
    from dstune.readers.app_edit_sites import Found

    ceilings: dict[int, int] = {}
    for place, where in enumerate(program.generates):
        found: Found | None = where.get("max_length")
        beside = where.get("max_new_tokens")
        if found is not None and beside is not None:
            total, new = _number(program.tree, found.value), _number(program.tree, beside.value)
            if total is not None and new is not None and total > new:
                ceilings[place] = total - new
    dropped = drop_max_length(program, context)
    if dropped is None:
        return None
    after = _limited(Program(Tree(dropped)), ceilings)
    return after  # without a place for the prompt's limit `drop-max-length` alone is the remedy


def _number(tree: Tree, node: cst.BaseExpression) -> int | None:
    return int(tree.code(node).replace("_", "")) if isinstance(node, cst.Integer) and tree.code(node).isdigit() else None


def _limited(program: Program, ceilings: dict[int, int]) -> cst.Module | None:
    tree, edits = program.tree, Edits()
    places = {id(where): n for n, where in enumerate(program.generates)}
    for call, _, where in encodings(program):
        given = site(tree, call)
        if not given.closed or given.has("truncation") or given.has("max_length"):
            continue
        limit = str(ceilings.get(places[id(where)], "")) or _room(program, call, where)
        if not limit:
            return None
        add_keyword(edits, call, "truncation", "True")
        add_keyword(edits, call, "max_length", limit)
    if not edits:
        return None
    if any(dotted(a.targets[0].target).endswith(".truncation_side") for a in tree.find(cst.Assign)):
        return made(program, edits)
    for load in program.tokenizer_loads:
        if set_at(tree, edits, site(tree, load), "truncation_side", '"left"') is None:
            return None
    return made(program, edits) if program.tokenizer_loads else None


def _room(program: Program, call: cst.Call, where: Site) -> str:
    """`model.config.max_position_embeddings - N`, with the N of the generate call where it is known at `call`; "" where it is not."""
    tree = program.tree
    left, name = callee(where.call)
    if name != "generate":
        left = next(
            (dotted(a.value).removesuffix(".generate") for a in where.call.args if dotted(a.value).endswith(".generate")), ""
        )
    found = where.get("max_new_tokens")
    if not left or found is None:
        return ""
    new = found.value
    if not constant(new):
        name, function = dotted(new), tree.function(call)
        known = name and (
            (function is not None and name in parameters(function))
            or any(tree.function(a) is None or tree.before(a, call) for a in tree.assigned(name, function))
        )
        if not known:
            return ""
    return f"{left}.config.max_position_embeddings - {tree.code(new)}"


def slider_value(program: Program, context: Context) -> cst.Module | None:
    """A slider of the sampling begins at a value that the model wants: without `value=` it begins at its minimum."""
    tree, edits = program.tree, Edits()
    for call in tree.calls:
        where = site(tree, call)
        if callee_name(call) != "Slider" or not where.closed or where.has("value") or where.has("randomize"):
            continue
        given = where.positional()
        if len(given) > 2:
            continue
        label = where.get("label")
        words = " ".join([(text_of(label.value) or "") if label else "", *bound(tree, call)]).lower()
        high = where.get("maximum")
        most = high.value if high else given[1].value if len(given) > 1 else None
        value = _beginning(words, most, tree)
        if value:
            add_keyword(edits, call, "value", value)
    return made(program, edits)


def _beginning(words: str, most: cst.BaseExpression | None, tree: Tree) -> str:
    """Where a slider of these words begins; "" for others."""
    if re.search(r"temperature|\btemp\b|温度", words):
        return "0.6"
    if re.search(r"top[ _-]?p\b", words):
        return "0.95"
    if re.search(r"max[ _-]*(?:new|output)?[ _-]*tokens|max[ _-]*length|new tokens|生成长度|最大长度|最大生成", words):
        number = _number(tree, most) if most is not None else None
        return str(min(number, ANSWER_CAP)) if number else ""
    return ""


def drop_sdp_switch(program: Program, context: Context) -> cst.Module | None:
    """`torch.backends.cuda.enable_flash_sdp(True)` goes: it is on by default, and chooses nothing."""
    tree, edits = program.tree, Edits()
    for small in tree.find(cst.Expr):
        call = small.value
        if (
            isinstance(call, cst.Call)
            and callee_name(call) in ("enable_flash_sdp", "enable_mem_efficient_sdp")
            and len(call.args) == 1
            and dotted(call.args[0].value) == "True"
        ):
            drop_statement(tree, edits, small)
    return made(program, edits)


def cudnn_sdp_off(program: Program, context: Context) -> cst.Module | None:
    """`torch.backends.cuda.enable_cudnn_sdp(False)` before the model is loaded: attention that needs no plan for each length."""
    tree = program.tree
    loads = [c for c in tree.calls if c in program.loads or c in program.pipelines]
    if not loads or not (program.pipelines or "generate" in tree.names) or "enable_cudnn_sdp" in tree.names:
        return None
    line = "torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN plans anew for each length, in each new thread\n"
    return torch_switch(tree, loads, line)


TABLE = {
    "cudnn-sdp-off": cudnn_sdp_off,
    "limit-prompt": limit_prompt,
    "max-length-to-prompt": max_length_to_prompt,
    "slider-value": slider_value,
    "drop-sdp-switch": drop_sdp_switch,
}
