"""How many answers at once, how long, and in which number format: what of that fits on a card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dstune.catalog.gpus import Gpu
from dstune.catalog.models import ModelSpec
from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model.plan import MemoryLine
from dstune.plan.ask import Ask
from dstune.plan.fit import HARDWARE_MARGIN_MIB
from dstune.plan.memory import Memory, memory

PREFILL = 2048
"""Prompt tokens that the generated program reads in one pass (PREFILL of its chat/engine.py)."""
SCRATCH = 8
"""Positions behind the context of each slot (PADDING of its chat/attention.py)."""
GRAPH_MIB = 11.4
"""A recorded decode step: 11.9 MB each of nine, outside torch's own memory (measurements/h200-generated-app.json, phase steps)."""
LADDER = {
    "latency": ((1, 8192), (1, 4096), (1, 2048)),
    "throughput": ((32, 4096), (32, 2048), (16, 4096), (16, 2048), (8, 4096), (8, 2048), (4, 2048)),
}
"""(answers at once, tokens of each), the most generous first."""


@dataclass(frozen=True)
class Size:
    """What the configuration of a generated program says, and the memory it takes."""

    slots: int
    context: int
    dtype: str
    quantization: str
    ratio: float
    lines: tuple[MemoryLine, ...]
    total_mib: float
    layer_map: dict[str, list[str]] | None = None
    on_cpu: int = 0


def size(
    gpu: Gpu, model: ModelSpec, mode: str, slots: int = 0, context: int = 0, limit_mib: float = 0.0, others_mib: float = 0.0, quantization: str = ""
) -> Size:  # fmt: skip
    """The most generous size that fits: 16 bit first, then half the cache, then 4-bit weights, then layers on the CPU.

    What is asked for (`slots`, `context`, `quantization`) is kept. Raises `DstuneError` where nothing fits.
    """
    dtype = "float16" if gpu.cc < (8, 0) else "bfloat16" if model.dtype in ("bfloat16", "float32") else model.dtype
    last = None
    for made, mem in _sizes(gpu, model, mode, slots, context, dtype, quantization):
        last = made
        room = (limit_mib or mem.total_mib + mem.room_mib - others_mib) - mem.total_mib
        if room >= (0 if limit_mib else HARDWARE_MARGIN_MIB):
            return made
    assert last is not None
    free = limit_mib or gpu.memory_gib * 1024 - others_mib
    raise DstuneError(
        say(f"{model.short} does not fit in {free / 1024:.1f} GiB of {gpu.label}", f"{model.short} 放不进 {gpu.label} 的 {free / 1024:.1f} GiB"),
        say(
            f"{last.slots} × {last.context:,} tokens need {last.total_mib / 1024:.1f} GiB in the smallest form",
            f"{last.slots} × {last.context:,} token 的最小形式也需要 {last.total_mib / 1024:.1f} GiB",
        ),
        say("a smaller --context or --concurrency, or a smaller model", "减小 --context 或 --concurrency，或换更小的模型"),
    )  # fmt: skip


def _sizes(
    gpu: Gpu, model: ModelSpec, mode: str, slots: int, context: int, dtype: str, quantization: str
) -> Iterator[tuple[Size, Memory]]:
    """Sizes in the order of preference."""
    longest = model.context or 8192
    rungs = list(dict.fromkeys((slots or s, min(context or c, longest)) for s, c in LADDER[mode]))
    forms = [quantization] if quantization else ["none", "nf4"]
    if model.quant:
        forms = ["none"]  # the checkpoint is quantised already
    for form in forms:
        for ratio in (1.0, 0.5):
            for s, c in rungs:
                yield _made(gpu, model, s, c, dtype, form, ratio, 0)
    s, c = rungs[-1]
    if forms == ["nf4"] or model.quant:
        return
    for on_cpu in range(1, model.layers):
        yield _made(gpu, model, s, c, dtype, "none", 1.0, on_cpu)


def _made(
    gpu: Gpu, model: ModelSpec, slots: int, context: int, dtype: str, form: str, ratio: float, on_cpu: int
) -> tuple[Size, Memory]:
    scheme = model.quant or {"none": "", "nf4": "bnb-nf4", "int8": "bnb-int8"}[form]
    mem = memory(
        Ask(
            "transformers", gpu, model, dtype=dtype, scheme=scheme, batch=slots, prompt=max(1, min(PREFILL, slots * context) // slots), output=1,
            cache="static", max_len=context + SCRATCH, kv_dtype="" if ratio >= 1 else "fp8", layers_on_cpu=on_cpu,
        )
    )  # fmt: skip
    count = 0 if on_cpu or form == "int8" else len(_steps(1, slots, 8)) * len(_steps(min(512, context), context, 2))
    graphs = MemoryLine("CUDA graphs", count * GRAPH_MIB, f"{count} x {GRAPH_MIB} MiB", "measurements/h200-generated-app.json")
    mem = replace(mem, lines=(*mem.lines, graphs) if count else mem.lines, room_mib=mem.room_mib - graphs.mib)
    split = (
        {"cuda:0": _range(0, model.layers - on_cpu - 1), "cpu": _range(model.layers - on_cpu, model.layers - 1)}
        if on_cpu
        else None
    )
    return Size(slots, context, dtype, form, ratio, mem.lines, mem.total_mib, split, on_cpu), mem


def _steps(low: int, high: int, by: int) -> list[int]:
    """Row counts and lengths for which the program records a step (`steps` of its chat/decoder.py)."""
    out = [low]
    while out[-1] < high:
        out.append(min(by * out[-1], high))
    return out


def _range(first: int, last: int) -> list[str]:
    return [f"{first}-{last}"] if last > first else [str(first)]
