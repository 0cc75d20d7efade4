"""A chat server of one's own: fixed code (recipes/templates/app) with a configuration, packages, image and page sized for a card."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from dstune.catalog import root
from dstune.lang import current, pick, say
from dstune.model.plan import Artifact, Plan, Setting
from dstune.plan.words import part_name
from dstune.render import compose, dockerfile
from dstune.render.context import Context, output_tokens, sampling
from dstune.render.size import Size
from dstune.render.template import fill

TIMEOUT_S = 120
"""Seconds of a request that people wait for; articles and load balancers use the same."""


def render(plan: Plan, context: Context, size: Size, limit_gib: float | None = None) -> tuple[Artifact, ...]:
    """All files of the program: code, config.yaml, requirements.txt, Dockerfile, compose.yaml, README.md."""
    context = replace(context, beside=frozenset({"app", "dockerfile", "compose"}))
    plan = _sized(plan, size)
    d = dockerfile.deploy(plan, context)
    values = _values(plan, context, size, limit_gib)
    shared: dict[str, Any] = {**values, "stack": d.stack, "size": size, "part_name": part_name}
    folder = root() / "templates" / "app"
    names = ["app.py", *(f"chat/{p.name}" for p in sorted((folder / "chat").glob("*.py")))]
    code = [Artifact(name, (folder / name).read_text(encoding="utf-8")) for name in names]
    texts = [Artifact(name, fill(f"app/{name}", **shared)) for name in ("config.yaml", "requirements.txt", "README.md")]
    ignored = ".git\n.venv\n__pycache__\n*.safetensors\n*.gguf\n*.bin\nmodels/\n.cache/\n.env\n*.log*\n"
    files = [dockerfile.render(plan, context), compose.render(plan, context), Artifact(".dockerignore", ignored)]
    return (*code, *texts, *files)


def _sized(plan: Plan, size: Size) -> Plan:
    """The plan with this size's memory, and with the setting that says which packages it needs."""
    wanted = {"nf4": "transformers.load_in_4bit", "int8": "transformers.load_in_8bit"}.get(size.quantization)
    kept = tuple(s for s in plan.settings if s.key not in ("transformers.load_in_4bit", "transformers.load_in_8bit"))
    more = (Setting(wanted, True, {"en": "", "zh": ""}, ""),) if wanted else ()
    return replace(plan, engine="transformers", settings=(*kept, *more), memory=size.lines)


def _values(plan: Plan, context: Context, size: Size, limit_gib: float | None) -> dict[str, Any]:
    """What the templates of configuration and page read."""
    model, asked = context.model, dict(context.model.prompting) if context.model else {}
    default = min(output_tokens(plan), size.context // 2)
    longest = size.context * 3 // 4
    title = model.short if model else plan.model
    why = _reasons(context, size)
    kept = ("dtype", "quantization", "layer_map", "concurrency", "context", "kv")
    return {
        "subject": f"{plan.model} · {context.gpu.label}",
        "path": os.path.abspath(context.folder) if context.folder else plan.model,
        "why": why,
        "reasons": [why[k] for k in kept if why[k]],
        "whys": {s.key: pick(s.why) for s in plan.settings},
        "limit": limit_gib,
        "public": context.public,
        "port": context.port or 7860,
        "queue": max(16, 2 * size.slots),
        "timeout": TIMEOUT_S,
        "sampling": {k: v for k, v in sampling(plan, model).items() if k in ("temperature", "top_p", "top_k")},
        "output": {"default": default, "math": min(2 * default, longest), "code": min(default * 3 // 2, longest)},
        "directive": asked.get("math_directive", ""),
        "system": "user" if asked.get("system") is False else "keep",
        "think": asked.get("think_prefix", ""),
        "source": asked.get("source", ""),
        "title": title,
        "language": current(),
        "zh": current() == "zh",
        "card": context.gpu.label,
        "memory": size.lines,
        "total": size.total_mib,
        "card_mib": context.gpu.memory_gib * 1024,
    }


def _reasons(context: Context, size: Size) -> dict[str, str]:
    """Why each choice was made, in the language in use."""
    gpu, kv = context.gpu, next((line.mib for line in size.lines if line.part.startswith("KV")), 0.0)
    half = gpu.cc < (8, 0)
    dtype = (
        say(f"bfloat16 needs compute capability 8.0, this card has {gpu.compute_capability}", f"bfloat16 需要计算能力 8.0，该卡为 {gpu.compute_capability}")
        if half
        else say("the checkpoint's own type; float32 would double it", "与检查点一致；float32 会翻倍")
    )  # fmt: skip
    quantization = {
        "none": say("16 bit fits; 4 bit would cost quality and speed", "16 位放得下；4 位会损失质量和速度"),
        "nf4": say("4-bit weights (bitsandbytes nf4): about 6 % of a 1.5B model's score", "4 位权重（bitsandbytes nf4）：1.5B 模型约损失 6 % 分数"),
        "int8": say("8-bit weights (bitsandbytes): slower, and no CUDA graphs", "8 位权重（bitsandbytes）：更慢，且不能用 CUDA graph"),
    }[size.quantization]  # fmt: skip
    cost = say(
        f"{size.on_cpu} layers stay in host memory and are copied to the card for each token: some ten times slower, but it runs",
        f"{size.on_cpu} 层留在主机内存，每个 token 都要拷到显卡：约慢十倍，但能运行",
    )
    one = say("one answer at a time, as fast as this card can (latency); more answer several users together (throughput)",
              "一次只回答一个请求，速度最快（latency）；调大则多个用户合批回答（throughput）")  # fmt: skip
    many = say(
        f"answers that run together in one batch (throughput); each reserves its {size.context:,} tokens of cache",
        f"同一批中同时进行的回答数（throughput）；每个预留 {size.context:,} token 的缓存",
    )
    context_ = say(
        f"tokens of prompt and answer together, reserved for each of the {size.slots}: {kv:,.0f} MiB in all",
        f"提示词与回答合计的 token 数，为 {size.slots} 个回答各自预留：共 {kv:,.0f} MiB",
    )
    ratio = (
        say("the cache in the model's own type; 0.5 to 0.99: 8 bit, half of it", "缓存与模型同精度；0.5 到 0.99：8 位，减半")
        if size.ratio >= 1
        else say("8-bit cache with a scale for each token and head, since 16 bit does not fit", "8 位缓存（每 token 每头一个缩放系数），因为 16 位放不下")
    )  # fmt: skip
    return {
        "dtype": dtype,
        "quantization": quantization,
        "layer_map": cost if size.layer_map else "",
        "concurrency": one if size.slots == 1 else many,
        "context": context_,
        "kv": ratio,
    }
