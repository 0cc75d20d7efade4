"""Where a templated prompt ends: behind the user's turn, or behind the header of the assistant's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dstune.model import Fact
from dstune.readers.app_index import Called
from dstune.readers.app_seen import Seen

HEADED = re.compile(
    r"(?i)qwen|llama-?3|gemma|phi-?[34]|tinyllama|zephyr|smollm|internlm[23]|deepseek|(?<![a-z])yi-|glm-?4|granite|hermes|stablelm|olmo|exaone"
    r"|gpt-oss|minicpm"
)
"""Families whose templates write a header for the assistant's turn only when they are asked to."""
_HEADLESS = re.compile(r"(?i)mistral|mixtral|ministral|llama-?2|codellama|zephyr-orpo|command-?r")
"""Families whose answer follows the user's turn without a header."""


def smells(seen: Seen) -> Iterator[Fact]:
    """`app.generation_prompt_missing`: an answer is generated behind a template that was not asked for the assistant's header."""
    if seen.trains() or _HEADLESS.search(seen.model) or not _generates(seen) or _quantizes(seen):
        return
    calls = [c for c in seen.index.calls() if not c.via and c.name.rsplit(".", 1)[-1] == "apply_chat_template"]
    if any(_says(c) for c in calls) or _appended(seen):  # the others may measure or compare
        return
    for call in calls:
        if isinstance(call.func, ast.Attribute) and not _ends_with_answer(seen, call) and not _measured(seen, call.node):
            yield seen.smell("generation_prompt_missing", call.node, "sure" if HEADED.search(seen.model) else "unknown")
            return


def _generates(seen: Seen) -> bool:
    """Whether a model of this program writes text: transformers' or vLLM's own."""
    return any(g.how != "foreign" for g in seen.generations) or any(
        isinstance(c.func, ast.Attribute) and c.func.attr == "generate" and seen.index.kind(c.func.value) == "llm"
        for c in seen.index.calls()
    )


def _quantizes(seen: Seen) -> bool:
    """Whether the texts are there to calibrate a quantisation."""
    return any(isinstance(n, ast.Attribute) and n.attr in ("quantize", "oneshot") for n in seen.index.nodes)


def _says(call: Called) -> bool:
    """Whether a call says how the prompt shall end, or hands on keywords that may; positionally it is the third argument or later."""
    return call.open_ or len(call.args) > 2 or bool({"add_generation_prompt", "continue_final_message"} & set(call.keywords))


_HEADER = re.compile(
    r"^\s*(?:<\|\w+\|>\s*)?(?:<\|im_start\|>assistant|<\|start_header_id\|>assistant|<start_of_turn>model|<\|assistant\|>|<[|｜]Assistant[|｜]>)"
)


def _appended(seen: Seen) -> bool:
    """Whether the program puts a header behind a text itself, by `+`, `+=` or in an f-string. One that it looks for or splits at is none."""
    for node in seen.index.nodes:
        match node:
            case ast.BinOp(op=ast.Add(), right=part) | ast.AugAssign(op=ast.Add(), value=part):
                parts: list[ast.expr] = [part]
            case ast.JoinedStr(values=values):
                parts = values[1:]
            case _:
                continue
        for part in parts:
            first = part.values[0] if isinstance(part, ast.JoinedStr) and part.values else part
            inner = first.value if isinstance(first, ast.FormattedValue) else first
            if isinstance(said := seen.index.const(inner), str) and _HEADER.match(said):
                return True
    return False


def _ends_with_answer(seen: Seen, call: Called) -> bool:
    """Whether the messages end with a turn of the assistant's, which the model is to go on with (or which is only rendered)."""
    node = call.args[0] if call.args else call.keywords.get("conversation")
    if isinstance(node, ast.Name):
        rows = seen.index.find(node.id, node)
        node = rows[0].value if rows and not rows[0].how else None
    while isinstance(node, ast.BinOp):
        node = node.right
    if not isinstance(node, ast.List) or not node.elts or not isinstance(last := node.elts[-1], ast.Dict):
        return False
    role = next(
        (v for k, v in zip(last.keys, last.values, strict=True) if k is not None and seen.index.const(k) == "role"), None
    )
    return bool(seen.index.const(role) == "assistant")


def _measured(seen: Seen, node: ast.Call) -> bool:
    """Whether the prompt is only counted or printed."""
    above = seen.index.parent.get(node)
    return isinstance(above, ast.Call) and seen.index.dotted(above.func) in ("len", "print", "logger.info", "logger.debug")
