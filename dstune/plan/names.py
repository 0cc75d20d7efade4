"""Names as reports write them → engine, card and model: other spellings, counts before a card's name, fine-tunes of a known model."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from dstune.catalog import gpus, models
from dstune.catalog.gpus import Gpu
from dstune.catalog.models import ModelSpec
from dstune.errors import DstuneError

_ENGINES = (
    (r"vllm", "vllm"),
    (r"sgl", "sglang"),
    (r"llamacpp|llamaserver|llamabench|llamacli|ggml|gguf", "llama.cpp"),
    (r"transformers|huggingface|^hf", "transformers"),
)
"""What an engine's name holds once only letters are left. Programs that embed an engine with settings of their own are not it."""

_FAMILIES = (
    (r"zephyr-7b|openchat-?3\.5|starling-lm-7b|neural-chat-7b|mistral(-|.*-)7b", "mistralai/Mistral-7B-Instruct-v0.1"),
    (r"mixtral|nous-hermes-2-mixtral", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    (
        r"(vicuna|wizardlm|guanaco|alpaca|koala|tulu|orca|hermes-llama-?2|llama-?2.*|deepseek-(coder|llm))-?(6\.7|7)b",
        "meta-llama/Llama-2-7b-hf",
    ),
    (r"(vicuna|wizardlm|guanaco|hermes|orca|tulu|llama-?2).*13b", "meta-llama/Llama-2-13b-chat-hf"),
    (r"llama-?3\.[123].*70b", "meta-llama/Llama-3.3-70B-Instruct"),
    (r"llama-?3.*[-_ ]8b|^llama ?8b|^llama-?3$", "meta-llama/Llama-3.1-8B-Instruct"),
    (r"llama-?3\.2.*1b|^llama ?1b", "meta-llama/Llama-3.2-1B-Instruct"),
    (r"llama-?3\.2.*3b|^llama ?3b", "meta-llama/Llama-3.2-3B-Instruct"),
    (r"qwen-?1\.5-7b|qwen1\.5-7b", "Qwen/Qwen-7B-Chat"),
    (r"qwen-?1\.5-14b", "Qwen/Qwen-14B-Chat"),
    (r"qwen-?1\.5-1\.8b", "Qwen/Qwen-1_8B-Chat"),
)
"""Fine-tunes and predecessors whose shape is that of a catalogue model."""


def engine_of(text: str) -> str:
    """The engine that a name means, or the name itself in lower case."""
    low = text.lower().strip()
    letters = re.sub(r"[^a-z]", "", low.split("(")[0])
    if "python" in letters or "class" in low:  # llama-cpp-python, "LM Studio class": bindings with defaults of their own
        letters = letters.replace("python", "")
    return next((engine for pattern, engine in _ENGINES if re.search(pattern, letters)), low)


def gpu_of(text: str) -> tuple[Gpu, int]:
    """(card, how many) of `2x RTX 3090`, `RTX 3090 x2`, `V100S-PCIE-32GB`."""
    name, count = text.strip(), 1
    if found := re.match(r"(\d{1,2})\s*[x×*]\s*(?=\D)", name, re.I):
        name, count = name[found.end() :], int(found[1])
    elif found := re.search(r"\s[x×]\s?(\d{1,2})$", name, re.I):
        name, count = name[: found.start()], int(found[1])
    try:
        return gpus.find(name), count
    except DstuneError:
        plain = re.sub(r"(?i)v100s", "v100", re.sub(r"\(.*?\)", "", name)).strip()
        if plain == name:
            raise
        return gpus.find(plain), count


def model_of(name: str) -> ModelSpec:
    """The model, or the catalogue model whose shape a fine-tune's name tells. Raises as `models.get` where it tells none."""
    try:
        return models.get(name)
    except DstuneError:
        kin = _kin(name)
        if kin is None:
            raise
        scheme = models.quant_of_name(name)
        return replace(kin, quant=scheme) if scheme else kin


def _kin(name: str) -> ModelSpec | None:
    tail = name.rsplit("/", 1)[-1].lower()
    folded = re.sub(r"[^a-z0-9.]", "", tail)
    for base, spec in _bases():
        if base in folded:
            return spec
    if re.search(r"deepseek-coder-6\.7b", tail):  # a Llama-2-7B in shape that reads four times as far
        return replace(models.find("meta-llama/Llama-2-7b-hf"), context=16384)
    return next((models.find(target) for pattern, target in _FAMILIES if re.search(pattern, tail)), None)


_TAIL = re.compile(r"[-_.]?(instruct|chat|hf|it|base|preview|v\d(\.\d)?|\d{4})$", re.I)


@cache
def _bases() -> tuple[tuple[str, ModelSpec], ...]:
    """Names of catalogue models without what marks a variant, the longest first."""
    found: dict[str, ModelSpec] = {}
    for spec in models.rows():
        base = spec.short
        while (cut := _TAIL.sub("", base)) != base:
            base = cut
        folded = re.sub(r"[^a-z0-9.]", "", base.lower())
        if len(folded) >= 6 and re.search(r"\d(m|b)", folded):
            found.setdefault(folded, spec)
    return tuple(sorted(found.items(), key=lambda kv: -len(kv[0])))
