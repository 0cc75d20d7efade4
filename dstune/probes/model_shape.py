"""The shape of a model that a process has loaded: its config.json (or the header of its GGUF file), found as the process would find it."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from dstune.model import Value, parse_json
from dstune.probes import gguf
from dstune.probes.models import snapshot
from dstune.probes.processes import Process
from dstune.probes.reading import listing, text_of
from dstune.redact import redact

_LEFT_OUT = ("id2label", "label2id", "auto_map", "_name_or_path", "task_specific_params", "chat_template")
_LONGEST = 300
"""Entries of a list that are kept: layer kinds are, per-module tables of a quantiser are not."""


def of_name(name: str, process: Process) -> dict[str, Value]:
    """Shape of the model that the process's command or program names: a folder, a .gguf file, or an id in its hub caches."""
    for path in _places(name, process):
        if shape := of_path(path):
            return shape
    return {}


def of_path(path: str) -> dict[str, Value]:
    """`model_config` (JSON text) and `model_files_mib` of a folder or a .gguf file; {} where neither is readable."""
    if os.path.isfile(path):
        config = _of_gguf(path)
        return _facts(config, os.path.getsize(path)) if config else {}
    if "models--" in os.path.basename(os.path.normpath(path)):
        path = snapshot(path) or path
    try:
        data = parse_json(text_of(os.path.join(path, "config.json")) or "")
    except ValueError:
        data = None
    names = listing(path)
    if not isinstance(data, dict):
        single = [n for n in names if n.endswith(".gguf") and "mmproj" not in n]
        return of_path(os.path.join(path, single[0])) if len(single) == 1 else {}
    size = 0
    for ending in (".safetensors", ".bin"):
        size = size or sum(_size(os.path.join(path, n)) for n in names if n.endswith(ending))
    return _facts({k: v for k, v in data.items() if _kept(k, v)}, size)


def environment(process: Process) -> dict[str, str]:
    """Environment of a process; {} where it is closed to us."""
    raw = text_of(f"{process.folder}/environ", 1 << 18) or ""
    return {k: v for k, _, v in (p.partition("=") for p in raw.split("\0")) if k}


def _facts(config: dict[str, Any], size: int) -> dict[str, Value]:
    found: dict[str, Value] = {"model_config": json.dumps(_clean(config), separators=(",", ":"), ensure_ascii=False)}
    if size:
        found["model_files_mib"] = round(size / 2**20, 1)
    return found


def _kept(key: str, value: object) -> bool:
    return key not in _LEFT_OUT and not (isinstance(value, list | dict) and len(value) > _LONGEST)


def _clean(value: Any) -> Any:
    """Without names of people and tokens, at any depth."""
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items() if k not in _LEFT_OUT}
    if isinstance(value, list):
        return [_clean(v) for v in value]
    return redact(value) if isinstance(value, str) else value


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _places(name: str, process: Process) -> list[str]:
    """Paths under which the process may have found the model; those of a container through /proc/PID/root."""
    env = environment(process)
    home = env.get("HOME") or os.path.expanduser("~")
    root = "" if process.link("root") in (None, "/") else f"{process.folder}/root"
    found = []
    if name.startswith(("/", "~", ".")) or name.endswith(".gguf"):
        found.append(os.path.join(process.link("cwd") or "/", re.sub(r"^~", home, name)))
    else:
        found.append(os.path.join(process.link("cwd") or "/", name))
        hub = env.get("HF_HUB_CACHE") or os.path.join(env.get("HF_HOME") or f"{home}/.cache/huggingface", "hub")
        found.append(f"{hub}/models--{name.replace('/', '--')}")
        scope = env.get("MODELSCOPE_CACHE") or f"{home}/.cache/modelscope"
        folded = name.replace(".", "___")
        found += [f"{scope}{middle}/{folded}" for middle in ("/hub/models", "/models", "/hub")]
    return [root + path for path in found]


def _of_gguf(path: str) -> dict[str, Any]:
    """A GGUF header under the names of a config.json; `gguf` is its file type."""
    header = gguf.read(path)
    if header is None:
        return {}
    values = header.values
    kind = str(values.get("general.architecture", ""))
    heads = values.get(f"{kind}.attention.head_count")
    named = {
        "architectures": [kind.capitalize()], "hidden_size": values.get(f"{kind}.embedding_length"),
        "num_hidden_layers": values.get(f"{kind}.block_count"), "intermediate_size": values.get(f"{kind}.feed_forward_length"),
        "num_attention_heads": heads, "num_key_value_heads": values.get(f"{kind}.attention.head_count_kv", heads),
        "head_dim": values.get(f"{kind}.attention.key_length"), "vocab_size": values.get("tokenizer.ggml.tokens"),
        "max_position_embeddings": values.get(f"{kind}.context_length"), "gguf": gguf.file_type(values),
    }  # fmt: skip
    return {k: v for k, v in named.items() if isinstance(v, int | str | list) and v}
