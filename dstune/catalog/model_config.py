"""A model out of its own files: config.json, generation_config.json, and the headers of safetensors files. Never a tensor."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dstune.catalog.models import ModelSpec, Tensors
from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import parse_json


def from_dir(path: str | Path) -> ModelSpec:
    """The model in a folder: `config.json`, and exact counts from the headers of its safetensors files where they are complete.

    Reads headers only, never tensors. Raises `DstuneError` where there is no usable config.json.
    """
    folder = Path(path)
    try:
        config = _object(folder / "config.json")
    except (OSError, ValueError) as error:
        raise DstuneError(
            say(f"no readable config.json in {folder}", f"{folder} 里没有可读的 config.json"),
            str(error),
            say("point --model at the folder that holds config.json", "请把 --model 指到含 config.json 的文件夹"),
        ) from None
    generation: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        generation = _object(folder / "generation_config.json")
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(header(file))
    try:
        return from_config(
            config, tensors, name=str(config.get("_name_or_path") or folder.resolve().name), generation=generation
        )
    except (ValueError, TypeError, AttributeError, ArithmeticError, IndexError) as error:
        raise DstuneError(
            say(f"{folder}/config.json describes no model", f"{folder}/config.json 描述的不是模型"),
            str(error),
            say("download config.json again", "请重新下载 config.json"),
        ) from None


_LARGEST = 16 << 20


def _object(file: Path) -> dict[str, Any]:
    """A JSON object of a file of a few kB. Raises `OSError` or `ValueError`."""
    if file.exists() and (
        not file.is_file() or file.stat().st_size > _LARGEST
    ):  # a pipe would wait, a gigabyte fill the memory
        raise ValueError(say("no file of a few kB", "不是几 kB 大小的普通文件"))
    data = parse_json(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError(say("not an object", "不是对象"))
    return data


def header(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of a safetensors file: {tensor: (shape, "BF16")}; {} for a file without a header."""
    if not file.is_file():
        return {}
    try:
        with file.open("rb") as handle:
            size = int.from_bytes(handle.read(8), "little")
            if not 2 <= size <= 200_000_000:
                return {}
            data = parse_json(handle.read(size))
    except (OSError, ValueError):
        return {}
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, of in data.items() if isinstance(data, dict) else ():
        shape, dtype = (of.get("shape"), of.get("dtype")) if isinstance(of, dict) else (None, None)
        if isinstance(shape, list) and isinstance(dtype, str) and all(isinstance(n, int) and 0 <= n < 1 << 48 for n in shape):
            found[name] = (tuple(shape), dtype)
    return found


_BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "U32": 32, "BF16": 16, "F16": 16, "I16": 16, "F8_E4M3": 8, "F8_E5M2": 8}


def stored_bytes(tensors: Tensors) -> int:
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
    tensors: Tensors | None = None,
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


def _dtype(tensors: Tensors | None) -> str:
    names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
    return next((names[d] for _, d in (tensors or {}).values() if d in names), "")


def _generation(raw: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: raw[k] for k in ("temperature", "top_p", "top_k", "repetition_penalty", "do_sample") if k in raw}
    if "eos_token_id" in raw:
        eos = raw["eos_token_id"]
        kept["eos_token_ids"] = eos if isinstance(eos, list) else [eos]
    return kept
