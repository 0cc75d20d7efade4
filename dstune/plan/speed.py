"""Speed of one configuration: a step is bytes over bandwidth or flops over rate, plus what each layer and step costs.

    decode step = max(host, p-norm(bytes / bandwidth, flops / rate) + layers x layer + step + sequences x sequence)
    bandwidth   = p-norm minimum of (datasheet x part) and (SMs x clock x bytes in flight a clock)
    prefill     = max(floor, flops / (peak x part) + layers x layer)

The host term counts in eager loops (transformers) only; CUDA graphs take it away. A first token of such a loop takes the same launches (its
floor), and its attention has a rate of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dstune.catalog.gpus import Gpu
from dstune.catalog.models import ModelSpec
from dstune.plan import physics
from dstune.plan.ask import Ask, dies
from dstune.plan.memory import _kv_width, kv_bytes, memory, tensor_parallel, vllm_limits
from dstune.plan.quant import BYTES, kernel, weights

SHARP = 4.0
"""Exponent of the p-norms: how sharply one limit takes over from another."""

DEFAULT_CLOCK_MHZ = 1830.0
"""Boost clock where the datasheet row has none (H20, GH200: Hopper boards, 1755 to 1980 MHz)."""


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of one decode step and what it is made of."""

    total: float
    gpu: float
    host: float
    memory: float
    compute: float
    overhead: float

    @property
    def bound(self) -> str:
        """What limits it: `launch` (host), `bandwidth`, `compute` or `overhead` (kernels and scheduler)."""
        if self.host >= self.gpu:
            return "launch"
        parts = {"bandwidth": self.memory, "compute": self.compute, "overhead": self.overhead}
        return max(parts, key=lambda k: parts[k])


@dataclass(frozen=True, slots=True)
class Speed:
    """Rates of a configuration: decode tokens/s of one stream and of all, prefill tokens/s, TTFT in ms; `streams` run at once."""

    step: Step
    decode: float
    total: float
    prefill: float
    ttft_ms: float
    streams: float


def _norm(a: float, b: float) -> float:
    return float((a**SHARP + b**SHARP) ** (1 / SHARP))


def bandwidth(ask: Ask) -> float:
    """Bytes/s that the engine's matrix-vector kernels reach on this card."""
    g, e, kind = ask.gpu, ask.engine, kernel(ask.scheme)
    part = physics.value(e, "bandwidth") * physics.table("common")["kernel_bandwidth"][kind]
    if g.unified:
        part *= physics.value("common", "unified_bandwidth")
    streaming = g.bandwidth_gb_s * 1e9 * part / dies(g)
    if not g.sm_count or not g.cc[0]:
        return float(streaming)
    in_flight = g.sm_count * sm_bandwidth(ask) * physics.table("common")["kernel_sm"][kind]
    if ask.scheme.startswith("awq") and e == "vllm":
        in_flight *= physics.value("vllm", "awq_sm", ask.version)
    if e == "llama.cpp" and ask.scheme:
        in_flight *= physics.table("quant")[ask.scheme].get("sm", 1.0)
    in_flight *= physics.table(e).get("sm_arch", {}).get(g.architecture, 1.0)
    return 1 / _norm(1 / streaming, 1 / in_flight)


def sm_bandwidth(ask: Ask) -> float:
    """Bytes/s that one SM streams: what it keeps in flight, a clock."""
    return float((ask.gpu.clock_mhz or DEFAULT_CLOCK_MHZ) * 1e6 * physics.value(ask.engine, "sm_bytes", ask.version))


def _cdna(ask: Ask) -> bool:
    return ask.gpu.architecture.startswith("CDNA")


def _launch_factor(ask: Ask) -> float:
    return float(physics.table("common")["cdna_layer"][ask.engine]) if _cdna(ask) else 1.0


def rate(ask: Ask) -> float:
    """Flops/s that matrix products reach: the card's peak for the number format, times the engine's part of it."""
    g = ask.gpu
    part = physics.value(ask.engine, "prefill_rate")
    if g.architecture.startswith("CDNA"):
        part *= physics.value("common", "cdna_rate") / dies(g)
    peak = g.fp16_tflops or g.fp32_tflops
    if ask.dtype == "float32" and not ask.scheme:
        peak = g.fp32_tflops
    elif ask.engine == "llama.cpp":
        peak = g.fp16_accum_tflops or peak
        if kernel(ask.scheme) == "gguf" and g.cc == (6, 1) and g.int8_tops:  # dp4a: quantised prompts are integer products
            peak = max(peak, g.int8_tops)
    elif ask.scheme == "fp8" and g.fp8_tflops and ask.engine != "transformers":
        peak = g.fp8_tflops
    reached = peak * 1e12 * part
    if ask.engine == "llama.cpp":
        watts = physics.table(ask.engine)["tflops_per_watt"].get("Ampere80" if g.cc == (8, 0) else g.architecture)
        if watts and g.tdp_w:
            reached = 1 / _norm(1 / reached, 1 / (watts * g.tdp_w * 1e12))
        reached *= physics.value(ask.engine, "prefill_gguf") if kernel(ask.scheme) == "gguf" else 1.0
    return float(reached)


def decode_step(ask: Ask, streams: float, context: float) -> Step:
    """One decode step of `streams` sequences with `context` tokens each."""
    m, e, tp = ask.model, ask.engine, tensor_parallel(ask)
    w = weights(m, ask.dtype, ask.scheme or ("F16" if e == "llama.cpp" else ""))
    read = min(w.read * m.reads(streams), w.total)
    width = _kv_width(ask)
    kv = streams * kv_bytes(m, context, width)
    cdna = physics.table("vllm")["cdna"] if e == "vllm" and _cdna(ask) else {}
    moved = kv * (cdna.get(ask.gpu.architecture) or (physics.value("common", "cdna_kv") if _cdna(ask) else 1.0))
    memory_s = (read / bandwidth(ask) + moved / bandwidth(replace(ask, scheme=""))) / tp
    flops = 2 * streams * m.read + 4 * streams * context * m.heads * m.head_dim * m.kv_layers
    compute_s = flops / tp / rate(ask)
    on_host = 1 - min(ask.gpu_layers, m.layers) / m.layers if e == "llama.cpp" and ask.gpu_layers >= 0 else 0.0
    host_s = on_host * w.body / (physics.value("llama.cpp", "host_ram_gb_s") * 1e9) if on_host else 0.0
    memory_s *= 1 - on_host * w.body / max(1.0, w.read) if on_host else 1.0
    static = e == "transformers" and ask.cache == "static"
    prefix = "static_" if static else ""
    layer = physics.value(e, prefix + "layer_us", ask.generation) * 1e-6 * _launch_factor(ask)
    step = physics.value(e, prefix + "step_us", ask.generation) * 1e-6
    overhead = (
        m.layers * layer + step + streams * cdna.get("sequence_us", physics.value(e, "sequence_us", ask.generation)) * 1e-6
    )
    host = 0.0
    overhead += host_s
    if e == "llama.cpp" and post_norms(m):
        overhead += m.layers * physics.value(e, "post_norms_us") * 1e-6
    if m.experts and e in ("vllm", "sglang"):
        overhead += m.layers * physics.value("common", "moe_layer_us") * 1e-6
    if e == "transformers" and not static:
        costs = physics.entry(e, "quant_layer_us", ask.version)
        quant = costs.get(ask.scheme, costs[kernel(ask.scheme)])
        overhead += m.layers * physics.table(e)["quant_gpu_layer_us"].get(kernel(ask.scheme), 0.0) * 1e-6
        host = host_launches(m, ask.attention) * launch_us(ask) * 1e-6 + m.layers * quant * 1e-6
        host += m.layers * physics.value(e, "cudnn_layer_us") * 1e-6 if ask.cudnn else 0.0
        host += expert_loop(ask, streams)
        if ask.layers_on_cpu:
            moved = w.body * ask.layers_on_cpu / m.layers
            host += moved / (physics.value(e, "offload_pageable_gb_s") * 1e9)
    elif e == "vllm" and ask.cpu_offload_mib:
        host = ask.cpu_offload_mib * 2**20 / (ask.gpu.pcie_gb_s * 1e9 * physics.value("common", "pcie_part"))
    elif e in ("vllm", "sglang") and (ask.eager or _beyond_graphs(ask, context)):
        linear = (m.layers - m.kv_layers) * (physics.value("vllm", "eager_linear") - 1)
        host = (m.layers + linear) * physics.value("vllm", "eager_layer_us") * 1e-6
    if tp > 1:
        overhead += m.layers * 2 * physics.value("vllm", "allreduce_us") * 1e-6
    attention_s = _attention(ask, streams, context, kv, width) if e == "transformers" else 0.0
    gpu = _norm(memory_s, compute_s) + overhead + attention_s
    return Step(max(gpu, host), gpu, host, memory_s, compute_s, overhead)


def host_launches(m: ModelSpec, attention: str = "") -> int:
    """Kernels that one step of an eager loop launches; eager attention has some of its own."""
    row = physics.entry("transformers", "host_launches")
    more = (row["qk_norm"] if m.qk_norm else 0) + (row["post_norms"] if post_norms(m) else 0)
    more += row["eager_attention"] if attention == "eager" else 0
    return int(m.layers * (row["layer"] + more) + row["step"])


def post_norms(m: ModelSpec) -> bool:
    """Whether each layer also has norms after attention and MLP."""
    return m.architecture.startswith(("Gemma2", "Gemma3"))


def launch_us(ask: Ask) -> float:
    """Host microseconds of one launch: measured on the host, or what published loops of this version took."""
    return ask.host_launch_us or float(physics.value("transformers", "host_launch_us", ask.version))


def expert_loop(ask: Ask, tokens: float) -> float:
    """Host seconds of the Python loop over experts in a transformers step of `tokens` tokens."""
    m = ask.model
    if not m.experts or ask.engine != "transformers":
        return 0.0
    row = physics.entry("transformers", "expert_us", ask.version)
    visited = m.experts if row["all"] else m.experts * (1 - (1 - m.experts_used / m.experts) ** tokens)
    each = row["value"] + (
        physics.value("transformers", "expert_fp8_us") if kernel(ask.scheme) == "fp8" and row["value"] else 0.0
    )
    return float(m.layers * visited * each * 1e-6)


def _beyond_graphs(ask: Ask, context: float) -> bool:
    """Whether this context is longer than the graphs of an early vLLM cover."""
    limit = physics.value("vllm", "captured_context", ask.version) if ask.engine == "vllm" else 0
    return bool(limit) and context > limit


def _attention(ask: Ask, streams: float, context: float, kv: float, width: float) -> float:
    """What a transformers cache costs beside reading it once: growth by copying, one SM a head, or expanded heads."""
    m, e = ask.model, "transformers"
    if ask.cache == "static":
        return float(physics.value(e, "static_expand") * kv * m.heads / max(1, m.kv_heads) / bandwidth(ask))
    stream = bandwidth(replace(ask, scheme=""))
    kind = "flash_attention_2" if ask.attention == "flash_attention_2" else "sdpa"
    seconds = physics.value(e, "cache_copies") * kv / stream
    expand = physics.entry(e, "repeat_kv", ask.version)[kind] if m.kv_heads < m.heads else 0.0
    seconds += expand * kv * m.heads / m.kv_heads / stream
    unsplit = physics.entry(e, "unsplit_attention", ask.version)[kind]
    if unsplit and not (expand and ask.version and not ask.at_least("4.48")):
        waves = max(1.0, streams * m.heads / max(1, ask.gpu.sm_count))
        seconds += unsplit * waves * context * m.kv_layers * 2 * m.head_dim * width / sm_bandwidth(ask)
    return float(seconds)


def prefill_seconds(ask: Ask, tokens: float, length: float) -> float:
    """Seconds to read `tokens` prompt tokens in sequences of `length`."""
    m, e, tp = ask.model, ask.engine, tensor_parallel(ask)
    linear = 2 * (m.read - m.output) * tokens + 2 * m.output * max(1.0, tokens / max(1.0, length))
    attention = 2 * m.kv_layers * m.heads * m.head_dim * length * tokens
    one = decode_step(ask, 1, length)
    if e == "transformers":
        return _loop_prefill(ask, tokens, length, linear, attention, one)
    seconds = (linear + attention) / tp / rate(ask)
    if e == "llama.cpp" and ask.gpus > 1 and ask.split != "none" and tokens > physics.value(e, "ubatch"):
        seconds /= 1 + (2 * ask.gpus / (ask.gpus + 1) - 1) * physics.value(e, "pipeline")
    return float(_norm(seconds, one.memory)) + one.overhead


def _loop_prefill(ask: Ask, tokens: float, length: float, linear: float, attention: float, one: Step) -> float:
    """The prompt pass of a transformers loop: the launches of one pass, or products, attention and the elementwise kernels between them.

    `linear` and `attention` are flops, the latter of the causal half. Math attention (eager, or float32 with grouped heads under sdpa)
    computes the whole square and moves its scores through memory.
    """
    m, e, width = ask.model, "transformers", BYTES[ask.dtype]
    raw = ask.gpu.bandwidth_gb_s * 1e9
    peak = rate(ask)
    seconds = linear / peak
    single = ask.dtype == "float32" and not ask.scheme
    scores = m.heads * length * tokens * m.kv_layers
    if ask.attention == "eager":
        seconds += 2 * attention / peak + scores * physics.value(e, "eager_score_traffic") * width / 2 / raw
    elif single and m.kv_heads < m.heads and ask.attention != "flash_attention_2":
        seconds += 2 * attention / peak + scores * physics.value(e, "math_score_traffic") / raw
    else:
        part = physics.entry(e, "attention_rate").get("cudnn" if ask.cudnn else ask.gpu.architecture)
        seconds += attention / peak * (physics.value(e, "prefill_rate") / part if part and not single else 1.0)
    units = physics.value(e, "elementwise_hidden") * m.hidden + physics.value(e, "elementwise_inner") * m.intermediate
    units += physics.value(e, "elementwise_qk") * (m.heads + m.kv_heads) * m.head_dim if m.qk_norm else 0.0
    seconds += units * tokens * m.layers * width / (raw * physics.value(e, "bandwidth") / dies(ask.gpu))
    floor = one.host + physics.value(e, "generate_us") * 1e-6 if ask.gpu.cc[0] else 0.0
    return max(_norm(floor, seconds), one.gpu, expert_loop(ask, tokens))


def streams(ask: Ask) -> float:
    """Sequences that run at once: the asked ones, limited by the KV pool and max_num_seqs."""
    if ask.engine not in ("vllm", "sglang"):
        return float(ask.batch)
    limit = float(ask.batch)
    tokens = memory(ask).kv_tokens
    if tokens:
        limit = min(limit, max(1.0, tokens / max(1, ask.prompt + ask.output / 2)))
    if ask.engine == "vllm":
        limit = min(limit, vllm_limits(ask)["seqs"])
    return limit


def speed(ask: Ask) -> Speed:
    """All rates of a configuration: a closed loop of `batch` sequences, each `prompt` tokens in and `output` out."""
    running = streams(ask)
    middle = ask.prompt + ask.output / 2
    step = decode_step(ask, running, middle)
    first = prefill_seconds(ask, ask.prompt, ask.prompt)
    all_prompts = prefill_seconds(ask, ask.prompt * running, ask.prompt)
    shared = physics.value("vllm", "mix") if ask.engine in ("vllm", "sglang") and running > 1 else 1.0
    whole = all_prompts * shared + max(0, ask.output - 1) * step.total
    decode = 1 / step.total
    if ask.engine == "transformers":  # one batch: every prompt is read before the first token of any
        first, waited = all_prompts / running, all_prompts
    elif ask.arrival.startswith("all"):
        waited = (all_prompts * shared + first) / 2
    else:  # the own prompt, and two steps that carry others' prompts
        waited = first * shared + (2 * whole / ask.output if running > 1 and ask.output else 0)
    return Speed(
        step=step,
        decode=decode,
        total=running * ask.output / whole if ask.output else 0.0,
        prefill=ask.prompt / first if first else 0.0,
        ttft_ms=waited * 1e3,
        streams=running,
    )


def roofline_share(ask: Ask, streams_: float, context: float) -> float:
    """Part of the bandwidth limit that decoding reaches: what an eager loop of a small model leaves on the table."""
    step = decode_step(ask, streams_, context)
    w = weights(ask.model, ask.dtype, ask.scheme)
    limit = (w.read + streams_ * kv_bytes(ask.model, context, BYTES[ask.dtype])) / (ask.gpu.bandwidth_gb_s * 1e9)
    return limit / step.total


def launch_bound(gpu: Gpu, step: Step) -> bool:
    """Whether the host's launches, not the card, set the pace."""
    return step.host > step.gpu and bool(gpu.cc[0])
