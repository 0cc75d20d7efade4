"""Several prompts at once: padded on the right for a model that writes at the end, or without a pad token."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dstune.model import Fact
from dstune.readers.app_seen import Seen

_LISTS = re.compile(
    r"^(?:prompts|texts|batch|questions|inputs_list|sentences|messages_list|all_prompts|batch_prompts|requests|queries|\w+_prompts|\w+_texts)$"
)


_NO_PAD = re.compile(
    r"(?i)^(?:meta-llama/(?!Llama-4|.*(?:Vision|Guard))|huggyllama/|codellama/|mistralai/Mi[sx]tral-\w*7B|tiiuae/falcon-(?:rw|\d)|(?:openai-community/)?gpt2(?:-\w+)?$)|llama-?2-\d+b"
)
"""Checkpoints whose tokenizers name no pad token (their tokenizer_config.json); Falcon 3, Llama 4 and Llama with vision do."""


def smells(seen: Seen) -> Iterator[Fact]:
    """Several prompts padded on the right for a decoder-only model, or by a tokenizer that has nothing to pad with."""
    local = any(g.how == "generate" and seen.index.kind(g.base) == "model" for g in seen.generations)
    padded = [*(_padded(seen) if local else ()), *_piped(seen)]
    if not padded:
        return
    if not _left(seen):
        for node in padded:
            yield seen.smell("padding_right", node)
    if _NO_PAD.search(seen.model) and not any("pad_token" in name for name in seen.names()):
        yield seen.smell("pad_token_missing", padded[0], seen.model)


def _padded(seen: Seen) -> Iterator[ast.AST]:
    """Calls of the tokenizer that pad several prompts."""
    for call in seen.index.calls():
        if call.via or seen.index.kind(call.node) != "batch" or not call.args:
            continue
        if seen.value(call.keywords, "padding") in (None, False):
            continue
        if _several(seen, call.args[0]):
            yield call.node


def _piped(seen: Seen) -> Iterator[ast.AST]:
    """Calls of a text pipeline with a batch size above 1, which pads on the tokenizer's side (pipelines/base.py, pad_collate_fn)."""
    if any(seen.index.kind(load.call.node) == "seq2seq" for load in seen.loads):
        return
    for g in seen.generations:
        size = seen.value(g.keywords, "batch_size")
        if g.how == "pipe" and isinstance(size, int) and size > 1:
            yield g.keywords["batch_size"]


def _left(seen: Seen) -> bool:
    """Whether the program sets the side itself, to anything but the right."""
    for node in seen.index.nodes:
        if (
            isinstance(node, ast.keyword | ast.Attribute)
            and (node.arg if isinstance(node, ast.keyword) else node.attr) == "padding_side"
        ):
            above = seen.index.parent.get(node)
            value = node.value if isinstance(node, ast.keyword) else above.value if isinstance(above, ast.Assign) else None
            if seen.index.const(value) != "right":
                return True
    return False


def _several(seen: Seen, node: ast.expr) -> bool:
    match node:
        case ast.List(elts=elts):
            return len(elts) > 1
        case ast.ListComp():
            return True
        case ast.Subscript(slice=ast.Slice()):  # prompts[i : i + size]
            return seen.index.inside(node, ast.For, ast.While) is not None
        case ast.Name(id=name):
            rows = seen.index.find(name, node)
            if rows and rows[0].how == "iter" and _batches(seen, rows[0].value):
                return True
            if rows and not rows[0].how:
                return _several(seen, rows[0].value) or (
                    not isinstance(rows[0].value, ast.List | ast.Constant | ast.JoinedStr) and bool(_LISTS.match(name))
                )
            return bool(_LISTS.match(name))
    return False


def _batches(seen: Seen, node: ast.expr) -> bool:
    """Whether a loop runs over batches: a DataLoader, or a function that says so."""
    if isinstance(node, ast.Name):
        rows = seen.index.find(node.id, node)
        return bool(rows) and not rows[0].how and _batches(seen, rows[0].value)
    if isinstance(node, ast.Call):
        last = seen.index.dotted(node.func).rsplit(".", 1)[-1]
        if last in ("tqdm", "enumerate", "prepare") and node.args:
            return last == "tqdm" and _batches(seen, node.args[0])
        return bool(re.search(r"(?i)dataloader|batched|batches|chunk", last))
    return False
