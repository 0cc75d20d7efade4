"""Loads the model and its tokenizer as configured, and checks that they can be served."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer

from chat.attention import NAME, slot_attention
from chat.settings import Settings, SettingsError, layers

AttentionInterface.register(NAME, slot_attention)


@dataclass
class Loaded:
    """A model that is ready. `device` takes token ids; `spread` says that layers are on several devices."""

    model: Any
    config: Any
    device: torch.device
    spread: bool

    @property
    def graphs(self) -> bool:
        """Whether a decode step can be recorded as a CUDA graph: one card, and no layer that waits for the host."""
        quantized = getattr(self.model, "is_loaded_in_8bit", False)
        return self.device.type == "cuda" and not self.spread and not quantized


def tokenizer(settings: Settings) -> Any:
    """The tokenizer. Raises `SettingsError` where it has no chat template."""
    made = _read(AutoTokenizer, settings.model.path)
    if not made.chat_template:
        raise SettingsError(
            f"model.path: {settings.model.path} has no chat template: it is a base model, or its tokenizer files are incomplete"
        )
    return made


def longest(settings: Settings) -> int:
    """Tokens the model reads at most. Raises `SettingsError` where the configured context is longer."""
    most = int(getattr(_read(AutoConfig, settings.model.path), "max_position_embeddings", 0) or 0)
    if most and settings.cache.context > most:
        raise SettingsError(f"cache.context: {settings.model.path} reads at most {most} tokens, not {settings.cache.context}")
    return most


def _read(kind: Any, path: str) -> Any:
    """The configuration or the tokenizer of a model. Raises `SettingsError` where it cannot be had."""
    try:
        return kind.from_pretrained(path)
    except (OSError, ValueError) as error:
        nowhere = "" if os.path.isdir(path) else f"; there is no folder {os.path.abspath(path)} either"
        raise SettingsError(f"model.path: {path} cannot be read: {_first(error)}{nowhere}") from error


def _first(error: BaseException) -> str:
    """The first line of what a library says."""
    return str(error).strip().split("\n")[0].rstrip(". ") or type(error).__name__


def load(settings: Settings) -> Loaded:
    """The model on its devices. Raises `SettingsError` where it cannot be had here as configured."""
    wanted = settings.model
    cuda = torch.cuda.is_available()
    if cuda:
        # cuDNN's attention plans anew for every new (batch, length): 50 ms a step on an H200 for text of ever new length, 3.4 times
        # the whole step. The flash and memory-efficient kernels plan nothing.
        torch.backends.cuda.enable_cudnn_sdp(False)
        # One stream for everything this thread starts: cuBLAS keeps a workspace for each stream that it has seen (32 MiB on Hopper), and
        # CUDA graphs can be recorded on any but the default one.
        if torch.cuda.current_stream() == torch.cuda.default_stream():
            torch.cuda.set_stream(torch.cuda.Stream())
        if wanted.vram_limit_gib:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, wanted.vram_limit_gib * 2**30 / total))
    config = AutoConfig.from_pretrained(wanted.path)
    placed = _device_map(settings, config.num_hidden_layers) if wanted.layer_map else "cuda:0" if cuda else "cpu"
    try:
        model = AutoModelForCausalLM.from_pretrained(
            wanted.path,
            dtype=_dtype(wanted.dtype, cuda),
            device_map=placed,
            attn_implementation=NAME,
            **_quantized(wanted.quantization),
        )
    except torch.cuda.OutOfMemoryError as error:
        raise SettingsError(
            f"model: the card has no room for {wanted.path}: {_first(error)}; see who else is on it (nvidia-smi), or write "
            "model.quantization: nf4, or a model.layer_map with layers on the cpu"
        ) from error
    except SafetensorError as error:
        raise SettingsError(
            f"model.path: a file of {wanted.path} is damaged ({_first(error)}); download the model again"
        ) from error
    except (OSError, ValueError, ImportError) as error:
        raise SettingsError(f"model: {wanted.path} cannot be loaded as configured: {_first(error)}") from error
    model.eval()
    if cuda:
        torch.cuda.synchronize()  # loading may have copied on other streams
        torch.cuda.empty_cache()  # quantising while loading leaves the 16-bit originals in torch's reserve
    spread = len(set(getattr(model, "hf_device_map", {}).values())) > 1
    device = torch.device(placed["model.embed_tokens"] if isinstance(placed, dict) else placed)
    return Loaded(model, config, torch.device("cuda:0") if cuda and device.type == "cpu" and spread else device, spread)


def _dtype(name: str, cuda: bool) -> torch.dtype:
    """auto: bfloat16 from Ampere on (compute capability 8), float16 on older cards, float32 on a CPU, which has fast kernels for no other."""
    if name != "auto":
        return getattr(torch, name)
    if not cuda:
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16


def _quantized(name: str) -> dict[str, Any]:
    """Quantisation while loading. A checkpoint that is quantised already (GPTQ, AWQ, FP8) says so itself and needs `none` here."""
    if name == "none":
        return {}
    from transformers import BitsAndBytesConfig

    if name == "int8":
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}
    compute = torch.bfloat16 if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0) else torch.float16
    return {
        "quantization_config": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute)
    }


def _device_map(settings: Settings, count: int) -> dict[str, str]:
    """`layer_map` as accelerate's device map. Embedding and output head stand with the first and the last layer on a card.

    A layer on the CPU is copied to the card for each token: about 13 times slower when half of the layers are there (measured on an H200).
    """
    by_layer = layers(settings.model.layer_map or {}, count)
    cards = [d for _, d in sorted(by_layer.items()) if d != "cpu"] or ["cpu"]
    ends = {"model.embed_tokens": cards[0], "model.rotary_emb": cards[0], "model.norm": cards[-1], "lm_head": cards[-1]}
    return {**ends, **{f"model.layers.{n}": d for n, d in by_layer.items()}}


def end_tokens(settings: Settings, tokenizer: Any) -> set[int]:
    """The tokens that end an answer: those of the generation configuration, and the tokenizer's own."""
    from transformers import GenerationConfig

    found: list[int] = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    try:
        named = GenerationConfig.from_pretrained(settings.model.path).eos_token_id
    except OSError:
        named = None
    return {*found, *(named if isinstance(named, list) else [named] if named is not None else [])}
