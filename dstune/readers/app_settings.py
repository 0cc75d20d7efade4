"""Settings in a program: keywords of known calls → facts, by the tables in `recipes/engines`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from dstune.catalog.vocabulary import normalise, terms
from dstune.model import Fact, Gap
from dstune.readers.app_index import MISSING, Called
from dstune.readers.app_seen import EVENTS, Seen


@cache
def _table() -> dict[tuple[str, str], list[str]]:
    """(call, keyword) → settings."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, term in terms().items():
        words = term.spec.get("keyword", ())
        for call in term.spec.get("call", ()):
            for word in [words] if isinstance(words, str) else words:
                found.setdefault((call, word), []).append(name)
    return found


@cache
def _by_keyword(engine: str) -> dict[str, str]:
    """Settings of an engine that is built by keywords alone (`vllm.LLM(...)`)."""
    found: dict[str, str] = {}
    for name, term in terms().items():
        if term.engine == engine:
            words = term.spec.get("keyword", ())
            for word in [words] if isinstance(words, str) else words:
                found[word] = name
    return found


def settings(seen: Seen) -> Iterator[Fact | Gap]:
    """Every declared setting that stands in the program."""
    counts: dict[str, int] = {}

    def subject(family: str) -> str:
        number = counts.get(family, 0)
        counts[family] = number + 1
        return f"{family}{number}" if number else family

    for load in seen.loads:
        own = subject("transformers")
        if load.model:
            yield seen.fact(own, "model", load.model, load.call.node)
        yield from _facts(seen, load.how, load.keywords, own, ("transformers",))
        for word in ("dtype", "torch_dtype"):
            if word in load.keywords:
                yield seen.fact(own, "dtype_keyword", word, load.keywords[word])
        if load.how == "pipeline":
            yield from _facts(seen, "pipeline", load.keywords, "generate", ("generate",))
        quant = load.keywords.get("quantization_config")
        if quant is not None:
            yield from _quantization(seen, quant, own)
    for generation in seen.generations:
        if generation.how != "foreign":
            yield from _facts(
                seen,
                "generate" if generation.how == "generate" else "pipe",
                generation.keywords,
                subject("generate"),
                ("generate", "transformers"),
            )
    for call in seen.index.calls():
        yield from _other(seen, call, subject)


def _quantization(seen: Seen, node: ast.expr, own: str) -> Iterator[Fact | Gap]:
    made: ast.expr | None = node
    if isinstance(node, ast.Name):
        rows = seen.index.find(node.id, node)
        made = rows[0].value if rows else None
    if isinstance(made, ast.Call):
        yield seen.fact(own, "quantization", seen.index.dotted(made.func).rsplit(".", 1)[-1], node)
        yield from _facts(seen, "BitsAndBytesConfig", seen.index.keywords(made)[0], own, ("transformers",))


def _other(seen: Seen, call: Called, subject: Any) -> Iterator[Fact | Gap]:
    if call.via:
        return
    last = call.name.rsplit(".", 1)[-1]
    kind = seen.index.kind(call.node)
    gradio = "gradio" in seen.frameworks or seen.snippet
    if kind == "tokenizer" and last == "from_pretrained":
        yield from _facts(seen, "tokenizer", call.keywords, "tokenizer", ("tokenizer",))
    elif kind == "batch" and isinstance(call.func, ast.Name):
        yield from _facts(seen, "tokenize", call.keywords, "tokenizer", ("tokenizer",))
    elif last == "StaticCache":
        yield from _facts(seen, "StaticCache", call.keywords, "transformers", ("transformers",))
    elif last == "SamplingParams" or call.name.endswith(("create_chat_completion", "create_completion")):
        yield from _facts(seen, "SamplingParams", call.keywords, subject("generate"), ("generate",))
    elif (
        gradio and last in ("queue", "launch", "Interface", "ChatInterface") and isinstance(call.func, ast.Attribute | ast.Name)
    ):
        yield from _facts(seen, last, call.keywords, "gradio", ("gradio",))
    elif gradio and isinstance(call.func, ast.Attribute) and call.func.attr in EVENTS and "concurrency_limit" in call.keywords:
        yield from _facts(seen, "event", call.keywords, "gradio", ("gradio",))
    elif call in seen.clients:
        name = subject("client")
        yield from _facts(seen, "OpenAI", call.keywords, name, ("client",))
        yield from _facts(seen, "ChatOpenAI", call.keywords, name, ("client",))
    elif call in seen.completions:
        yield from _facts(seen, "completion", call.keywords, "client", ("client",))
    elif (last == "LLM" and kind == "llm" and "vllm" in seen.frameworks) or (
        last in ("EngineArgs", "AsyncEngineArgs") and call.name.startswith("vllm.")
    ):
        yield from _constructed(seen, call, "vllm", "model")
    elif last == "VLLM" and call.name.startswith("langchain"):
        yield from _constructed(seen, call, "vllm", "model", "vllm_kwargs")
    elif last in ("Engine", "Runtime") and call.name.startswith("sglang."):
        yield from _constructed(seen, call, "sglang", "model_path")
    elif kind == "llama":
        yield from _constructed(seen, call, "llamacpp", "model_path")


def _constructed(seen: Seen, call: Called, engine: str, first: str, more: str = "") -> Iterator[Fact | Gap]:
    table = _by_keyword(engine)
    keywords = {**({first: call.args[0]} if call.args else {}), **call.keywords}
    if more in keywords:
        keywords.update(seen.index.dict_of(keywords[more])[0])
    for word, node in keywords.items():
        if word in table:
            family, _, name = table[word].partition(".")
            yield from _one(seen, family, name, node)


def _facts(seen: Seen, call: str, keywords: dict[str, ast.expr], subject: str, families: Iterable[str]) -> Iterator[Fact | Gap]:
    for word, node in keywords.items():
        for full in _table().get((call, word), ()):
            family, _, name = full.partition(".")
            if family in families:
                yield from _one(seen, subject if subject.rstrip("0123456789") == family else family, name, node)


def _one(seen: Seen, subject: str, name: str, node: ast.expr) -> Iterator[Fact | Gap]:
    if name == "quantization" and subject.startswith("transformers"):  # said by the class of its configuration
        return
    value = seen.index.const(node)
    family = subject.rstrip("0123456789")
    kind = terms()[f"{family}.{name}"].type
    if value is MISSING and kind in ("text", "bool"):
        code = ast.unparse(node)
        if (
            name in ("streamer", "past_key_values", "eos_token_id", "pad_token_id", "max_memory", "device_map")
            and len(code) < 200
        ):
            value = code
        elif name == "auth":
            value = True
    elif name == "auth":
        value = value not in (None, False)
    if isinstance(value, dict):
        value = ast.unparse(node) if len(ast.unparse(node)) < 300 else MISSING
    if value is None:
        return
    read = None if value is MISSING else normalise(f"{family}.{name}", value)
    if read is None or (isinstance(read, list) and any(v is MISSING for v in read)):
        where = f"{seen.source.path}:{getattr(node, 'lineno', 0)}"
        yield Gap(subject, name, f"computed at run time ({where})", "")
        return
    if name == "dtype":
        read = re.sub(r"^torch\.", "", str(read)).replace("half", "float16") if isinstance(read, str) else read
    yield seen.fact(subject, name, read, node)
