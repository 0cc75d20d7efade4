"""Memory parts, their formulas and the plain ones of their sources in Chinese; the plan itself holds the English."""

from __future__ import annotations

import re

from dstune.lang import current, say

_PARTS = {
    "CUDA context": "CUDA 上下文",
    "weights: embedding": "权重：词嵌入",
    "weights: layers": "权重：各层",
    "weights: output head": "权重：输出头",
    "weights: other towers": "权重：其他模态",
    "KV cache": "KV 缓存",
    "KV cache pool": "KV 缓存池",
    "activations (prefill)": "激活（预填充）",
    "attention scores": "注意力分数",
    "logits": "logits",
    "decode buffers": "解码缓冲",
    "activations (profile run)": "激活（预热）",
    "sampler and logits (profile run)": "采样与 logits（预热）",
    "cuBLAS workspace": "cuBLAS 工作区",
    "allocator slack": "分配器余量",
    "rotary tables": "旋转位置编码表",
    "outside torch": "torch 之外",
    "compiler buffers": "编译缓冲",
    "CUDA graphs": "CUDA graph",
    "graphs and activations": "图与激活",
    "batch buffers": "合批缓冲",
    "compute buffer": "计算缓冲",
    "other processes": "其他进程",
}
_FORMULAS = (
    ("measured constant, outside vLLM's budget", "实测常数，在 vLLM 的预算之外"),
    ("measured constant", "实测常数"),
    ("layers x captured sizes", "层数 × 捕获的批大小个数"),
    ("one a stream", "每个 CUDA 流一份"),
    ("reserved beyond allocated", "已预留而未分配的部分"),
    ("(vocabulary or heads x context)", "（词表，或头数 × 上下文）"),
    ("(float32 has no flash kernel)", "（float32 没有 flash 内核）"),
    (", float32 copy of the last", "，另加末位的 float32 副本"),
    (" + embedding and head at ", "，词嵌入与输出头为 "),
    (
        "8,192 tokens of activations, mask and copies, logits of 1,024 requests",
        "8,192 个 token 的激活、掩码与副本，以及 1,024 个请求的 logits",
    ),
)
_SOURCES = {
    "rest of the budget": "预算中的剩余部分",
    "rest of mem_fraction_static": "mem_fraction_static 中的剩余部分",
    "shape of the model": "模型结构",
    "catalogue: parameter count of the checkpoint": "目录：检查点的参数量",
    "llama.cpp default of -ub": "llama.cpp 的 -ub 默认值",
}
_UNITS = {
    "bit": "位", "blocks": "块", "tokens": "token", "sequences": "条序列", "words": "词", "layers": "层", "heads": "头", "positions": "位置数", "x": "×",
    "GPUs": "张卡",
}  # fmt: skip


def part_name(part: str) -> str:
    """A memory line's name for a person."""
    return say(part, _PARTS.get(part, part))


def worked(formula: str) -> str:
    """A formula for a person."""
    if current() != "zh":
        return formula
    for english, chinese in _FORMULAS:
        formula = formula.replace(english, chinese)
    return re.sub(r"[A-Za-z]+", lambda found: _UNITS.get(found[0], found[0]), formula)


def stated(source: str) -> str:
    """A source for a person: a citation stays as it is."""
    return say(source, _SOURCES.get(source, source))
