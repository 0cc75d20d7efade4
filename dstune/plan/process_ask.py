"""The configuration that a running process was started with, as the question that `plan.memory` answers.

Pure: facts of the process (settings, config.json of its model) and of the server it belongs to; what nothing tells is an engine's default, named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dstune.catalog import gpus, models
from dstune.catalog.models import ModelSpec
from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import Value, parse_json
from dstune.plan import quant
from dstune.plan.ask import Ask
from dstune.plan.rows import checkpoint_dtype, with_card_dtype

Own = Mapping[str, Value]
"""Facts of one subject by name."""


def settings_of(facts: Own) -> dict[str, str]:
    """`process.settings` as a table: `vllm.max_model_len` → `8192`."""
    listed = facts.get("settings")
    return {name: value for name, _, value in (str(p).partition("=") for p in (listed if isinstance(listed, list) else []))}


def number(value: object) -> float | None:
    """The value as a number, None where it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def served(answers: Own) -> str:
    """The model that a server says it has."""
    listed = answers.get("models")
    return str(answers.get("model_root") or (listed[0] if isinstance(listed, list) and listed else ""))


def _list(value: Value) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else []


def spec_of(name: str, engine: str, facts: Own, answers: Own) -> ModelSpec:
    """The model of a process: its own config.json, else the catalogue's by a name. Raises `DstuneError` where neither is there."""
    text = facts.get("model_config")
    if isinstance(text, str):
        return _of_config(name, text)
    blind = engine == "llama.cpp" or "quantization" in str(
        answers.get("command") or ""
    )  # the id does not tell how wide they are
    for known in (name, str(answers.get("model_root") or ""), *_list(answers.get("models"))):
        if known and not blind:
            try:
                return models.find(known)
            except DstuneError:
                continue
    raise DstuneError(
        say(f"model config not found{f' for {name}' if name else ''}:", f"未找到模型配置{f'（{name}）' if name else ''}："), "",
        say("give --model DIR", "请给出 --model 目录"),
    )  # fmt: skip


@lru_cache(maxsize=32)
def _of_config(name: str, text: str) -> ModelSpec:
    """The catalogue's row where its shape is the config's (its counts are exact), else the config's own."""
    try:
        data: Any = parse_json(text)
        spec = models.from_config(data, name=name)
    except (ValueError, TypeError, AttributeError, ArithmeticError, IndexError) as error:
        raise DstuneError(
            say("config.json describes no model", "config.json 描述的不是模型"), str(error), say("give --model DIR", "请给出 --model 目录")
        ) from None  # fmt: skip
    if data.get("gguf"):
        return replace(spec, quant=str(data["gguf"]), dtype="float16")
    for known in models.rows():
        same = (known.hidden, known.layers, known.vocab, known.intermediate, known.kv_heads, known.tied)
        if same == (spec.hidden, spec.layers, spec.vocab, spec.intermediate, spec.kv_heads, spec.tied):
            return replace(known, quant=spec.quant, dtype=spec.dtype, id=known.id if known.short in name else spec.id)
    return spec


def _dtype(text: str, engine: str, version: str, spec: ModelSpec) -> tuple[str, str]:
    """(dtype, scheme) in memory; `text` as a command line or a program gives it."""
    word = text.removeprefix("torch.").strip("'\"")
    if engine == "llama.cpp":
        return quant.parse(spec.quant or "F16", engine)
    scheme = spec.quant
    if word in ("", "auto"):
        own = word and engine == "transformers"  # "auto" there is the checkpoint's, in any version
        return (spec.dtype if own and spec.dtype in quant.BYTES else checkpoint_dtype(spec, engine, version)), scheme
    return quant.parse(word, engine, scheme)[0], scheme


def ask_of(
    engine: str, version: str, spec: ModelSpec, board: gpus.Gpu, cards: int, visible: float, settings: Mapping[str, str], facts: Own, answers: Own
) -> tuple[Ask, tuple[str, ...]]:  # fmt: skip
    """The configuration of a process, and what had to be assumed."""
    prefix = {"llama.cpp": "llamacpp", "transformers": "transformers"}.get(engine, engine)

    def given(*names: str) -> str:
        return next((settings[n] for name in names if (n := name if "." in name else f"{prefix}.{name}") in settings), "")

    def whole(*names: str) -> int:
        text = given(*names)
        return int(float(text)) if text.replace(".", "", 1).isdigit() else 0

    def fraction(*names: str) -> float:
        text = given(*names)
        return float(text) if text.replace(".", "", 1).isdigit() else 0.0

    assumed = []
    if not settings:
        assumed.append(say("no settings were readable: the engine's defaults", "读不到设置：按引擎默认值"))
    dtype, scheme = _dtype(given("dtype", "hfserve.dtype"), engine, version, spec)
    asked = given("quantization", "hfserve.quantization").lower()
    if given("load_in_4bit") == "True" or "nf4" in asked or "4bit" in asked or "4-bit" in asked:
        scheme = "bnb-nf4"
    elif given("load_in_8bit") == "True" or asked in ("int8", "8bit", "8-bit"):
        scheme = "bnb-int8"
    elif asked in ("fp8", "bitsandbytes") and not scheme:
        scheme = {"fp8": "fp8", "bitsandbytes": "bnb-nf4"}[asked]
    ask = Ask(engine, board, spec, version=version, dtype=dtype, scheme=scheme, total_mib=visible)
    if engine == "vllm":
        parallel = whole("tensor_parallel_size") * max(1, whole("pipeline_parallel_size"))
        ask = replace(
            ask, gpus=parallel or cards, split="pipeline" if whole("pipeline_parallel_size") > 1 else "",
            utilization=fraction("gpu_memory_utilization") or number(answers.get("gpu_memory_utilization")) or 0.0,
            max_len=whole("max_model_len") or int(number(answers.get("max_model_len")) or 0), max_seqs=whole("max_num_seqs"),
            batched_tokens=whole("max_num_batched_tokens"), eager=given("enforce_eager") == "True", lora=given("enable_lora") == "True",
            kv_dtype=_kv(given("kv_cache_dtype")), cpu_offload_mib=1024 * fraction("cpu_offload_gb"),
            chunked={"True": True, "False": False}.get(given("enable_chunked_prefill")),
        )  # fmt: skip
    elif engine == "sglang":
        ask = replace(
            ask, gpus=whole("tp_size") or cards, utilization=fraction("mem_fraction_static") or number(answers.get("mem_fraction_static")) or 0.0,
            max_len=whole("context_length"), max_seqs=whole("max_running_requests"), kv_dtype=_kv(given("kv_cache_dtype")),
        )  # fmt: skip
    elif engine == "llama.cpp":
        slots, each = number(answers.get("slots")), number(answers.get("slot_context"))
        context = whole("ctx_size") or int((slots or 1) * (each or 0)) or spec.context
        layers = given("n_gpu_layers")
        ask = replace(
            ask, gpus=cards, max_len=context, batch=1, parallel=1, micro_batch=whole("ubatch_size"), kv_dtype=given("cache_type_k"),
            gpu_layers=int(layers) if layers.lstrip("-").isdigit() and int(layers) < 999 else -1,
            attention="" if given("flash_attn").lower() in ("off", "0", "false") else "on",
        )  # fmt: skip
        if not layers:
            assumed.append(say("every layer on the card (no -ngl given)", "所有层都在显卡上（未给 -ngl）"))
    else:
        static = given("generate.cache_implementation") == "static"
        attention = given("attn_implementation", "hfserve.attn_implementation")
        output = whole("generate.max_new_tokens") or 512
        ask = replace(
            ask, attention=attention if attention in ("eager", "sdpa", "flash_attention_2") else "", batch=max(1, whole("max_batch_size")),
            prompt=512, output=output, cache="static" if static else "dynamic", max_len=whole("max_cache_len") if static else 0,
        )  # fmt: skip
        if static and ask.batch > 1:
            ask = replace(ask, prompt=max(1, 2048 // ask.batch), output=1)
        else:
            assumed.append(
                say(f"one request of 512 prompt and {output} answer tokens at a time", f"一次一个请求：提示词 512、回答 {output} token")
            )  # fmt: skip
    return with_card_dtype(ask), tuple(assumed)


def _kv(text: str) -> str:
    return "" if text == "auto" else text
