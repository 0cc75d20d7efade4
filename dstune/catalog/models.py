"""Models: shapes and parameter counts from the catalogue, a configuration, or the headers of safetensors files."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dstune.catalog import load
from dstune.errors import DstuneError
from dstune.lang import say


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


def _unknown(name: str, table: dict[str, dict[str, Any]]) -> DstuneError:
    import difflib

    near = difflib.get_close_matches(_fold(name), list(table), n=8, cutoff=0.6)
    tail = _fold(name.rsplit("/", 1)[-1])
    near += difflib.get_close_matches(tail, list(table), n=8, cutoff=0.6)
    ids = list(dict.fromkeys(table[n]["id"] for n in near))[:4]
    return DstuneError(
        say(f"model “{name}” is neither in the catalogue nor a folder here", f"“{name}”既不在模型目录里，也不是本机的文件夹"),
        say(f"nearest: {', '.join(ids)}", f"相近的有：{'，'.join(ids)}") if ids else "",
        say("give an id of the catalogue or a folder with config.json", "请给出目录里的模型名，或带 config.json 的文件夹"),
    )


def get(name: str) -> ModelSpec:
    """`from_dir` for a folder (or a config.json in one) that exists here, else `find`."""
    path = Path(name).expanduser()
    if path.is_dir() or (path.suffix == ".json" and path.is_file()):
        return from_dir(path if path.is_dir() else path.parent)
    return find(name)


def from_dir(path: str | Path) -> ModelSpec:
    """The model in a folder: `config.json`, and exact counts from the headers of its safetensors files where they are complete.

    Reads headers only, never tensors. Raises `DstuneError` where there is no usable config.json.
    """
    folder = Path(path)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DstuneError(
            say(f"no readable config.json in {folder}", f"{folder} 里没有可读的 config.json"),
            str(error),
            say("point --model at the folder that holds config.json", "请把 --model 指到含 config.json 的文件夹"),
        ) from None
    generation: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(header(file))
    return from_config(config, tensors, name=str(config.get("_name_or_path") or folder.resolve().name), generation=generation)


def header(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of a safetensors file: {tensor: (shape, "BF16")}; {} for a file without a header."""
    try:
        with file.open("rb") as handle:
            size = int.from_bytes(handle.read(8), "little")
            if not 2 <= size <= 200_000_000:
                return {}
            data = json.loads(handle.read(size))
    except (OSError, ValueError):
        return {}
    return {k: (tuple(v["shape"]), v["dtype"]) for k, v in data.items() if k != "__metadata__"}


_BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "U32": 32, "BF16": 16, "F16": 16, "I16": 16, "F8_E4M3": 8, "F8_E5M2": 8}


def stored_bytes(tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> int:
    """Bytes of all tensors."""
    total = 0
    for shape, dtype in tensors.values():
        count = 1
        for side in shape:
            count *= side
        total += count * _BITS.get(dtype, 8) // 8
    return total


def quant_of_config(config: Mapping[str, Any]) -> str:
    """The scheme of `quantization_config`, as a name of `plan.quant`; "" for none."""
    quant = config.get("quantization_config") or {}
    method = str(quant.get("quant_method") or "").lower()
    bits = quant.get("bits") or quant.get("w_bit") or 4
    if quant.get("load_in_4bit"):
        return "bnb-nf4" if quant.get("bnb_4bit_use_double_quant") else "bnb-nf4-single"
    if quant.get("load_in_8bit"):
        return "bnb-int8"
    if method == "compressed-tensors":
        groups = quant.get("config_groups") or {}
        weights = next((g.get("weights") or {} for g in groups.values()), {})
        if weights.get("type") == "float":
            return "fp8" if weights.get("num_bits") == 8 else "nvfp4"
        if weights.get("num_bits") == 4:
            return "gptq-int4" if weights.get("symmetric", True) else "awq-int4"
        return "int8"
    return {"awq": "awq-int4", "gptq": f"gptq-int{bits}", "fp8": "fp8", "fbgemm_fp8": "fp8", "bitsandbytes": "bnb-nf4"}.get(
        method, method
    )


def from_config(
    config: Mapping[str, Any],
    tensors: Mapping[str, tuple[tuple[int, ...], str]] | None = None,
    name: str = "",
    generation: Mapping[str, Any] | None = None,
) -> ModelSpec:
    """A model from its config.json; the counts are exact when `tensors` (of `header`) are given and not packed by a quantiser.

    Without tensors they follow from the shape: embedding, attention (latent for MLA), MLP (all experts), norms.
    """
    c: Mapping[str, Any] = {**(config.get("text_config") or {}), **{k: v for k, v in config.items() if k != "text_config"}}
    try:
        hidden, layers = int(c.get("hidden_size") or c["n_embd"]), int(c.get("num_hidden_layers") or c["n_layer"])
        heads = int(c.get("num_attention_heads") or c["n_head"])
        vocab = int(c["vocab_size"])
    except KeyError as missing:
        raise DstuneError(
            say(f"config.json has no {missing}", f"config.json 里没有 {missing}"),
            say("it does not describe a causal language model", "它描述的不是因果语言模型"),
            say("use a catalogue id, or the folder of the language model", "请用目录里的模型名，或语言模型自己的文件夹"),
        ) from None
    kv_heads = int(c.get("num_key_value_heads") or heads)
    head_dim = int(c.get("head_dim") or hidden // heads)
    inner = int(c.get("intermediate_size") or c.get("n_inner") or 4 * hidden)
    kind = str((c.get("architectures") or [c.get("model_type", "")])[0])
    tied = bool(c.get("tie_word_embeddings", c.get("model_type", "") in ("gemma", "gemma2", "gemma3_text", "gpt2", "opt")))
    matrices = 2 if c.get("model_type") in ("opt", "gpt2", "gpt_neox", "gptj", "falcon", "mpt", "phi", "gpt_bigcode") else 3
    latent = int(c.get("kv_lora_rank") or 0)
    experts = int(c.get("num_experts") or c.get("num_local_experts") or c.get("n_routed_experts") or 0)
    used = int(c.get("num_experts_per_tok") or c.get("num_experts_per_token") or 0)
    width = int(c.get("moe_intermediate_size") or inner) if experts else 0
    shared = int(c.get("n_shared_experts") or 0) * width + int(c.get("shared_expert_intermediate_size") or 0)
    dense = int(c.get("first_k_dense_replace") or 0) if experts else layers
    embedding = vocab * hidden
    head = 0 if tied else vocab * hidden
    attention = _mla(c, hidden, heads, latent) if latent else hidden * head_dim * (2 * heads + 2 * kv_heads)
    if kind.startswith("Qwen2") or c.get("attention_bias"):
        attention += head_dim * (heads + 2 * kv_heads)
    norms = 2 * hidden + (2 * head_dim if kind.startswith("Qwen3") else 0)
    moe_mlp, one = (
        (experts * width + shared) * matrices * hidden + experts * hidden,
        (used * width + shared) * matrices * hidden,
    )
    body = layers * (attention + norms) + dense * matrices * hidden * inner + hidden
    text = embedding + head + body + (layers - dense) * moe_mlp
    active = embedding + head + body + (layers - dense) * (one + experts * hidden if experts else 0)
    params, exact = text, False
    quant = quant_of_config(c)
    stored = stored_bytes(tensors) if tensors else 0
    if tensors and not quant:
        counts = {k: _count(shape) for k, (shape, _) in tensors.items()}
        if tied:
            counts.pop("lm_head.weight", None)
        params = sum(counts.values())
        text = sum(v for k, v in counts.items() if not re.search(r"vision|visual|audio|multi_modal", k))
        active, exact = (text if not experts else active), True
    kinds = c.get("layer_types") or []
    window = int(c.get("sliding_window") or 0) if c.get("use_sliding_window", True) else 0
    full = sum("full" in str(k) for k in kinds)
    linear = sum("linear" in str(k) for k in kinds)
    local = sum("sliding" in str(k) for k in kinds) if kinds else (layers if window and kind.startswith("Mistral") else 0)
    return ModelSpec(
        id=name or kind,
        architecture=kind,
        params=params,
        text=text,
        active=active,
        embedding=embedding,
        head=head,
        hidden=hidden,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        tied=tied,
        context=int(c.get("max_position_embeddings") or c.get("n_positions") or 2048),
        dtype=str(c.get("dtype") or c.get("torch_dtype") or _dtype(tensors) or "float32").removeprefix("torch."),
        kv_width=latent + int(c.get("qk_rope_head_dim") or 0) if latent else 2 * kv_heads * head_dim,
        kv_layers=(full + local) if linear else layers,
        window=window if local else 0,
        local_layers=local if window else 0,
        mlp_matrices=matrices,
        experts=experts,
        experts_used=used,
        expert_width=width,
        mla=bool(latent),
        state_bytes=linear * _linear_state(c),
        qk_norm=kind.startswith(("Qwen3", "Gemma3")),
        reasoning=bool(re.search(r"r1|qwq|reason|think", name, re.I)),
        chat=bool(re.search(r"instruct|chat|-it\b|distill|r1|qwen3", name, re.I)),
        generation=_generation(generation or {}),
        generation_status="sourced" if generation else "",
        quant=quant,
        stored_bytes=stored,
        confidence="high" if exact else "medium",
        sources=("config.json", "safetensors headers") if tensors else ("config.json",),
    )


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count


def _mla(c: Mapping[str, Any], hidden: int, heads: int, latent: int) -> int:
    """Parameters of one latent-attention layer (DeepSeek-V2 paper, section 2.1)."""
    nope, rope, value = int(c["qk_nope_head_dim"]), int(c["qk_rope_head_dim"]), int(c["v_head_dim"])
    rank = int(c.get("q_lora_rank") or 0)
    query = hidden * rank + rank + rank * heads * (nope + rope) if rank else hidden * heads * (nope + rope)
    return query + hidden * (latent + rope) + latent + latent * heads * (nope + value) + heads * value * hidden


def _linear_state(c: Mapping[str, Any]) -> int:
    """Bytes that one gated-delta layer keeps for a sequence: a float32 matrix a value head, and the convolution's window."""
    keys, values = int(c.get("linear_num_key_heads") or 0), int(c.get("linear_num_value_heads") or 0)
    kd, vd = int(c.get("linear_key_head_dim") or 0), int(c.get("linear_value_head_dim") or 0)
    kernel = int(c.get("linear_conv_kernel_dim") or 0)
    return values * kd * vd * 4 + (2 * keys * kd + values * vd) * max(0, kernel - 1) * 2


def _dtype(tensors: Mapping[str, tuple[tuple[int, ...], str]] | None) -> str:
    names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
    return next((names[d] for _, d in (tensors or {}).values() if d in names), "")


def _generation(raw: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: raw[k] for k in ("temperature", "top_p", "top_k", "repetition_penalty", "do_sample") if k in raw}
    if "eos_token_id" in raw:
        eos = raw["eos_token_id"]
        kept["eos_token_ids"] = eos if isinstance(eos, list) else [eos]
    return kept
