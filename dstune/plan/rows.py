"""Rows of measurements (or questions of that form) → `Ask`, and the metric that is asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dstune.catalog import models
from dstune.errors import DstuneError
from dstune.lang import say
from dstune.plan import physics, quant
from dstune.plan.ask import ENGINES, Ask
from dstune.plan.names import engine_of, gpu_of, model_of

UNKNOWN_PROMPT = 64
"""Prompt tokens where a report names none: "a short prompt" in the sources that leave it out."""


def ask_of(row: Mapping[str, Any]) -> Ask:
    """The configuration of a row (fields and flags as in `dstune estimate --jsonl`).

    Raises `DstuneError` where engine, card, model or number format is not known.
    """
    engine = engine_of(str(row["engine"]))
    if engine not in ENGINES:
        raise DstuneError(
            say(f"no physics for engine “{row['engine']}”", f"没有引擎“{row['engine']}”的物理模型"), "", ", ".join(ENGINES)
        )
    flags: Mapping[str, Any] = row.get("flags") or {}
    (gpu, cards), model = gpu_of(str(row["gpu"])), model_of(str(row["model"]))
    version = str(row.get("engine_version") or "")
    text = quant.plain(str(row.get("dtype_or_quant") or flags.get("quantization") or flags.get("dtype") or ""))
    dtype, scheme = quant.parse(text, engine, model.quant) if text else (checkpoint_dtype(model, engine, version), model.quant)
    if scheme and scheme != "bnb-nf4" and dtype == "bfloat16" and gpu.cc < (8, 0):
        dtype = "float16"
    attention = str(flags.get("attn") or flags.get("attn_implementation") or "")
    if engine == "transformers" and scheme.startswith("awq") and physics.release(engine, version) >= (4, 51):
        attention = attention.replace("flash_attention_2", "sdpa")  # AutoAWQ's environment of Qwen's report names no flash-attn
    if engine == "llama.cpp" and (flags.get("flash_attn") or flags.get("flash_attention")):
        attention = "on"
    total = float(flags.get("total_gpu_memory_gib") or 0) * 1024
    if limit := flags.get("power_limit_w"):
        gpu = replace(gpu, tdp_w=min(gpu.tdp_w or float(limit), float(limit)))
    seqs = _number(flags.get("max_num_seqs"), 0)
    batch = max(1, _number(row.get("batch_or_concurrency"), _number(flags.get("num_prompts"), 1))) * max(
        1, _number(flags.get("num_beams"), 1)
    )
    return Ask(
        engine=engine,
        gpu=gpu,
        model=model,
        version=version,
        gpus=max(cards, _number(row.get("n_gpus"), 0) or _number(flags.get("tensor_parallel_size") or flags.get("tp"), 1)),
        dtype=dtype,
        scheme=scheme,
        prompt=_number(row.get("input_tokens"), UNKNOWN_PROMPT),
        output=_number(row.get("output_tokens"), _number(flags.get("max_tokens"), 128)),
        batch=batch,
        attention=attention,
        cache=_cache(engine, flags),
        kv_dtype=str(flags.get("kv_cache_dtype") or flags.get("kv_cache_quant") or ""),
        utilization=float(flags.get("gpu_memory_utilization") or flags.get("mem_fraction_static") or 0),
        max_len=_number(flags.get("max_model_len") or flags.get("context_length"), 0),
        max_seqs=seqs,
        batched_tokens=_number(flags.get("max_num_batched_tokens") or flags.get("chunked_prefill_size"), 0),
        micro_batch=_number(flags.get("ubatch") or flags.get("n_batch"), 0),
        cpu_offload_mib=float(flags.get("cpu_offload_gb") or 0) * 1024,
        eager=bool(flags.get("enforce_eager")),
        lora=bool(flags.get("enable_lora")),
        chunked=flags.get("enable_chunked_prefill"),
        total_mib=total,
        gpu_layers=_layers(flags.get("ngl")),
        split=str(flags.get("split_mode") or ("pipeline" if flags.get("pipeline_parallel_size") else "")),
        steps=_number(flags.get("num_scheduler_steps"), 1),
        load=str(flags.get("load") or "device_map"),
        all_logits=bool(flags.get("all_logits")),
        expandable=bool(flags.get("expandable_segments")),
        layers_on_cpu=_number(flags.get("layers_on_cpu"), 0),
        arrival=str(flags.get("arrival") or "steady"),
        block=_number(flags.get("block_size"), 0),
        host_launch_us=float(flags.get("host_launch_us") or 0),
        cudnn=bool(flags.get("cudnn_attention")),
    )


def checkpoint_dtype(model: models.ModelSpec, engine: str, version: str) -> str:
    """The dtype that is loaded when none is named: float32 in transformers 4.x, else the checkpoint's; vLLM and SGLang halve a
    float32 checkpoint (`_get_and_verify_dtype` of their model configurations), llama.cpp has files of its own."""
    if engine == "transformers" and physics.value(engine, "default_dtype", version) == "float32":
        return "float32"
    if model.dtype == "float32" and engine in ("vllm", "sglang"):
        return "bfloat16"
    return model.dtype if model.dtype in quant.BYTES else "bfloat16"


def _cache(engine: str, flags: Mapping[str, Any]) -> str:
    """Kind of a transformers cache; continuous batching brings a paged one."""
    if engine == "transformers" and (flags.get("batching") == "continuous" or flags.get("continuous_batching")):
        return "paged"
    return str(flags.get("cache") or "dynamic")


def with_card_dtype(ask: Ask) -> Ask:
    """bfloat16 on a card without it runs as float16."""
    return replace(ask, dtype="float16") if ask.dtype == "bfloat16" and (0, 0) < ask.gpu.cc < (8, 0) else ask


def _number(value: Any, default: int) -> int:
    if value is None or isinstance(value, bool):
        return default
    if isinstance(value, int | float):
        return int(value)
    found = re.search(r"(\d+(?:\.\d+)?)\s*(k)?", str(value).replace(",", ""), re.I)
    return int(float(found[1]) * (1024 if found[2] else 1)) if found else default


def _layers(value: Any) -> int:
    count = _number(value, -1)
    return -1 if count >= 999 else count
