"""Edits of how a prompt ends, of what fills up a batch, and of a temperature that may be 0."""

from __future__ import annotations

import re

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_keywords import callee_name, made
from dstune.readers.app_edit_sites import Program, add_keyword, bound, outermost, set_at, site
from dstune.readers.app_edit_tree import Edits, dotted, text_of

_ANSWERED = re.compile(r"""["']role["']\s*:\s*["']assistant["'][^{}]*\}\s*,?\s*\]\s*$""")
"""Messages that end with an answer: the whole conversation is rendered, and no new answer is asked for."""


def add_generation_prompt(program: Program, context: Context) -> cst.Module | None:
    """`add_generation_prompt=True` on templates that do not say how the prompt ends; none where one of them does."""
    tree, edits = program.tree, Edits()
    for call in tree.calls:
        if callee_name(call) != "apply_chat_template":
            continue
        where = site(tree, call)
        if not where.closed or len(where.positional()) > 2 or where.has("continue_final_message"):
            return None
        if where.has("add_generation_prompt"):
            return None
        over = tree.parent(tree.parent(call) or call)
        named = where.get("conversation")
        messages = next((a.value for a in where.positional()), named.value if named else None)
        if isinstance(over, cst.Call) and dotted(over.func) in ("len", "print"):
            continue
        if messages is not None and _ANSWERED.search(tree.code(messages)):
            continue
        add_keyword(edits, where.holders[0], "add_generation_prompt", "True")
    return made(program, edits)


def add_pad_token(program: Program, context: Context) -> cst.Module | None:
    """`tokenizer.pad_token = tokenizer.eos_token` behind the line that loads the tokenizer."""
    tree, edits = program.tree, Edits()
    if "pad_token" in re.sub(r"pad_token_id", "", tree.module.code):
        return None
    if len(program.tokenizer_loads) > 1:  # an encoder's has one, and no end token to take its place
        return None
    for call in program.tokenizer_loads:
        names, line = bound(tree, call), tree.statement(outermost(tree, call))
        if len(names) != 1 or not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return None
        edits.after(line, [cst.parse_statement(f"{names[0]}.pad_token = {names[0]}.eos_token")])
    return made(program, edits)


def sample_above_zero(program: Program, context: Context) -> cst.Module | None:
    """`do_sample=temperature > 0` where the temperature comes from the user: 0 then means greedy, as it does with servers."""
    tree, edits = program.tree, Edits()
    for where in program.generates:
        asked, temperature = where.get("do_sample"), where.get("temperature")
        if asked is None or temperature is None or dotted(asked.value) != "True":
            continue
        value = temperature.value
        if isinstance(value, cst.Call) and dotted(value.func) == "float" and len(value.args) == 1:
            value = value.args[0].value
        if not isinstance(value, cst.Name | cst.Attribute) or text_of(value) is not None:
            continue
        name = value.attr.value if isinstance(value, cst.Attribute) else value.value
        if re.search(rf"\b{name}\s*:\s*[^=\n]*\b(?:Optional|None)\b", tree.module.code):  # None is not comparable
            return None
        if set_at(tree, edits, where, "do_sample", f"{tree.code(temperature.value)} > 0") is None:
            return None
    return made(program, edits)


TABLE = {
    "add-generation-prompt": add_generation_prompt,
    "add-pad-token": add_pad_token,
    "sample-above-zero": sample_above_zero,
}
