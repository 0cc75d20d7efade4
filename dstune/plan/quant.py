"""Number formats of weights: bytes of body, embedding and head under a scheme."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dstune.catalog.models import ModelSpec
from dstune.errors import DstuneError
from dstune.lang import say
from dstune.plan import physics

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
MORE_SHARE = 0.5
"""Part of the attn_v and ffn_down matrices that a mixed gguf type gives its better format (llama-quant.cpp, use_more_bits)."""

_NAMES = {
    "fp32": ("float32", ""),
    "float32": ("float32", ""),
    "fp16": ("float16", ""),
    "float16": ("float16", ""),
    "half": ("float16", ""),
    "f16": ("float16", "F16"),
    "torch.bfloat16": ("bfloat16", ""),
    "torch.float16": ("float16", ""),
    "torch.float32": ("float32", ""),
    "bf16": ("bfloat16", ""),
    "bfloat16": ("bfloat16", ""),
    "fp8": ("bfloat16", "fp8"),
    "awq": ("float16", "awq-int4"),
    "gptq": ("float16", "gptq-int4"),
    "w4a16": ("bfloat16", "gptq-int4"),
    "int4": ("float16", "gptq-int4"),
    "nf4": ("bfloat16", "bnb-nf4"),
    "bitsandbytes": ("bfloat16", "bnb-nf4"),
    "8bit": ("float16", "bnb-int8"),
    "4bit": ("bfloat16", "bnb-nf4"),
    "w8a8": ("bfloat16", "int8"),
}


_PATTERNS = (
    (r"awq", "awq-int4"),
    (r"gptq.*8|w8a16", "gptq-int8"),
    (r"gptq|w4a16|marlin|hqq", "gptq-int4"),
    (r"fp8|e4m3", "fp8"),
    (r"w8a8|int8", "int8"),
    (r"nf4|fp4.*bnb|bnb.*4|4.?bit", "bnb-nf4"),
    (r"bnb.*8|8.?bit", "bnb-int8"),
    (r"nvfp4|fp4", "nvfp4"),
    (r"int4", "gptq-int4"),
)
"""What a longer description holds, the most telling first."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of the parts of a loaded model; `read` is what one decode step of one sequence reads."""

    body: float
    embedding: float
    head: float
    other: float
    read: float
    formula: str
    source: str

    @property
    def total(self) -> float:
        """All of it."""
        return self.body + self.embedding + self.head + self.other


def plain(text: str) -> str:
    """What a row says of its format, "" where that is only "as the checkpoint is"."""
    low = text.strip().lower()
    return "" if low in ("auto", "none", "default", "null", "compressed-tensors", "n/a", "-") else text


def parse(text: str, engine: str = "", checkpoint: str = "") -> tuple[str, str]:
    """(dtype, scheme) of what people write: `bf16`, `awq-int4 (marlin)`, `Q4_K_M`, `gguf-Q8_0`, `int8`.

    `int8` and `int4` in transformers are bitsandbytes. Raises `DstuneError` for a name that is no format.
    """
    word = text.split("(")[0].strip()
    low = re.sub(r"^(gguf|mostly|all|ud)[-_ ]|\.gguf$", "", word.lower())
    low = re.sub(r"^(q\d_k) - (s|m|l)\w*$", r"\1_\2", low)
    gguf = {k.lower(): k for k, v in physics.table("quant").items() if v["kernel"] == "gguf"}
    if low in gguf:
        return "float16", gguf[low]
    if low in ("f16", "fp16", "half", "float16", "bf16", "bfloat16") and engine == "llama.cpp":
        return "float16", "F16"
    if low in ("f32", "fp32", "float32") and engine == "llama.cpp":
        return "float32", "F32"
    if engine == "transformers" and low in ("int8", "int4"):
        return "float16", {"int8": "bnb-int8", "int4": "bnb-nf4"}[low]
    if engine == "vllm" and low == "int4":  # vLLM's first four bit format, and the usual one of reports that name none
        return "float16", "awq-int4"
    if low in _NAMES:
        dtype, scheme = _NAMES[low]
        return dtype, scheme if scheme != "F16" or engine == "llama.cpp" else ""
    if low in physics.table("quant"):
        if checkpoint.startswith(low):  # a checkpoint may say more than the row: bnb-nf4-unsloth
            return "bfloat16", checkpoint
        return "float16" if low.startswith(("awq", "gptq")) else "bfloat16", low
    for pattern, found in _PATTERNS:
        if re.search(pattern, text.lower()):
            return "float16" if found.startswith(("awq", "gptq")) else "bfloat16", found
    if (closest := re.match(r"[it]?q(\d)_", low)) and (near := next((k for k in gguf.values() if k[1] == closest[1]), "")):
        return "float16", near
    raise DstuneError(
        say(f"“{text}” is no number format that dstune knows", f"dstune 不认识数值格式“{text}”"),
        "",
        say(
            "use bf16, fp16, fp32, fp8, awq, gptq, nf4, int8 or a GGUF type such as Q4_K_M",
            "可用 bf16、fp16、fp32、fp8、awq、gptq、nf4、int8 或 Q4_K_M 等 GGUF 类型",
        ),
    )


def kernel(scheme: str) -> str:
    """The speed class of a scheme."""
    return str(physics.table("quant")[scheme]["kernel"]) if scheme else "plain"


def weights(model: ModelSpec, dtype: str, scheme: str = "", twice: bool = False) -> Weights:
    """Bytes of a model's parts. Without a scheme everything is stored at `dtype`; with one the body is quantised and, outside
    GGUF, embedding, head and a vision tower stay at `dtype`. `twice`: a loader that keeps a tied head beside the embedding where
    the checkpoint stores both (`untied` of the scheme)."""
    width = float(BYTES[dtype])
    rest = model.params - model.text
    if not scheme:
        body = model.body * width
        read = (model.read - model.output) * width + model.output * width
        return Weights(
            body, model.embedding * width, model.head * width, rest * width, read,
            f"{model.params:,} parameters x {width:g} B", "catalogue: parameter count of the checkpoint",
        )  # fmt: skip
    row = physics.table("quant")[scheme]
    bits = body_bits(model, scheme)
    body = model.body * bits / 8
    embed, head = _block(model, row.get("embed", 0)) / 8 or width, _block(model, row.get("output", 0)) / 8 or width
    if "embed" in row and model.tied:
        embed = max(embed, head)
    stored_head = model.head or (model.output if twice and row.get("untied") else 0)
    share = (model.read - model.output) / max(1, model.body)
    read = body * share + model.output * head
    return Weights(
        body, model.embedding * embed, stored_head * head, rest * width, read,
        f"{model.body:,} x {bits:.3g} bit + embedding and head at {embed * 8:.3g}/{head * 8:.3g} bit", row["source"],
    )  # fmt: skip


def body_bits(model: ModelSpec, scheme: str) -> float:
    """Bits a parameter of the body, mixed gguf types averaged over the matrices that get the better format."""
    row = physics.table("quant")[scheme]
    bits, more = _block(model, float(row["bits"])), _block(model, float(row.get("more", 0)))
    if not more:
        return bits
    better = model.layers * (model.hidden * model.kv_heads * model.head_dim + model.intermediate * model.hidden)
    return bits + (more - bits) * MORE_SHARE * min(1.0, better / max(1, model.body))


_FALLBACK = {2.625: 4.5, 3.4375: 4.5, 4.5: 5.5, 5.5: 6.0, 6.5625: 8.5}
"""Bits that llama.cpp takes instead where rows are no multiple of 256 (llama-quant.cpp: Q4_K to Q5_0, Q5_K to Q5_1, Q6_K to Q8_0)."""


def _block(model: ModelSpec, bits: float) -> float:
    """Bits of a gguf block format for a model of this width."""
    return _FALLBACK.get(bits, bits) if model.hidden % 256 else bits
