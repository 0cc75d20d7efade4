"""The settings of a chosen candidate with their reasons, and the options that were not taken with numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dstune.model import Text
from dstune.model.plan import Rejected, Setting
from dstune.plan import physics
from dstune.plan.ask import MIB
from dstune.plan.fit import can_compile, dtype_reason, engine_reason, flash2_reason, fp8_native, newest_vllm
from dstune.plan.memory import kv_per_token
from dstune.plan.quant import weights
from dstune.plan.speed import decode_step, roofline_share, speed

if TYPE_CHECKING:
    from dstune.plan.search import Candidate, Wish

INT4_LOSS = (
    "Neural Magic, 27 February 2025, R1-Distill: INT4 keeps about 94 % of the 1.5B's score and 97 % or more from 7B on, "
    "INT8 97 % of the 1.5B's, FP8 nearly all"
)
_INT4_ZH = "Neural Magic，2025 年 2 月 27 日，R1-Distill：INT4 保留 1.5B 约 94%、7B 起 97% 以上的成绩，INT8 保留 1.5B 的 97%，FP8 几乎全部"
INT4_LOSS_PCT, INT4_LOSS_7B_PCT = 6.0, 3.0
"""Percent of its score that INT4 costs the 1.5B, and at most from 7B on, by `INT4_LOSS`."""
SEVEN_B = 6.5e9


def _t(en: str, zh: str) -> Text:
    return {"en": en, "zh": zh}


def _int4_cost(params: float) -> tuple[str, str]:
    """What INT4 costs a model of so many parameters, in words."""
    if params >= SEVEN_B:
        return "up to 3 % of the score", "至多 3% 的成绩"
    if 1e9 < params < 3e9:
        return "about 6 % of this 1.5B's score", "约 6% 的成绩"
    return "part of the score (about 6 % on a 1.5B, at most 3 % from 7B on)", "一部分成绩（1.5B 约 6%，7B 起至多 3%）"


def settings(best: Candidate, wish: Wish) -> Iterator[Setting]:
    """Every setting that differs from the engine's default or carries the plan."""
    yield from {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llamacpp, "transformers": _transformers}[best.ask.engine](
        best, wish
    )


def _dtype(best: Candidate, engine: str) -> Setting:
    ask = best.ask
    reason = dtype_reason("bfloat16", ask.gpu)
    if ask.dtype == "float16" and reason:
        return Setting(f"{engine}.dtype", "float16", reason, "CUDA C++ programming guide, compute capabilities")
    gib = best.memory.weights_gib
    if ask.model.dtype == "float32":
        return Setting(
            f"{engine}.dtype", ask.dtype,
            _t(f"half of the checkpoint's {ask.model.dtype}: {gib:.2f} GiB of weights", f"检查点是 {ask.model.dtype}，减半：权重 {gib:.2f} GiB"),
            "config.json of the checkpoint",
        )  # fmt: skip
    return Setting(
        f"{engine}.dtype", ask.dtype,
        _t(f"the checkpoint's own type: {gib:.2f} GiB of weights; float32 would double it", f"与检查点一致：权重 {gib:.2f} GiB；float32 要翻倍"),
        "config.json of the checkpoint",
    )  # fmt: skip


def _pool_reason(best: Candidate) -> Text:
    ask, mem = best.ask, best.memory
    per = kv_per_token(ask.model)
    need = ask.max_len * per / MIB
    return _t(
        f"a token costs {per / 1024:.1f} KiB, {ask.max_len:,} tokens {need:,.0f} MiB; the pool holds {mem.kv_tokens or 0:,.0f}",
        f"每个 token {per / 1024:.1f} KiB，{ask.max_len:,} 个共 {need:,.0f} MiB；缓存池可容纳 {mem.kv_tokens or 0:,.0f} 个",
    )


def _vllm(best: Candidate, wish: Wish) -> Iterator[Setting]:
    ask, mem = best.ask, best.memory
    yield _dtype(best, "vllm")
    if ask.scheme == "fp8" and not wish.model.quant:
        method = "fp8_per_tensor" if ask.at_least("0.32.0") else "fp8"
        yield Setting(
            "vllm.quantization", method,
            _t("16 bit does not fit (or misses the limit); fp8 weights are nearly lossless", "16 位放不下（或达不到时延要求）；fp8 几乎无损"),
            INT4_LOSS,
        )  # fmt: skip
    yield Setting("vllm.max_model_len", ask.max_len, _pool_reason(best), "recipes/engines/physics/vllm.toml")
    if ask.gpu.unified:
        share = _t(
            f"the CPU shares this memory: no more than {ask.max_seqs} sequences of {ask.max_len:,} tokens need",
            f"内存与 CPU 共用：只取 {ask.max_seqs} 条 {ask.max_len:,} token 序列所需",
        )
    else:
        budget, left = ask.utilization * ask.total, mem.room_mib
        share = _t(
            f"{budget:,.0f} of {ask.total:,.0f} MiB; the CUDA context stands outside this budget and {left:,.0f} MiB stay free",
            f"{ask.total:,.0f} MiB 中的 {budget:,.0f}；CUDA 上下文不在其内，另余 {left:,.0f} MiB",
        )
    yield Setting("vllm.gpu_memory_utilization", ask.utilization, share, physics.source("vllm", "graphs_counted", ask.version))
    sampler = physics.value("vllm", "sampler", ask.generation) * ask.model.vocab / MIB
    yield Setting(
        "vllm.max_num_seqs", ask.max_seqs,
        _t(
            f"the pool holds {(mem.kv_tokens or 0) / max(1, ask.prompt + ask.output):,.0f} requests of {ask.prompt + ask.output:,} tokens; "
            f"each slot costs {sampler:.1f} MiB in the profile run",
            f"缓存池可容纳 {(mem.kv_tokens or 0) / max(1, ask.prompt + ask.output):,.0f} 个 {ask.prompt + ask.output:,} token 的请求；"
            f"每个槽位在预热中占 {sampler:.1f} MiB",
        ),
        physics.source("vllm", "sampler", ask.generation),
    )  # fmt: skip
    if ask.gpus > 1:
        yield Setting(
            "vllm.tensor_parallel_size", ask.gpus, _t("each layer split over the cards", "每层切分到多卡"), "vLLM documentation"
        )
    if wish.model.prompting and ask.at_least("0.8.5"):
        yield Setting(
            "vllm.reasoning_parser", "deepseek_r1",
            _t("splits the thinking from the answer (reasoning field)", "把思考过程与回答分开"), "vLLM documentation, reasoning outputs",
        )  # fmt: skip


def _sglang(best: Candidate, wish: Wish) -> Iterator[Setting]:
    ask = best.ask
    yield _dtype(best, "sglang")
    yield Setting("sglang.context_length", ask.max_len, _pool_reason(best), "recipes/engines/physics/sglang.toml")
    yield Setting(
        "sglang.mem_fraction_static", ask.utilization,
        _t("weights and pool; graphs and activations live outside it", "权重与缓存池；图和激活在其外"), physics.source("sglang", "reserve"),
    )  # fmt: skip
    if ask.gpus > 1:
        yield Setting(
            "sglang.tp_size", ask.gpus, _t("each layer split over the cards", "每层切分到多卡"), "SGLang documentation"
        )
    if wish.model.prompting:
        yield Setting(
            "sglang.reasoning_parser",
            "deepseek-r1",
            _t("splits the thinking from the answer", "把思考过程与回答分开"),
            "SGLang documentation",
        )


def _llamacpp(best: Candidate, wish: Wish) -> Iterator[Setting]:
    ask = best.ask
    yield Setting(
        "llamacpp.n_gpu_layers", 99,
        _t(f"all {ask.model.layers} layers fit the card ({best.memory.weights_gib:.2f} GiB)", f"全部 {ask.model.layers} 层放得下（{best.memory.weights_gib:.2f} GiB）"),
        "llama.cpp server README",
    )  # fmt: skip
    slots = max(1, ask.parallel)
    yield Setting(
        "llamacpp.ctx_size", ask.max_len * slots,
        _t(f"{slots} slot{'s' * (slots > 1)} of {ask.max_len:,} tokens", f"{slots} 个槽位各 {ask.max_len:,} token 共用"), "llama.cpp server README",
    )  # fmt: skip
    yield Setting("llamacpp.parallel", slots, _t("requests at once", "并发请求数"), "llama.cpp server README")
    if ask.attention == "on":
        yield Setting(
            "llamacpp.flash_attn",
            "on",
            _t("no score matrix: smaller compute buffer", "不存注意力分数，计算缓冲更小"),
            "llama.cpp server README",
        )
    yield Setting(
        "llamacpp.jinja", True, _t("the model's own chat template", "使用模型自带的对话模板"), "llama.cpp server README"
    )


def _transformers(best: Candidate, wish: Wish) -> Iterator[Setting]:
    ask = best.ask
    yield _dtype(best, "transformers")
    yield Setting(
        "transformers.device_map", "cuda", _t("loads straight to the card", "直接加载到显卡"), "recipes/measurements/h200.json"
    )
    yield Setting(
        "transformers.attn_implementation", "sdpa",
        _t("eager attention stores n² scores; FlashAttention-2 promises no gain over sdpa here", "eager 会存 n² 的分数；FlashAttention-2 相对 sdpa 无确定收益"),
        "recipes/measurements/h200.json",
    )  # fmt: skip
    if ask.cache == "static":
        static, eager = (
            decode_step(ask, ask.batch, ask.prompt),
            decode_step(replace(ask, cache="dynamic"), ask.batch, ask.prompt),
        )
        yield Setting(
            "generate.cache_implementation", "static",
            _t(
                f"compiles the step: {static.total * 1e3:.1f} instead of {eager.total * 1e3:.1f} ms a token, after about half a minute of warm-up",
                f"使解码步被编译：每 token {static.total * 1e3:.1f} ms，而非 {eager.total * 1e3:.1f} ms；首次预热约半分钟",
            ),
            physics.source("transformers", "static_layer_us"),
        )  # fmt: skip
        yield Setting(
            "transformers.max_cache_len",
            ask.max_len,
            _t("one graph for all lengths up to this", "该长度内共用一个图"),
            "recipes/measurements/h200.json",
        )
    yield Setting(
        "generate.max_new_tokens",
        ask.output,
        _t("bounds latency; memory grows only with real tokens", "限制时延；显存只随实际 token 增长"),
        "recipes/measurements/h200.json",
    )


def rejected(best: Candidate, found: list[Candidate], wish: Wish) -> Iterator[Rejected]:
    """Options that a reader will ask about, each with its reason and number."""
    ask = best.ask
    for engine in ("vllm", "sglang"):
        version = wish.version or (newest_vllm(wish.gpu, wish.driver_cuda) if engine == "vllm" else "")
        reason = engine_reason(engine, wish.gpu, version)
        if reason and engine != ask.engine:
            yield Rejected(engine, reason)
    if ask.engine == "vllm" and (reason := engine_reason("vllm", wish.gpu, "")):
        yield Rejected("vLLM 0.20+", reason)
    if reason := dtype_reason("bfloat16", wish.gpu):
        yield Rejected("bfloat16", reason)
    if reason := flash2_reason(wish.gpu):
        yield Rejected("FlashAttention-2", reason)
    yield from _formats(best, found, wish)
    if ask.engine == "vllm":
        yield from _eager(best)
    if not best.tier:
        yield from _loop(best)
    yield from _cards(best, found, wish)
    tokens = best.memory.kv_tokens
    if tokens and wish.model.context > tokens:
        yield Rejected(
            f"max_model_len {wish.model.context:,}",
            _t(
                f"the pool holds {tokens:,.0f} tokens: the server would refuse to start",
                f"缓存池只能容纳 {tokens:,.0f} 个 token，服务会拒绝启动",
            ),
        )


def _formats(best: Candidate, found: list[Candidate], wish: Wish) -> Iterator[Rejected]:
    ask, m = best.ask, wish.model
    if m.quant:
        return
    if best.tier:
        full = weights(m, "float16").total / 2**30
        plain = max(
            (c for c in found if c.tier == 0 and c.ask.engine == ask.engine), key=lambda c: c.speed.decode, default=None
        )
        if plain is None:
            room = min(wish.limit_mib or ask.total, ask.total - wish.others_mib) / 1024
            en = f"weights alone take {full:.1f} GiB; {room:.1f} GiB are to be had, less context, buffers and cache"
            yield Rejected("16 bit", _t(en, f"仅权重就要 {full:.1f} GiB；可用 {room:.1f} GiB，还要除去上下文、缓冲和缓存"))
        else:
            step = plain.speed.step.total * 1e3
            en = f"{step:.1f} ms between tokens, first token {plain.speed.ttft_ms:.0f} ms: it misses the limits that were set"
            yield Rejected("16 bit", _t(en, f"token 间隔 {step:.1f} ms、首 token {plain.speed.ttft_ms:.0f} ms：达不到所设时延"))
        return
    small = "Q4_K_M" if ask.engine == "llama.cpp" else "bnb-nf4" if ask.engine == "transformers" else "awq-int4"
    other = replace(ask, scheme=small)
    saved = best.memory.weights_gib - weights(m, ask.dtype, small).total / 2**30 / (ask.gpus if ask.engine == "vllm" else 1)
    now, then = speed(ask).decode, speed(other).decode
    about, ueber = _int4_cost(m.params)
    yield Rejected(
        small.replace("awq-int4", "AWQ/GPTQ INT4"),
        _t(
            f"saves {saved:.1f} GiB and decodes at {then:.0f} instead of {now:.0f} tok/s, but costs {about}, and 16 bit leaves room here ({INT4_LOSS})",
            f"省 {saved:.1f} GiB，解码 {then:.0f}（现 {now:.0f}）tok/s，但损失{ueber}，而此卡放得下 16 位（{_INT4_ZH}）",
        ),
    )
    if fp8_native(wish.gpu) and ask.engine in ("vllm", "sglang"):
        then = speed(replace(ask, scheme="fp8")).decode
        yield Rejected(
            "fp8",
            _t(
                f"{then:.0f} instead of {now:.0f} tok/s a stream; nearly lossless, the next step when 16 bit is too slow",
                f"单路 {then:.0f}（现 {now:.0f}）tok/s；几乎无损，16 位不够快时的下一步",
            ),
        )


def _eager(best: Candidate) -> Iterator[Rejected]:
    ask = best.ask
    graph, eager = (
        decode_step(ask, best.speed.streams, ask.prompt),
        decode_step(replace(ask, eager=True), best.speed.streams, ask.prompt),
    )
    if eager.total > graph.total * 1.02:
        yield Rejected(
            "--enforce-eager",
            _t(
                f"launches set the pace: about {eager.total * 1e3:.1f} instead of {graph.total * 1e3:.1f} ms a step; it saves {physics.value('vllm', 'compile', ask.version)} MiB and the graphs",
                f"受内核启动限制：每步约 {eager.total * 1e3:.1f} ms（现 {graph.total * 1e3:.1f}）；仅省 {physics.value('vllm', 'compile', ask.version)} MiB 和图的显存",
            ),
        )


def _loop(best: Candidate) -> Iterator[Rejected]:
    """The plain generate loop: what a small model reaches in it."""
    if best.ask.gpu.vendor != "NVIDIA" or engine_reason("transformers", best.ask.gpu):
        return
    if best.ask.engine == "transformers" and best.ask.cache == "dynamic":
        return
    scheme = best.ask.scheme if best.ask.engine != "llama.cpp" else ""
    loop = replace(best.ask, engine="transformers", version="", cache="dynamic", scheme=scheme, batch=1, gpus=1, eager=False)
    step = decode_step(loop, 1, loop.prompt)
    share = roofline_share(loop, 1, loop.prompt)
    why = (
        ("the host's launches, not the card, set the pace", "瓶颈是主机发起内核，而不是显卡")
        if step.host > step.gpu
        else ("the card's memory sets the pace", "瓶颈是显存带宽")
    )
    rates_en, rates_zh = [], []
    if can_compile(loop.gpu):
        static = 1 / decode_step(replace(loop, cache="static"), 1, loop.prompt).total
        rates_en.append(f"a static cache reaches {static:.0f}")
        rates_zh.append(f"静态缓存可达 {static:.0f}")
    if best.ask.engine != "transformers":
        own = 1 / decode_step(best.ask, 1, loop.prompt).total
        rates_en.append(f"{best.ask.engine} {'reaches ' * (not rates_en)}{own:.0f}")
        rates_zh.append(f"{best.ask.engine} 可达 {own:.0f}")
    yield Rejected(
        "transformers generate, dynamic cache",
        _t(
            f"{1 / step.total:.0f} tok/s, {share:.0%} of what the memory bandwidth allows: {why[0]}; {', '.join(rates_en)}",
            f"{1 / step.total:.0f} tok/s，仅为带宽上限的 {share:.0%}：{why[1]}；{'，'.join(rates_zh)}",
        ),
    )


def _cards(best: Candidate, found: list[Candidate], wish: Wish) -> Iterator[Rejected]:
    if wish.gpus == 1:
        return
    others: dict[int, Any] = {
        c.ask.gpus: c for c in found if c.ask.engine == best.ask.engine and c.ask.scheme == best.ask.scheme
    }
    other = others.get(1 if best.ask.gpus > 1 else wish.gpus)
    if other is None:
        return
    if best.ask.gpus == 1:
        yield Rejected(
            f"tensor parallel over {wish.gpus}",
            _t(
                f"{other.speed.decode:.0f} tok/s a stream against {best.speed.decode:.0f}: two replicas serve more",
                f"单路 {other.speed.decode:.0f} 对 {best.speed.decode:.0f} tok/s：各跑一个副本能服务更多请求",
            ),
        )
    else:
        yield Rejected(
            "one card",
            _t(
                f"{other.speed.decode:.0f} tok/s a stream against {best.speed.decode:.0f}",
                f"单路 {other.speed.decode:.0f} 对 {best.speed.decode:.0f} tok/s",
            ),
        )
