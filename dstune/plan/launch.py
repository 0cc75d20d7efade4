"""Settings → the command that starts the server, through the flags of the engine's recipe."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from dstune.catalog.vocabulary import terms
from dstune.model.plan import Setting

_PROGRAM = {
    "vllm": "vllm serve {model}",
    "sglang": "python -m sglang.launch_server --model-path {model}",
    "llama.cpp": "llama-server {model}",
}


def launch(engine: str, model: str, settings: Sequence[Setting]) -> str:
    """One shell line; for transformers the two calls of a Python program."""
    if engine == "transformers":
        return _python(model, settings)
    words = [_PROGRAM[engine].format(model=model if engine == "llama.cpp" else shlex.quote(model))]
    for setting in settings:
        term = terms().get(setting.key)
        if term is None or not term.spec.get("flag") or term.engine == "transformers":
            continue
        flag = term.spec["flag"][0]
        if term.spec.get("switch"):
            if setting.value is True:
                words.append(flag)
            elif setting.value is False and term.spec.get("off"):
                words.append(term.spec["off"])
            continue
        words += [flag, shlex.quote(str(setting.value))]
    return " ".join(words)


def _python(model: str, settings: Sequence[Setting]) -> str:
    load: list[str] = []
    call: list[str] = []
    for s in settings:
        family, name = s.key.split(".")
        value = f"torch.{s.value}" if name == "dtype" else json.dumps(s.value) if isinstance(s.value, str) else repr(s.value)
        (load if family == "transformers" and name != "max_cache_len" else call).append(f"{name}={value}")
    return (
        f"model = AutoModelForCausalLM.from_pretrained({json.dumps(model)}, {', '.join(load)})\n"
        f"model.generate(**inputs, {', '.join(call)})"
    )


def gguf_repo(aliases: Sequence[str]) -> str:
    """The GGUF upload among a model's aliases, "" for none."""
    return next(
        (a for owner in ("Qwen/", "bartowski/", "unsloth/", "") for a in aliases if a.startswith(owner) and a.endswith("GGUF")),
        "",
    )


def quantised_repo(aliases: Sequence[str], pattern: str) -> str:
    """An upload whose name matches (`awq`, `gptq-int4|w4a16`), the model's own owner first."""
    return next((a for a in aliases if "/" in a and re.search(pattern, a, re.I)), "")
