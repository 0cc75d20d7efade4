"""Model directories: what the configuration says, whether the files are whole, how the tokenizer is made.

Looks at the directories it is given and, with `Options.cache`, at what lies in the Hugging Face and ModelScope caches.
Weights are never loaded: of a safetensors file only the header is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from dstune.lang import say
from dstune.model import Fact, Gap, parse_json
from dstune.probes import gguf, model_files
from dstune.probes.reading import Item, Options, facts, line_of, listing, numbered, text_of
from dstune.redact import redact

_MOST = 24
"""Models of the caches that are read: each costs some ten small reads, on network disks some ten round trips."""


def probe(options: Options) -> Iterator[Item]:
    """Facts `model`, `model1`… in the order given, then those of the caches, newest first."""
    number = 0
    seen: set[str] = set()
    for given in options.model_dirs:
        for layout, name, folder in _resolved(os.path.expanduser(given)):
            seen.add(os.path.realpath(folder))
            yield from read(folder, numbered("model", number), layout, name)
            number += 1
    if not options.cache:
        return
    for layout, name, folder in cached(options):
        if os.path.realpath(folder) not in seen and number < _MOST:
            seen.add(os.path.realpath(folder))
            yield from read(folder, numbered("model", number), layout, name)
            number += 1


def _resolved(path: str) -> list[tuple[str, str, str]]:
    """(layout, id, folder): a `models--…` folder becomes its current snapshot, a cache its models."""
    base = os.path.basename(os.path.normpath(path))
    if base.startswith("models--"):
        current = snapshot(path)
        return [("hf_cache", base[8:].replace("--", "/"), current or path)]
    inside = [e for e in listing(path) if e.startswith("models--")]
    if inside:
        return [r for e in inside for r in _resolved(os.path.join(path, e))]
    return [("modelscope" if "modelscope" in path or "___" in path else "plain", "", path)]


def snapshot(path: str) -> str | None:
    """The folder of the current revision in a `models--…` folder of the hub's cache; None for none."""
    revision = line_of(f"{path}/refs/main")
    if revision and os.path.isdir(f"{path}/snapshots/{revision}"):
        return f"{path}/snapshots/{revision}"
    found = [f"{path}/snapshots/{e}" for e in listing(f"{path}/snapshots")]
    return max(found, key=_mtime, default=None)


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def cached(options: Options) -> list[tuple[str, str, str]]:
    """(layout, id, folder) of the models in the two hubs' caches, newest first."""
    home = os.path.expanduser("~")
    hub = os.environ.get("HF_HUB_CACHE") or os.path.join(os.environ.get("HF_HOME") or f"{home}/.cache/huggingface", "hub")
    found = _resolved(options.at(hub)) if any(e.startswith("models--") for e in listing(options.at(hub))) else []
    scope = options.at(os.environ.get("MODELSCOPE_CACHE") or f"{home}/.cache/modelscope")
    for base in (f"{scope}/hub/models", f"{scope}/models", f"{scope}/hub"):
        for owner in listing(base):
            if owner in ("models", "datasets", "temp", "ast_indexer") or owner.startswith("."):
                continue
            for name in listing(f"{base}/{owner}"):
                if not name.startswith(".") and os.path.isdir(f"{base}/{owner}/{name}"):
                    found.append(("modelscope", f"{owner}/{name.replace('___', '.')}", f"{base}/{owner}/{name}"))
    return sorted(found, key=lambda entry: _mtime(entry[2]), reverse=True)


def read(folder: str, subject: str, layout: str = "plain", name: str = "") -> Iterator[Item]:
    """All facts of one directory."""
    shown = redact(folder)
    yield from facts(subject, shown, path=shown, id=name or None, layout=layout)
    yield Fact(subject, "escaped_path", "___" in folder, shown)
    if os.path.isfile(folder) and folder.endswith(".gguf"):
        yield from _single_gguf(folder, subject, shown)
        return
    exists = os.path.isdir(folder)
    yield Fact(subject, "exists", exists, shown)
    if not exists:
        twin = _twin(folder)
        yield from facts(subject, "the same path with `.` and `___` exchanged", escaped_twin=redact(twin) if twin else None)
        reason = say("no such directory", "目录不存在")
        hint = say(f"it lies at {redact(twin)}", f"实际位于 {redact(twin)}") if twin else ""
        yield Gap(subject, "*", reason, hint)
        return
    files = model_files.files_of(folder)
    config = _json(f"{folder}/config.json")
    yield Fact(subject, "has_config", isinstance(config, dict), f"{shown}/config.json")
    if isinstance(config, dict):
        yield from _configuration(config, subject, f"{shown}/config.json")
    elif "config.json" in files:
        yield Gap(subject, "architecture", say("config.json is not valid JSON", "config.json 不是合法的 JSON"))
    main = next((f for f in files if f.endswith(".gguf") and "mmproj" not in f), None)
    only_gguf = main is not None and "config.json" not in files
    if main is not None and only_gguf:
        yield from gguf.described(f"{folder}/{main}", subject, f"{shown}/{main}")
    yield from model_files.weights(folder, files, subject, shown)
    yield from _generation(folder, subject, shown, config if isinstance(config, dict) else {})
    if not only_gguf:
        yield from _tokenizer(folder, files, subject, shown)
    if layout == "hf_cache":
        base = folder.split("/snapshots/")[0]
        incomplete = [f for f in listing(f"{base}/blobs") if f.endswith(".incomplete")]
        yield Fact(subject, "incomplete_downloads", len(incomplete), f"{redact(base)}/blobs/*.incomplete")
    elif layout == "modelscope":
        parent = os.path.dirname(folder)
        left = [e for d in (f"{parent}/._____temp", f"{folder}/._____temp") for e in listing(d)]
        yield Fact(subject, "incomplete_downloads", len(left), f"{redact(parent)}/._____temp")


def _single_gguf(path: str, subject: str, shown: str) -> Iterator[Item]:
    yield Fact(subject, "exists", True, shown)
    yield Fact(subject, "weights_formats", ["gguf"], shown)
    yield Fact(subject, "weights_mib", os.path.getsize(path) >> 20, shown)
    yield Fact(subject, "truncated_files", [] if gguf.is_whole(path) else [os.path.basename(path)], shown)
    yield from gguf.described(path, subject, shown)


def _twin(folder: str) -> str | None:
    """The directory that exists when `.` and `___` are exchanged in the last two parts of a path."""
    head, tail = os.path.split(os.path.normpath(folder))
    for other in (tail.replace("___", "."), tail.replace(".", "___")):
        if other != tail and os.path.isdir(os.path.join(head, other)):
            return os.path.join(head, other)
    return None


def _json(path: str, limit: int = 8 << 20) -> Any:
    text = text_of(path, limit)
    try:
        return None if text is None else parse_json(text)
    except ValueError:
        return None


def _configuration(config: dict[str, Any], subject: str, source: str) -> Iterator[Item]:
    inner = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(inner, dict)
    names = config.get("architectures") or []
    heads, hidden = inner.get("num_attention_heads"), inner.get("hidden_size")
    head_dim = inner.get("head_dim") or (
        hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None
    )
    scaling = inner.get("rope_scaling") or inner.get("rope_parameters") or {}
    quant = config.get("quantization_config") or config.get("compression_config") or {}
    eos = inner.get("eos_token_id", config.get("eos_token_id"))
    yield from facts(
        subject,
        source,
        architecture=str(names[0]) if names else None,
        model_type=config.get("model_type"),
        dtype=inner.get("dtype") or inner.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype"),
        layers=inner.get("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=inner.get("intermediate_size"),
        heads=heads,
        kv_heads=inner.get("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=inner.get("vocab_size"),
        max_position_embeddings=inner.get("max_position_embeddings"),
        sliding_window=inner.get("sliding_window") if inner.get("use_sliding_window", True) else None,
        rope_scaling=str(scaling.get("rope_type") or scaling.get("type"))
        if scaling.get("rope_type") or scaling.get("type")
        else None,
        tied_embeddings=inner.get("tie_word_embeddings", config.get("tie_word_embeddings")),
        experts=inner.get("num_experts") or inner.get("num_local_experts") or inner.get("n_routed_experts"),
        quantization=quant.get("quant_method") or ("none" if not quant else "unnamed"),
        quantization_bits=quant.get("bits") or (4 if quant.get("load_in_4bit") else 8 if quant.get("load_in_8bit") else None),
        quantization_group=quant.get("group_size"),
        remote_code=bool(config.get("auto_map")),
        eos_token_ids=eos if isinstance(eos, list) else [eos] if eos is not None else None,
        transformers_version=config.get("transformers_version"),
    )


def _generation(folder: str, subject: str, shown: str, config: dict[str, Any]) -> Iterator[Item]:
    generation = _json(f"{folder}/generation_config.json")
    source = f"{shown}/generation_config.json"
    yield Fact(subject, "has_generation_config", isinstance(generation, dict), source)
    if not isinstance(generation, dict):
        generation = {}
    else:
        for key in ("do_sample", "temperature", "top_p", "top_k", "repetition_penalty", "max_new_tokens", "max_length"):
            yield from facts(subject, source, **{f"generation_{key}": generation.get(key)})
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = eos if isinstance(eos, list) else [eos] if eos is not None else []
    tokenizer = _json(f"{folder}/tokenizer_config.json")
    if not ids or not isinstance(tokenizer, dict):
        return
    token = tokenizer.get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    added = tokenizer.get("added_tokens_decoder")
    number = next((int(i) for i, t in added.items() if t.get("content") == token), None) if isinstance(added, dict) else None
    if number is not None:
        yield Fact(subject, "eos_mismatch", number not in ids, f"{source}, {shown}/tokenizer_config.json")


def _tokenizer(folder: str, files: dict[str, int], subject: str, shown: str) -> Iterator[Item]:
    config = _json(f"{folder}/tokenizer_config.json")
    source = f"{shown}/tokenizer_config.json"
    present = [
        f
        for f in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "qwen.tiktoken", "tekken.json")
        if f in files
    ]
    yield Fact(subject, "tokenizer_files", present, shown)
    config = config if isinstance(config, dict) else {}
    cls = config.get("tokenizer_class")
    yield from facts(subject, source, tokenizer_class=cls, model_max_length=_sane(config.get("model_max_length")))
    template = _template(folder, config)
    if config or "tokenizer.json" in files or template:
        yield Fact(subject, "chat_template", template is not None, source)
    if template is not None:
        yield Fact(subject, "template_opens_think", bool(re.search(r"add_generation_prompt.*<think>", template, re.S)), source)
    head = text_of(f"{folder}/tokenizer.json", 1 << 20)
    if head is None:
        return
    kind = re.search(
        r'"model"\s*:\s*\{\s*(?:"[a-z_]+"\s*:\s*(?:null|true|false|"[^"]*"|[\d.]+)\s*,\s*)*?"type"\s*:\s*"(\w+)"', head
    )
    byte_level = '"ByteLevel"' in head
    where = f"{shown}/tokenizer.json"
    yield from facts(subject, where, tokenizer_kind=kind.group(1) if kind else None)
    yield Fact(subject, "tokenizer_byte_level", byte_level, where)
    if cls:
        sentencepiece = cls.startswith(("Llama", "T5", "Gemma", "XLM", "Mbart", "MBart", "Camembert"))
        yield Fact(subject, "tokenizer_class_mismatch", byte_level and sentencepiece, f"{source}, {where}")


def _sane(value: Any) -> int | None:
    """`model_max_length` is 1e30 where nobody said."""
    return int(value) if isinstance(value, int | float) and value < 1e9 else None


def _template(folder: str, config: dict[str, Any]) -> str | None:
    text = text_of(f"{folder}/chat_template.jinja", 1 << 18)
    if text:
        return text
    other = _json(f"{folder}/chat_template.json")
    value = other.get("chat_template") if isinstance(other, dict) else config.get("chat_template")
    if isinstance(value, list):
        value = next((t.get("template") for t in value if isinstance(t, dict) and t.get("name") == "default"), None)
    return value if isinstance(value, str) and value else None
