"""Memory of one configuration, part by part, each with its formula and source.

Weights, KV, activations and logits follow from the shape; context, workspace, allocator slack and an engine's profile are
coefficients of `recipes/engines/physics/`. Figures are per GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from dstune.catalog.models import ModelSpec
from dstune.model.plan import MemoryLine
from dstune.plan import allocator, paged, physics
from dstune.plan.ask import GIB, MIB, Ask
from dstune.plan.quant import BYTES, Weights, weights

KV_BYTES = {"": 2.0, "auto": 2.0, "float16": 2.0, "bfloat16": 2.0, "f16": 2.0, "float32": 4.0, "fp8": 1.0, "fp8_e5m2": 1.0,
            "fp8_e4m3": 1.0, "q8_0": 1.0625, "q4_0": 0.5625, "int4": 0.5625, "int8": 1.0625}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Memory:
    """Parts that sum to `total_mib`, what torch counts of them at the peak and after the run, and what the KV pool holds.

    `kv_tokens` is None for engines without a pool. `room_mib` is what is left on the card; below zero it does not fit.
    """

    lines: tuple[MemoryLine, ...]
    allocated_mib: float
    held_mib: float
    weights_gib: float
    room_mib: float
    kv_tokens: float | None = None
    kv_mib: float = 0.0
    blocks: float | None = None

    @property
    def total_mib(self) -> float:
        """Sum of the parts."""
        return sum(line.mib for line in self.lines)


def kv_per_token(model: ModelSpec, width: float = 2.0) -> float:
    """Bytes that one token of a long sequence leaves in all layers (windows not counted)."""
    return model.kv_width * model.kv_layers * width


def kv_bytes(model: ModelSpec, tokens: float, width: float = 2.0, windows: bool = True) -> float:
    """Bytes of the cache of one sequence; layers with a window keep at most that many tokens. Fixed states included."""
    local = model.local_layers if windows and model.window else 0
    full = (model.kv_layers - local) * tokens + local * min(tokens, model.window or tokens)
    return model.kv_width * width * full + model.state_bytes


def activation_bytes(model: ModelSpec, tokens: float, width: float = 2.0, tp: int = 1) -> float:
    """Peak of one forward pass over `tokens` beside weights and KV: bytes x tokens x (3 x intermediate + 4 x hidden)."""
    inner = max(model.intermediate, model.expert_width * model.experts_used)
    copies = (
        physics.value("common", "activation_intermediate") * inner / tp
        + physics.value("common", "activation_hidden") * model.hidden
    )
    return float(width * tokens * copies)


def _line(part: str, size: float, formula: str, source: str) -> MemoryLine:
    return MemoryLine(part, size / MIB, formula, source)


def _weight_lines(m: ModelSpec, w: Weights, share: float, note: str = "") -> list[MemoryLine]:
    parts = (
        ("weights: embedding", w.embedding, m.embedding),
        ("weights: layers", w.body, m.body),
        ("weights: output head", w.head, m.head or m.output),
        ("weights: other towers", w.other, m.params - m.text),
    )
    return [
        _line(part, size * share, f"{count:,} x {8 * size / count:.4g} bit{note}", w.source)
        for part, size, count in parts
        if size
    ]


def memory(ask: Ask) -> Memory:
    """The memory of a configuration under its engine."""
    return _ENGINES[ask.engine](ask)


def _kv_width(ask: Ask) -> float:
    if ask.kv_dtype in KV_BYTES and ask.kv_dtype:
        return KV_BYTES[ask.kv_dtype]
    return 4.0 if ask.dtype == "float32" and ask.engine in ("transformers", "vllm") else 2.0


def _transformers(ask: Ask) -> Memory:
    m, width, kv_width = ask.model, BYTES[ask.dtype], _kv_width(ask)
    w = weights(m, ask.dtype, ask.scheme, twice=True)
    if ask.cache == "paged":
        return _paged(ask, w)
    on_gpu = 1 - ask.layers_on_cpu / m.layers
    rope = _rope_tables(ask)
    held = w.total - w.body * (1 - on_gpu) + rope
    blas = physics.value("common", "blas_workspace") * MIB * (1 if ask.gpu.cc >= (9, 0) else 0.25)
    prompt, tokens = ask.prompt, ask.batch * ask.prompt
    act = activation_bytes(m, tokens, width)
    scores = 0.0
    if ask.attention == "eager":
        scores = (physics.value("common", "eager_score_bytes") * m.heads * width / 2 + 2) * ask.batch * prompt**2
        scores += physics.value("common", "eager_token_bytes") * tokens * width / 2
    elif ask.dtype == "float32" and ask.attention in ("", "sdpa") and m.kv_heads < m.heads and ask.at_least("4.48"):
        scores = physics.value("common", "math_score_bytes") * m.heads * ask.batch * prompt**2
    every = ask.all_logits or physics.value("transformers", "all_logits", ask.version)
    copied = tokens if not ask.at_least("4.45") and width < 4 else ask.batch
    logits = width * (m.vocab + m.hidden) * (tokens if every else ask.batch) + 4 * m.vocab * copied
    static = ask.cache == "static"
    cache_prompt = ask.batch * kv_bytes(m, ask.max_len or ask.length if static else prompt, kv_width)
    cache_end = cache_prompt if static else ask.batch * kv_bytes(m, ask.length, kv_width)
    if ask.cache == "offloaded":
        cache_prompt, cache_end = (2 * c / m.kv_layers for c in (cache_prompt, cache_end))
    copy = 0 if static else ask.batch * ask.length * m.kv_width / 2 * kv_width
    if physics.value("transformers", "whole_copy", ask.version) and not static:
        copy = cache_end
    peak_prefill, peak_decode = (
        cache_prompt + max(act, scores, logits),
        cache_end + copy + 3 * logits / max(1, prompt if every else 1),
    )
    kv, rest, what = cache_prompt, max(act, scores, logits), "activations (prefill)"
    formula = f"{width} B x {tokens:,} tokens x (3 x {m.intermediate} + 4 x {m.hidden})"
    if max(act, logits) < scores:
        what, formula = "attention scores", f"(10 x {m.heads} + 2) B x {ask.batch} x {prompt}^2 + 18.7 kB x {tokens:,}"
        if ask.attention != "eager":
            formula = f"{physics.value('common', 'math_score_bytes')} B x {m.heads} heads x {ask.batch} x {prompt}^2 (float32 has no flash kernel)"
    elif act < logits:
        what, formula = "logits", f"{width} B x ({m.vocab:,} + {m.hidden}) x positions, float32 copy of the last"
    if peak_decode > peak_prefill:
        kv, rest, what, formula = (
            cache_end,
            peak_decode - cache_end,
            "decode buffers",
            "copy of one cache tensor while it grows + logits",
        )
    over = kv + rest
    allocated = held + blas + over
    load = "slack_to" if ask.load == "to" else "slack_map"
    if ask.expandable:
        part, slack = "slack_part_expandable", physics.value("transformers", "slack_part_expandable") * over
    else:
        part, slack = load, physics.value("transformers", load) * MIB + allocator.slack(_pass(ask, bool(every)))
        if ask.output > 1 and not static:
            slack = max(slack, physics.value("transformers", "slack_growth") * over + physics.value("transformers", load) * MIB)
    lines = [
        _line(
            "CUDA context", physics.value("common", "context") * MIB, "measured constant", physics.source("common", "context")
        ),
        *_weight_lines(m, w, 1.0 if not ask.layers_on_cpu else (held - rope) / w.total),
        _line(
            "rotary tables",
            rope,
            f"2 x {m.layers} layers x positions x {m.head_dim} x {width} B",
            physics.source("transformers", "rope_tables", ask.version),
        ),
        _line(
            "KV cache", kv, f"{m.kv_width} x {m.kv_layers} layers x {kv_width:g} B x {ask.batch} x tokens", "shape of the model"
        ),
        _line(what, rest, formula, physics.source("common", "activation_intermediate")),
        _line("cuBLAS workspace", blas, "one a stream", physics.source("common", "blas_workspace")),
        _line("allocator slack", slack, "reserved beyond allocated", physics.source("transformers", part)),
    ]
    return _done(ask, [x for x in lines if x.mib], allocated / MIB, w, (held + blas + cache_end) / MIB)


def _paged(ask: Ask, w: Weights) -> Memory:
    """Continuous batching: a paged cache in a share of what the weights leave free."""
    m, width = ask.model, BYTES[ask.dtype]
    context = physics.value("common", "context") * MIB
    free = max(0.0, (ask.total - ask.others_mib) * MIB - context - w.total)
    per_token = kv_per_token(m, _kv_width(ask))
    found = paged.pool(m, free, per_token, width, ask.attention == "flash_attention_2")
    source = physics.source("transformers", "continuous_batching")
    lines = [
        _line("CUDA context", context, "measured constant", physics.source("common", "context")),
        *_weight_lines(m, w, 1.0),
        _line("KV cache pool", found.cache, f"{found.tokens:,} tokens x {per_token:,.0f} B", source),
        _line("batch buffers", found.aside, "8,192 tokens of activations, mask and copies, logits of 1,024 requests", source),
    ]
    allocated = (w.total + found.taken) / MIB
    return _done(ask, lines, allocated, w, allocated, kv_tokens=float(found.tokens), kv_mib=found.cache / MIB)


def _rope_tables(ask: Ask) -> float:
    """Bytes of the cos and sin tables that each layer kept before 4.45 (Llama's computed them; longer contexts came by scaling)."""
    if ask.model.architecture.startswith("Llama") or not physics.value("transformers", "rope_tables", ask.version):
        return 0.0
    return float(2 * ask.model.layers * min(ask.model.context, 32768) * ask.model.head_dim * BYTES[ask.dtype])


def _pass(ask: Ask, every_logit: bool) -> allocator.Pass:
    m = ask.model
    return allocator.Pass(
        ask.batch, ask.prompt, m.hidden, m.intermediate, m.heads, m.kv_heads, m.head_dim, m.vocab, m.layers,
        BYTES[ask.dtype], ask.attention == "eager", every_logit, m.qk_norm,
    )  # fmt: skip


def _done(ask: Ask, lines: list[MemoryLine], allocated: float, w: Weights, held: float = 0.0, **more: float | None) -> Memory:
    if ask.others_mib:
        lines.append(MemoryLine("other processes", ask.others_mib, "as NVML lists them", "this host"))
    total = sum(line.mib for line in lines)
    return Memory(tuple(lines), allocated, held, w.total / tensor_parallel(ask) / GIB, ask.total - total, **more)  # type: ignore[arg-type]


def tensor_parallel(ask: Ask) -> int:
    """Over how many GPUs one layer is split."""
    return ask.gpus if ask.engine in ("vllm", "sglang") and ask.split != "pipeline" else 1


def _vllm(ask: Ask) -> Memory:
    """Pool = total x utilisation - weights - profile peak; context and (before 0.21) graphs come on top of the budget."""
    m, tp, v = ask.model, tensor_parallel(ask), ask.version
    width = BYTES[ask.dtype]
    w = weights(m, ask.dtype, ask.scheme)
    share = max(0.0, 1 / tp - ask.cpu_offload_mib * MIB / w.total)
    limits = vllm_limits(ask)
    act = activation_bytes(m, limits["batched_tokens"], width, tp)
    sampler = physics.value("vllm", "sampler", ask.generation) * limits["seqs"] * m.vocab
    other = physics.value("vllm", "non_torch_tp" if tp > 1 else "non_torch") * MIB
    compiled = 0.0 if ask.eager else physics.value("vllm", "compile", ask.generation) * MIB
    graphs = graph_bytes(ask)
    budget = ask.total * MIB * (ask.utilization or physics.value("vllm", "utilization", v))
    pool = budget - w.total * share - max(act, sampler) - other - compiled - ask.others_mib * MIB
    if physics.value("vllm", "graphs_counted", v):
        pool -= graphs
    per_token = kv_per_token(m, _kv_width(ask)) / min(tp, max(1, m.kv_heads)) if not m.mla else kv_per_token(m, _kv_width(ask))
    block = ask.block or physics.value("vllm", "block")
    blocks = max(0, int(pool / (per_token * block)))
    profile = "activations (profile run)" if act >= sampler else "sampler and logits (profile run)"
    formula = f"{width} B x {limits['batched_tokens']} tokens x (3 x {m.intermediate} + 4 x {m.hidden})"
    if act < sampler:
        formula = f"{physics.value('vllm', 'sampler', ask.generation):g} B x {limits['seqs']} sequences x {m.vocab:,} words"
    lines = [
        _line(
            "CUDA context",
            physics.value("common", "context") * MIB,
            "measured constant, outside vLLM's budget",
            physics.source("common", "context"),
        ),
        *_weight_lines(m, w, share, f", / {tp} GPUs" if tp > 1 else ""),
        _line(
            "KV cache pool",
            max(0.0, blocks * block * per_token),
            f"{blocks:,} blocks x {block} tokens x {per_token:,.0f} B",
            "rest of the budget",
        ),
        _line(
            profile,
            max(act, sampler),
            formula,
            physics.source("common", "activation_intermediate")
            if act >= sampler
            else physics.source("vllm", "sampler", ask.generation),
        ),
        _line("outside torch", other, "measured constant", physics.source("vllm", "non_torch")),
    ]
    if compiled:
        lines.append(
            _line("compiler buffers", compiled, "measured constant", physics.source("vllm", "compile", ask.generation))
        )
    if graphs:
        lines.append(_line("CUDA graphs", graphs, "layers x captured sizes", physics.source("vllm", "graphs_per_layer")))
    return _done(ask, lines, 0.0, w, kv_tokens=float(blocks * block), kv_mib=pool / MIB, blocks=float(blocks))


def graph_bytes(ask: Ask) -> float:
    """Memory of captured CUDA graphs."""
    if ask.eager:
        return 0.0
    most = 512 if ask.v1 else 256
    largest = min(most, 2 * ask.max_seqs if ask.v1 else ask.max_seqs) if ask.max_seqs else most
    sizes = 3 + largest // 8  # 1, 2, 4 and the multiples of 8
    return float(physics.value("vllm", "graphs_per_layer") * MIB * ask.model.layers * sizes / tensor_parallel(ask) ** 0.5)


def vllm_limits(ask: Ask) -> dict[str, int]:
    """max_num_seqs and max_num_batched_tokens in force: given, or vLLM's defaults for this version and card."""
    length = ask.max_len or ask.model.context
    big = ask.gpu.memory_gib >= 70 and ask.gpu.architecture in ("Hopper", "Blackwell", "CDNA3")
    seqs = ask.max_seqs or _unsloth_seqs(ask) or (1024 if ask.v1 and big else 256)
    tokens = ask.batched_tokens
    if not tokens and ask.v1:
        tokens = 8192 if big else 2048
    elif not tokens:
        chunked = ask.chunked if ask.chunked is not None else length > 32768 and ask.at_least("0.5.5")
        tokens = 2048 if chunked else max(2048, length)
    return {"seqs": min(seqs, max(1, tokens)), "batched_tokens": tokens}


def _unsloth_seqs(ask: Ask) -> int:
    """max_num_seqs of a vLLM that Unsloth starts (its dynamic 4 bit checkpoints with LoRA), by the GiB left for the cache; else 0."""
    if not (ask.lora and ask.scheme == "bnb-nf4-unsloth"):
        return 0
    left = ask.total / 1024 * (ask.utilization or physics.value("vllm", "utilization", ask.version))
    left -= weights(ask.model, ask.dtype, ask.scheme).total / GIB
    row = physics.entry("vllm", "unsloth_seqs")
    return int(next((seqs for limit, seqs in row["steps"] if left <= limit), row["most"]))


def _sglang(ask: Ask) -> Memory:
    """Weights and pool together take mem_fraction_static of the card; graphs and activations live outside it."""
    m, tp = ask.model, tensor_parallel(ask)
    w = weights(m, ask.dtype, ask.scheme)
    static = ask.total * MIB * (ask.utilization or physics.value("sglang", "mem_fraction_static"))
    per_token = kv_per_token(m, _kv_width(ask)) / min(tp, max(1, m.kv_heads))
    pool = max(0.0, static - w.total / tp - ask.others_mib * MIB)
    tokens = int(pool / per_token)
    lines = [
        _line(
            "CUDA context", physics.value("common", "context") * MIB, "measured constant", physics.source("common", "context")
        ),
        *_weight_lines(m, w, 1 / tp, f", / {tp} GPUs" if tp > 1 else ""),
        _line("KV cache pool", tokens * per_token, f"{tokens:,} tokens x {per_token:,.0f} B", "rest of mem_fraction_static"),
        _line(
            "graphs and activations",
            physics.value("sglang", "reserve") * MIB,
            "measured constant",
            physics.source("sglang", "reserve"),
        ),
    ]
    return _done(ask, lines, 0.0, w, kv_tokens=float(tokens), kv_mib=pool / MIB)


def _llamacpp(ask: Ask) -> Memory:
    """Weights without the token embedding (it stays on the host unless it is also the head), KV of the whole context, buffers."""
    m = ask.model
    w = weights(m, ask.dtype, ask.scheme or "F16")
    cards = ask.gpus if ask.split != "none" else 1
    layers = m.layers if ask.gpu_layers < 0 else min(m.layers, ask.gpu_layers)
    head = w.head or w.embedding
    body = w.body * layers / m.layers / cards
    head = head / cards if ask.gpu_layers < 0 or ask.gpu_layers > m.layers else 0.0
    length = ask.max_len or max(ask.length, physics.value("llama.cpp", "default_context", ask.version))
    kv = kv_bytes(m, length, _kv_width(ask)) * max(1, ask.parallel or ask.batch) * layers / m.layers / cards
    ubatch = ask.micro_batch or physics.value("llama.cpp", "ubatch")
    buffer = ubatch * 4 * (m.vocab + 3 * m.hidden)
    if ask.attention not in ("flash_attention_2", "on"):
        buffer = max(buffer, 4 * ubatch * m.heads * length + 4 * ubatch * (m.intermediate + 2 * m.hidden))
    lines = [
        _line(
            "CUDA context",
            physics.value("llama.cpp", "context") * MIB,
            "measured constant",
            physics.source("llama.cpp", "context"),
        ),
        _line("weights: layers", body, w.formula, w.source),
        _line("weights: output head", head, w.formula, w.source),
        _line(
            "KV cache",
            kv,
            f"{m.kv_width} x {m.kv_layers} layers x {_kv_width(ask):g} B x {length:,} tokens x {max(1, ask.parallel or ask.batch)}",
            "shape of the model",
        ),
        _line(
            "compute buffer", buffer, "4 B x ubatch x (vocabulary or heads x context)", physics.source("llama.cpp", "ubatch")
        ),
    ]
    return _done(ask, [x for x in lines if x.mib], (body + head + kv + buffer) / MIB, w)


_ENGINES = {"transformers": _transformers, "vllm": _vllm, "sglang": _sglang, "llama.cpp": _llamacpp}
