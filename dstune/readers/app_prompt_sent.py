"""Prompts that a program sends without the model's template, other than through a tokenizer: to vLLM, to a completion route, as the
text of a list of messages; and a base model that is asked to chat."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dstune.model import Fact
from dstune.readers.app_index import Called
from dstune.readers.app_models import known
from dstune.readers.app_seen import Seen

TURNS = re.compile(
    r"(?i)qwen|llama-?[34]|gemma|phi-?[34]|smollm|glm-?4|internlm[23]|gpt-oss|(?:mistral|mixtral|ministral)\S*instruct|yi-\S*chat|deepseek"
    r"|granite|olmo|exaone|minicpm|command-?r"
)
"""Chat models with tokens for their turns: turns in plain words are no template of theirs."""


def smells(seen: Seen, templated: bool) -> Iterator[Fact]:
    """`app.prompt_without_template` and `app.base_model_templated`, where app_prompt's own reading finds none."""
    told = _told(seen)
    if told is not None:
        yield seen.smell("prompt_without_template", told)
    elif not templated and "peft" not in seen.frameworks:
        yield from _plain(seen)
    yield from _base(seen)


def _told(seen: Seen) -> ast.AST | None:
    """Where the text of a list of messages (`str(messages)`, an f-string of it) is the prompt of a local model."""
    if not any(c.value == "role" for c in seen.constants()):
        return None
    for call in seen.index.calls():
        if call.via:
            continue
        last = call.name.rsplit(".", 1)[-1]
        kind = seen.index.kind(call.func)
        owner = seen.index.kind(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        takes = (
            kind in ("tokenizer", "pipeline")
            or (owner == "tokenizer" and last in ("encode", "encode_plus", "batch_encode_plus"))
            or (owner == "llm" and last == "generate")
            or _completion(call)
        )
        first = call.args[0] if call.args else call.keywords.get("prompt") or call.keywords.get("text")
        if takes and first is not None and _is_text_of_messages(seen, first):
            return call.node
    return None


def _is_text_of_messages(seen: Seen, node: ast.expr, depth: int = 4) -> bool:
    if depth < 0:
        return False
    match node:
        case ast.List(elts=[only]):
            return _is_text_of_messages(seen, only, depth - 1)
        case ast.Call(func=func, args=[first, *_]) if seen.index.dotted(func) in ("str", "json.dumps", "repr"):
            return _messages(seen, first)
        case ast.JoinedStr(values=values):
            return any(isinstance(v, ast.FormattedValue) and _messages(seen, v.value) for v in values)
        case ast.Name(id=name):
            rows = seen.index.find(name, node)
            return bool(rows) and not rows[0].how and _is_text_of_messages(seen, rows[0].value, depth - 1)
    return False


def _messages(seen: Seen, node: ast.expr) -> bool:
    """Whether an expression is a list of role and content."""
    if isinstance(node, ast.Name):
        rows = seen.index.find(node.id, node)
        return bool(rows) and not rows[0].how and _messages(seen, rows[0].value)
    return (
        isinstance(node, ast.List)
        and bool(node.elts)
        and all(
            isinstance(e, ast.Dict) and any(k is not None and seen.index.const(k) == "role" for k in e.keys) for e in node.elts
        )
    )


def _completion(call: Called) -> bool:
    """A request to the text route: `client.completions.create`, not `chat.completions`."""
    return call.name.endswith(".completions.create") and "chat." not in call.name


def _plain(seen: Seen) -> Iterator[Fact]:
    """Plain text to `LLM.generate` or to the completion route of a server, for a model that is known to chat."""
    if seen.loads or any(
        isinstance(n, ast.Attribute) and n.attr in ("get_tokenizer", "chat_template", "fim", "encode") for n in seen.index.nodes
    ):
        return
    for call in seen.index.calls():
        if call.via:
            continue
        if _completion(call):
            prompt, name = call.keywords.get("prompt"), seen.index.const(call.keywords.get("model"))
            extra = {"suffix", "echo", "logprobs"} & set(call.keywords)
        elif (
            isinstance(call.func, ast.Attribute) and call.func.attr == "generate" and seen.index.kind(call.func.value) == "llm"
        ):
            prompt, name, extra = call.args[0] if call.args else call.keywords.get("prompts"), seen.model, set()
        else:
            continue
        if prompt is None or extra or not isinstance(name, str) or known(name).chat is not True:
            continue
        text = _constant(seen, prompt)
        if text is not None and " " in text.strip() and not re.search(r"<[|｜]?\w+|\[INST\]|def |fim", text):
            yield seen.smell("prompt_without_template", call.node)
            return


def _constant(seen: Seen, node: ast.expr, depth: int = 4) -> str | None:
    """The fixed text of a prompt, or of the first of several; None where it comes from elsewhere."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.List(elts=[first, *_]):
            return _constant(seen, first, depth - 1)
        case ast.JoinedStr(values=values):
            return "".join(str(v.value) if isinstance(v, ast.Constant) else "x" for v in values)
        case ast.Name(id=name) if depth > 0:
            rows = seen.index.find(name, node)
            return _constant(seen, rows[0].value, depth - 1) if rows and not rows[0].how else None
    return None


def _base(seen: Seen) -> Iterator[Fact]:
    """A base model that is asked through a chat route, or through vLLM's `chat`."""
    if any(isinstance(n, ast.keyword | ast.Attribute) and _named(n) == "chat_template" for n in seen.index.nodes):
        return
    for call in seen.index.calls():
        if call.via:
            continue
        name: object = ""
        if call.name.endswith("chat.completions.create"):
            name = seen.index.const(call.keywords.get("model"))
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "chat" and seen.index.kind(call.func.value) == "llm":
            name = seen.model
        if isinstance(name, str) and "/" in name and known(name).chat is False:
            yield seen.smell("base_model_templated", call.node)
            return


def _named(node: ast.keyword | ast.Attribute) -> str | None:
    return node.arg if isinstance(node, ast.keyword) else node.attr
