"""Sampling that a model's recipe asks for: as settings, and as a hint for clients."""

from __future__ import annotations

from dstune.catalog.models import ModelSpec
from dstune.model import Text
from dstune.model.plan import Setting

_WHY = {
    "temperature": ("the checkpoint's own default", "模型自带的默认值"),
    "top_p": ("the checkpoint's own default", "模型自带的默认值"),
    "top_k": ("the checkpoint's own default", "模型自带的默认值"),
}
_REASONING = (
    "vendor's advice for R1 models is 0.5 to 0.7; greedy decoding loops",
    "R1 系列官方建议 0.5–0.7；贪心解码会陷入重复",
)


def sampling(model: ModelSpec, engine: str) -> tuple[Setting, ...]:
    """Sampling defaults of the model's recipe as generation settings; none where the recipe has only remembered ones."""
    source = model.sources[-1] if model.sources else ""
    found = []
    for key, why in _WHY.items():
        if key in model.generation and model.generation_status != "recalled":
            en, zh = _REASONING if key == "temperature" and model.prompting else why
            found.append(Setting(f"generate.{key}", model.generation[key], {"en": en, "zh": zh}, source))
    if found and engine == "transformers":
        text = {"en": "the values above act only while sampling is on", "zh": "只有开启采样，上面的值才生效"}
        found.append(Setting("generate.do_sample", True, text, source))
    return tuple(found)


def client_hint(model: ModelSpec, output: int) -> Text | None:
    """What a client should send, from the recipe's `prompting` and generation defaults."""
    if not model.prompting:
        return None
    g, p = model.generation, model.prompting
    values = f"temperature={g.get('temperature')}, top_p={g.get('top_p')}, max_tokens={output}"
    prefix = str(p["think_prefix"]).replace("\n", "\\n")
    return {
        "en": f"Client: {values}; no system message (put instructions in the user turn); the answer should open with "
        f"{prefix}; for maths add: {p['math_directive']} ({p['source']})",
        "zh": f"客户端：{values}；不要 system 消息（指令写进 user 轮）；回答应以 {prefix} 开头；数学题加上："
        f"{p['math_directive']}（{p['source']}）",
    }
