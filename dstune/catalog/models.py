"""Models: shapes and parameter counts from the catalogue, a configuration, or the headers of safetensors files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dstune.catalog import load
from dstune.errors import DstuneError
from dstune.lang import say

Tensors = Mapping[str, tuple[tuple[int, ...], str]]
"""Shapes and dtypes of a safetensors file: {tensor: (shape, "BF16")}."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A causal language model.

    Counts are parameters. `params` is all that is loaded, `text` the language model alone, `active` what one token uses (with
    the whole embedding). `kv_width` is elements of key and value that one token leaves in one layer (2 x kv_heads x head_dim; the
    latent of MLA), `kv_layers` the layers that keep them, `local_layers` those of them that look back only `window` tokens.
    `state_bytes` is the fixed state of linear-attention layers for one sequence.
    `quant` is the scheme of the checkpoint itself ("" for a plain one), a name of `plan.quant`.
    """

    id: str
    architecture: str
    params: int
    text: int
    active: int
    embedding: int
    head: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    context: int
    dtype: str
    kv_width: int
    kv_layers: int
    window: int = 0
    local_layers: int = 0
    mlp_matrices: int = 3
    experts: int = 0
    experts_used: int = 0
    expert_width: int = 0
    mla: bool = False
    state_bytes: int = 0
    qk_norm: bool = False
    reasoning: bool = False
    chat: bool = True
    generation: Mapping[str, Any] = field(default_factory=dict)
    generation_status: str = ""
    quant: str = ""
    stored_bytes: int = 0
    modelscope_id: str = ""
    aliases: tuple[str, ...] = ()
    prompting: Mapping[str, Any] = field(default_factory=dict)
    confidence: str = "high"
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """The name without its owner."""
        return self.id.rsplit("/", 1)[-1]

    @property
    def body(self) -> int:
        """Parameters of the language model without embedding and head: what quantisers work on."""
        return self.text - self.embedding - self.head

    @property
    def read(self) -> int:
        """Parameters that one decode step of one sequence reads: active ones, the head, not the embedding's rows."""
        return self.active - self.embedding - self.head + self.output

    def reads(self, streams: float) -> float:
        """How many times the parameters of one sequence's step a step of `streams` sequences reads: each brings experts of its own
        (drawn evenly), everything else is shared. An expert's size follows from all and active parameters."""
        if self.experts <= self.experts_used:
            return 1.0
        expert = (self.text - self.active) / (self.experts - self.experts_used)
        touched = float(self.experts * (1 - (1 - self.experts_used / self.experts) ** streams))
        return 1 + expert * max(0.0, touched - self.experts_used) / self.read

    @property
    def output(self) -> int:
        """Parameters of the output projection, whether it is the embedding again or a matrix of its own."""
        return self.head or self.vocab * self.hidden


_LOCAL = {"every layer is local": 1.0, "every second layer is local": 0.5, "5 local : 1 global": 5 / 6}


def _spec(row: dict[str, Any]) -> ModelSpec:
    layers, kv_layers = row["num_hidden_layers"], row.get("kv_layers") or row["num_hidden_layers"]
    text = row.get("params_text") or row["params_total"]
    moe = row.get("moe") or {}
    active = row["params_active"] if moe else text
    window = row.get("sliding_window") or 0
    local = int(kv_layers * _LOCAL.get(row.get("sliding_window_pattern") or "", 0.0)) if window else 0
    return ModelSpec(
        id=row["id"],
        architecture=row["architecture"],
        params=row["params_total"],
        text=text,
        active=active,
        embedding=row["params_embedding"],
        head=row["params_lm_head"],
        hidden=row["hidden_size"],
        intermediate=row["intermediate_size"],
        layers=layers,
        heads=row["num_attention_heads"],
        kv_heads=row["num_key_value_heads"],
        head_dim=row["head_dim"],
        vocab=row["vocab_size"],
        tied=row["tie_word_embeddings"],
        context=row["max_position_embeddings"],
        dtype=row.get("checkpoint_dtype") or "bfloat16",
        kv_width=row["kv_bytes_per_token_16bit"] // (2 * kv_layers),
        kv_layers=kv_layers,
        window=window,
        local_layers=local,
        mlp_matrices=row.get("mlp_matrices") or 3,
        experts=moe.get("num_experts", 0),
        experts_used=moe.get("num_experts_per_tok", 0),
        expert_width=moe.get("moe_intermediate_size", 0),
        mla=row.get("mla", False),
        state_bytes=(row.get("linear_attention") or {}).get("state_bytes_per_sequence", 0),
        qk_norm=row.get("qk_norm", False),
        reasoning=row.get("reasoning", False),
        chat=bool(re.search(r"instruct|chat|-it\b|distill|vicuna|hermes|qwen3|qwq|smollm3|glm", row["id"], re.I)),
        generation=row.get("generation") or {},
        generation_status=row.get("generation_status") or "",
        modelscope_id=row.get("modelscope_id") or row["id"],
        aliases=tuple(row.get("aliases") or ()),
        prompting=row.get("prompting") or {},
        confidence=row["confidence"],
        notes=tuple(row.get("notes") or ()),
        sources=tuple(row["sources"]),
    )


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9.:]", "", name.lower())


@cache
def _index() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = {}
    rows = [row for file in load("models").values() for row in file["model"]]
    named = [[(row["id"], row) for row in rows], [(alias, row) for row in rows for alias in row.get("aliases") or ()]]
    named.append([(row["id"].rsplit("/", 1)[-1], row) for row in rows])
    for pairs in named:  # ids win over aliases, aliases over bare names
        for name, row in pairs:
            table.setdefault(_fold(name), row)
    return table


@cache
def rows() -> tuple[ModelSpec, ...]:
    """All models, in the order of the recipes."""
    return tuple(_spec(row) for file in load("models").values() for row in file["model"])


_SUFFIX = re.compile(
    r"[-_.]?(gguf|awq|fp8(-dynamic)?|gptq(-int[48])?|int[48]|w4a16|w8a8|bnb-4bit|unsloth-bnb-4bit|unsloth|quantized|4bit|8bit"
    r"|q\d_[a-z0-9_]+|hf|g128|marlin)$",
    re.I,
)


def find(name: str) -> ModelSpec:
    """The model of this id or alias; names of quantised re-uploads lead to the plain model with `quant` set.

    Raises `DstuneError` with the nearest ids.
    """
    from dataclasses import replace

    table = _index()
    row = table.get(_fold(name))
    base = name
    while row is None and (cut := _SUFFIX.sub("", base)) != base:
        base = cut
        row = table.get(_fold(base)) or table.get(_fold(base.rsplit("/", 1)[-1]))
    if row is None:
        tail = name.rsplit("/", 1)[-1]
        row = table.get(_fold(tail)) or table.get(_fold(re.sub(r"^[a-z-]+[._]", "", tail, flags=re.I)))
    if row is None and "." in name.rsplit("/", 1)[-1] and name.count("/") == 1:
        inner = _SUFFIX.sub("", name.rsplit("/", 1)[-1].split(".", 1)[1])
        row = table.get(_fold(inner))
    if row is None:
        raise _unknown(name, table)
    spec = _spec(row)
    scheme = quant_of_name(name)
    return replace(spec, quant=scheme) if scheme else spec


_NAMES = (
    (r"unsloth-bnb-4bit", "bnb-nf4-unsloth"),
    (r"bnb-4bit", "bnb-nf4"),
    (r"gptq-int8", "gptq-int8"),
    (r"gptq", "gptq-int4"),
    (r"awq", "awq-int4"),
    (r"fp8", "fp8"),
    (r"w4a16|int4", "gptq-int4"),
    (r"w8a8|int8", "int8"),
    (r"nvfp4", "nvfp4"),
    (r"gguf", "gguf"),
)


def quant_of_name(name: str) -> str:
    """The scheme that a checkpoint's name tells, "" for none."""
    tail = name.rsplit("/", 1)[-1].lower()
    return next((scheme for pattern, scheme in _NAMES if re.search(pattern, tail)), "")


NEAR = 6
"""Names that an error lists."""


def _unknown(name: str, table: dict[str, dict[str, Any]]) -> DstuneError:
    import difflib

    tail = _fold(name.rsplit("/", 1)[-1])
    before, after = ("(?<![0-9.])" * tail[:1].isdigit(), "(?![0-9.])" * tail[-1:].isdigit())
    part = re.compile(before + re.escape(tail) + after) if len(tail) > 1 else None
    within = [n for n in table if part and part.search(n)]  # "7b", "qwen", a name without its version
    within.sort(
        key=lambda n: ("-instruct" not in table[n]["id"].lower(), len(table[n]["id"]))
    )  # a size means the one to talk to
    near = difflib.get_close_matches(_fold(name), list(table), n=8, cutoff=0.6)
    near += difflib.get_close_matches(tail, list(table), n=8, cutoff=0.6)
    ids = list(dict.fromkeys(table[n]["id"] for n in within or near))
    more = len(ids) - NEAR
    ids = ids[:NEAR]
    en = f"nearest: {', '.join(ids)}" + (f" and {more} more" if more > 0 else "")
    zh = f"相近的有：{'，'.join(ids)}" + (f"，另有 {more} 个" if more > 0 else "")
    return DstuneError(
        say(f"model “{name}” is neither in the catalogue nor a folder here", f"“{name}”既不在模型目录里，也不是本机的文件夹"),
        say(en, zh) if ids else "",
        say(
            "give one of dstune estimate --list-models, or a folder with config.json",
            "从 dstune estimate --list-models 中选一个，或给出带 config.json 的文件夹",
        ),
    )


def get(name: str) -> ModelSpec:
    """`from_dir` for a folder (or a config.json in one) that exists here, else `find`."""
    path = Path(name).expanduser()
    if path.is_dir() or (path.suffix == ".json" and path.is_file()):
        return from_dir(path if path.is_dir() else path.parent)
    return find(name)


def from_dir(path: str | Path) -> ModelSpec:
    """The model in a folder: config.json and the headers of its safetensors files (`catalog.model_config`)."""
    from dstune.catalog.model_config import from_dir as read

    return read(path)


def from_config(config: Mapping[str, Any], tensors: Tensors | None = None, name: str = "") -> ModelSpec:
    """A model from its config.json, exact where `tensors` are given (`catalog.model_config`)."""
    from dstune.catalog.model_config import from_config as read

    return read(config, tensors, name)
