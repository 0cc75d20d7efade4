"""Of the configurations that run, those that no other beats in every respect: memory, decode, total output, first token, quality."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from dstune.model import Text
from dstune.model.plan import Alternative, Rejected
from dstune.plan.choices import INT4_LOSS, INT4_LOSS_7B_PCT, INT4_LOSS_PCT, SEVEN_B, settings
from dstune.plan.estimate import predictions
from dstune.plan.fit import engine_reason, fits

if TYPE_CHECKING:
    from dstune.plan.search import Candidate, Wish

METRICS = ("peak_vram_gib", "decode_tok_s_per_stream", "total_tok_s", "ttft_ms")
_NAMES = {"vllm": "vLLM", "sglang": "SGLang"}


def _respects(c: Candidate) -> tuple[float, ...]:
    """What counts, each the smaller the better. Memory is that of all its cards."""
    return (c.memory.total_mib * c.ask.gpus, -c.speed.decode, -c.speed.total, c.speed.ttft_ms, c.tier)


def beats(a: Candidate, b: Candidate) -> bool:
    """Whether `a` is nowhere worse than `b` and somewhere better."""
    left, right = _respects(a), _respects(b)
    return left != right and all(x <= y for x, y in zip(left, right, strict=True))


def front(found: Iterable[Candidate]) -> list[Candidate]:
    """The candidates that none of the others beats. Where some meet the limits that were set, only those count."""
    every = list(found)
    pool = [c for c in every if c.meets] or every
    return [c for c in pool if not any(beats(other, c) for other in pool)]


def label(c: Candidate, at_once: int = 0) -> str:
    """Engine, format and cards in a few words; how many at once where that differs from `at_once`."""
    fmt = c.ask.scheme or c.ask.dtype
    cards = f" x {c.ask.gpus}" if c.ask.gpus > 1 else ""
    loop = ", dynamic cache" if c.ask.engine == "transformers" and c.ask.cache == "dynamic" else ""
    other = f", {c.ask.batch} at once" if at_once and c.ask.batch != at_once else ""
    return f"{_NAMES.get(c.ask.engine, c.ask.engine)} {fmt}{loop}{cards}{other}"


def zh_label(name: str) -> str:
    """A label's words in Chinese; engines and formats stay."""
    return re.sub(r", (\d+) at once", r"，并发 \1", name.replace(", dynamic cache", "，动态缓存"))


def alternatives(best: Candidate, found: list[Candidate], wish: Wish) -> tuple[Alternative, ...]:
    """The front with settings and numbers, the chosen one first, the others by what the goal asks for."""
    goal = wish.workload.goal
    order = {"memory": 0, "latency": 1, "throughput": 2}[goal]
    rest = sorted((c for c in front([*found, *_loops(found)]) if c is not best), key=lambda c: _respects(c)[order])
    return tuple(_alternative(c, best, wish) for c in (best, *rest))


def _alternative(c: Candidate, best: Candidate, wish: Wish) -> Alternative:
    numbers = predictions(c.ask, c.memory, c.speed)
    return Alternative(
        name=label(c, best.ask.batch),
        engine=c.ask.engine,
        engine_version=c.ask.version,
        gpus=c.ask.gpus,
        settings=tuple(settings(c, wish)),
        numbers={k: numbers[k] for k in METRICS},
        quality_loss_pct=quality_loss(c.tier, c.ask.model.params),
        chosen=c is best,
        why=_chosen(c, wish) if c is best else _against(c, best),
        source=INT4_LOSS,
    )


def _chosen(c: Candidate, wish: Wish) -> Text:
    work = wish.workload
    if not c.meets:
        return _text("nothing meets the limits that were set; this comes nearest", "没有配置满足所设时延，这是最接近的")
    if work.goal == "memory":
        return _text("the least memory at this quality", "同等质量下占用最少")
    limits = bool(work.slo_itl_ms or work.slo_ttft_ms)
    en = "the least lossy format that fits" + " and meets the limits" * limits
    zh = "放得下" + "且满足时延要求" * limits + "的最少损失格式"
    if c.ask.engine == "vllm":
        more = (
            ("holds over a third more requests/s", "多承受三分之一以上的请求")
            if work.rate
            else ("is over a third faster", "快三分之一以上")
        )
        return _text(
            f"{en}; vLLM, since no engine {more[0]} with it: it batches and serves",
            f"{zh}；没有引擎比 vLLM {more[1]}，而它能合批、自带服务",
        )
    return _text(f"{en}, and the engine for it here", f"{zh}，也是此卡上最合适的引擎")


def _against(c: Candidate, best: Candidate) -> Text:
    """What it gains and what it costs beside the chosen one; the numbers stand beside it."""
    gains: list[tuple[str, str]] = []
    costs: list[tuple[str, str]] = []
    for mine, theirs, better, worse in zip(_respects(c), _respects(best), _BETTER, _WORSE, strict=True):
        if abs(mine - theirs) > 0.01 * max(abs(mine), abs(theirs)):
            gains.append(better) if mine < theirs else costs.append(worse)
    if c.tier == 1 and costs and costs[-1] == _WORSE[-1]:
        costs[-1] = ("a format that is only nearly lossless", "格式仅近无损")
    en = ", ".join(g[0] for g in gains) + ("; but " if gains and costs else "") + ", ".join(x[0] for x in costs)
    zh = "、".join(g[1] for g in gains) + ("；但" if gains and costs else "") + "、".join(x[1] for x in costs)
    return _text(en or "the same numbers", zh or "数值相同")


_BETTER = (
    ("less memory", "显存更少"),
    ("a faster stream", "单路更快"),
    ("more output in all", "总输出更高"),
    ("an earlier first token", "首 token 更早"),
    ("better quality", "质量更好"),
)
_WORSE = (
    ("more memory", "显存更多"),
    ("a slower stream", "单路更慢"),
    ("less output in all", "总输出更低"),
    ("a later first token", "首 token 更晚"),
    ("lower quality", "质量更低"),
)


def _loops(found: list[Candidate]) -> Iterator[Candidate]:
    """The plain generate loop beside its compiled form: less memory, no warm-up, slower."""
    from dstune.plan.speed import speed

    for c in found:
        if c.ask.engine == "transformers" and c.ask.cache == "static":
            ask = replace(c.ask, cache="dynamic")
            ok, mem = fits(ask)
            if ok:
                yield replace(c, ask=ask, memory=mem, speed=speed(ask))


def beaten(best: Candidate, found: list[Candidate], wish: Wish) -> Iterator[Rejected]:
    """Every candidate off the front with what beats it, and every one that does not fit with what it would take."""
    kept = front(found)
    for c in found:
        if c is best or c in kept:
            continue
        if not c.meets and best.meets:
            itl = c.speed.step.total * 1e3
            yield Rejected(
                label(c, best.ask.batch),
                _text(
                    f"{itl:.1f} ms between tokens, first token {c.speed.ttft_ms:.0f} ms: misses the limits that were set",
                    f"token 间隔 {itl:.1f} ms、首 token {c.speed.ttft_ms:.0f} ms：达不到所设时延",
                ),
            )
            continue
        winner = next((o for o in [best, *kept] if beats(o, c)), None)
        if winner is None:
            continue
        yield Rejected(
            label(c, best.ask.batch),
            _text(
                f"{_numbers(c)[0]}: {label(winner, best.ask.batch)} is nowhere worse ({_numbers(winner)[0]})",
                f"{_numbers(c)[1]}：{zh_label(label(winner, best.ask.batch))} 处处不差（{_numbers(winner)[1]}）",
            ),
        )
    yield from _too_large(wish)


def _too_large(wish: Wish) -> Iterator[Rejected]:
    from dstune.plan.search import considered

    for engine, version, ask, mem, ok in considered(wish):
        limited = bool(wish.limit_mib) and mem.total_mib > wish.limit_mib + 1
        if (ok and not limited) or engine_reason(engine, wish.gpu, version):
            continue
        free = min(wish.limit_mib or ask.total, ask.total - wish.others_mib)
        need = mem.total_mib - wish.others_mib
        name = f"{_NAMES.get(engine, engine)} {ask.scheme or ask.dtype}" + (f" x {ask.gpus}" if ask.gpus > 1 else "")
        if mem.kv_tokens is not None and mem.kv_tokens < ask.max_len:
            en = f"weights of {mem.weights_gib:.1f} GiB leave a pool of {mem.kv_tokens:,.0f} of {ask.max_len:,} tokens in {free:,.0f} MiB"
            zh = f"权重 {mem.weights_gib:.1f} GiB，{free:,.0f} MiB 中的缓存池只容 {mem.kv_tokens:,.0f} 个 token，少于 {ask.max_len:,}"
        else:
            en = f"takes {need:,.0f} MiB of {free:,.0f}"
            zh = f"需要 {need:,.0f} MiB，可用 {free:,.0f}"
        yield Rejected(name, _text(en, zh))


def _numbers(c: Candidate) -> tuple[str, str]:
    gib, s = c.memory.total_mib / 1024, c.speed
    loss = quality_loss(c.tier, c.ask.model.params)
    en, zh = ("nearly lossless", "近无损") if loss is None else (f"{loss:g} % loss", f"损失 {loss:g}%")
    return (
        f"{gib:.1f} GiB, {s.decode:.0f} tok/s, {s.ttft_ms:.0f} ms, {en}",
        f"{gib:.1f} GiB、{s.decode:.0f} tok/s、{s.ttft_ms:.0f} ms、{zh}",
    )


def quality_loss(tier: int, params: float) -> float | None:
    """Percent of the score that a row of `search.TIERS` costs a model of `params` parameters; None for the middle one, called nearly
    lossless by its source, which gives no figure for each model."""
    if tier == 1:
        return None
    return (INT4_LOSS_7B_PCT if params >= SEVEN_B else INT4_LOSS_PCT) if tier else 0.0


def _text(en: str, zh: str) -> Text:
    return {"en": en, "zh": zh}
