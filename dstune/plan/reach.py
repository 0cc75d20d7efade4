"""Limits that no rate keeps on a card: why, and what would keep them (shorter prompts, another limit, another card)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, floor, log10, sqrt
from typing import TYPE_CHECKING

from dstune.catalog import gpus
from dstune.model import Text
from dstune.plan import simulate_load
from dstune.plan.simulate_load import EDGES, KEPT, Figures, Lengths, Load, percentile
from dstune.plan.simulate_steps import limits, step_cost

if TYPE_CHECKING:
    from dstune.catalog.gpus import Gpu
    from dstune.plan.search import Candidate, Wish

APART = 1e-5
"""Requests/s at which nobody meets anybody."""

SPARES = (1.25, 1.5, 2.0, 3.0, 4.0)
"""What a way out may leave over what one request alone takes: room for others beside it. The least that is useful is named."""

USEFUL, USEFUL_ALONE = 0.25, 0.03
"""Part of its throughput that a replica must reach within the limits, or the way is not named; of one that serves one request at a time, where
whoever finds it busy waits."""


def alone_at(load: Load) -> Figures:
    """The figures of requests that come one by one. Raises `ValueError` as `simulate` does."""
    return load.figures(APART)


def least(load: Load) -> float:
    """Share within the limits below which `KEPT` is not told from chance: two standard deviations of the judged draws above it."""
    judged = (EDGES[1] - EDGES[0]) * len(load.prompt)
    return min(1.0, KEPT + 2 * sqrt(KEPT * (1 - KEPT) / judged))


def useful(load: Load) -> float:
    """Requests/s below which a replica stands idle to keep the limits."""
    return (USEFUL if load.limits.seqs > 1 else USEFUL_ALONE) * simulate_load.saturated(load)


def ways_out(best: Candidate, wish: Wish, lengths: Lengths, load: Load, alone: Figures) -> tuple[Text, ...]:
    """Why the limits are out of reach at any rate, and what would bring them into it. Each way was simulated before it is named."""
    goal = load.objective
    at, run = load.run(APART)
    first = [1e3 * (f - a) for f, a in zip(run.first, at, strict=True)]
    edge = int(KEPT * len(first))
    prompt, worst = sorted(load.prompt)[edge], sorted(first)[edge]
    each = alone.tpot_p95_ms
    near = alone.kept >= KEPT
    out = [
        _text(
            f"No rate is within the limits: alone on the card {100 * alone.kept:.1f} % of the requests are{f', too close to {100 * KEPT:.0f} % to count on' * near}. A prompt of {prompt:,} tokens (p95) then takes "
            f"{worst:,.0f} ms to the first token, and each further token {each:.1f} ms.",
            f"任何请求率都达不到时延要求：独占该卡时也只有 {100 * alone.kept:.1f}% 的请求达标{f'（离 {100 * KEPT:.0f}% 太近，靠不住）' * near}。此时 {prompt:,} token 的输入（p95）首 token 需 {worst:,.0f} ms，"
            f"之后每 token {each:.1f} ms。",
        )
    ]
    late, slow = worst * SPARES[0] > goal.ttft_ms, each * SPARES[0] > goal.itl_ms
    if late and not slow:
        out += _shorter(lengths, load, prompt)
    for spare in SPARES:
        ttft, itl = _up(worst * spare) if late else goal.ttft_ms, _up(each * spare) if slow else goal.itl_ms
        if rate := _holds(replace(load, objective=replace(goal, ttft_ms=float(ttft), itl_ms=float(itl)))):
            words = " ".join([f"--slo-ttft {ttft}"] * late + [f"--slo-itl {itl}"] * slow)
            out.append(_text(f"{words}: one replica then holds {rate}/s.", f"{words}：此时单副本可承受 {rate}/s。"))
            break
    if late and not slow and (ninety := percentile(sorted(first), 0.9)) <= goal.ttft_ms:
        out.append(
            _text(
                f"As a limit for 90 % of the requests it is reached alone on the card: {ninety:,.0f} ms.",
                f"若只要求 90% 的请求，独占该卡时可以达到：{ninety:,.0f} ms。",
            )
        )
    out += _cards(best, wish, lengths, load, late, slow)
    return tuple(out)


def _shorter(lengths: Lengths, load: Load, prompt: int) -> Iterator[Text]:
    """The longest prompts that are answered in time, as a p95 and as the mean of the same spread."""
    for spare in SPARES:
        most = _down(_longest(load, spare, prompt))
        if not most:
            continue
        mean = _down(lengths.prompt * most / prompt)
        shorter = replace(load, prompt=tuple(max(1, round(p * mean / lengths.prompt)) for p in load.prompt))
        if mean and (rate := _holds(shorter)):
            how_en, how_zh = f"prompts of {most:,} tokens at p95", f"p95 输入 {most:,} token 以内"
            name = "" if lengths.pairs else f"--prompt {mean}"
            yield _text(
                f"{name} ({how_en}): one replica then holds {rate}/s."
                if name
                else f"With {how_en} one replica holds {rate}/s.",
                f"{name}（{how_zh}）：此时单副本可承受 {rate}/s。" if name else f"{how_zh}时，单副本可承受 {rate}/s。",
            )
            return


def _longest(load: Load, spare: float, most: int) -> int:
    """Tokens of the longest prompt below `most` whose first token, `spare` times as late, is in time; 0 for none."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if 1e3 * spare * load.cost.seconds(middle, middle * middle / 2, 0, 0) <= load.objective.ttft_ms:
            low = middle
        else:
            high = middle
    return low


def _cards(best: Candidate, wish: Wish, lengths: Lengths, load: Load, late: bool, slow: bool) -> Iterator[Text]:
    """The smallest card of the catalogue on which the same engine keeps the limits with a format that is no lossier."""
    from dstune.plan.search import candidates

    for card in sorted((g for g in gpus.rows() if _better(g, best.ask.gpu, late, slow)), key=_size):
        there = replace(
            wish, gpu=card, gpus=1, engine=best.ask.engine, version="", limit_mib=0.0, others_mib=0.0, driver_cuda="",
            tiers=tuple(t for t in wish.tiers if t <= best.tier),
            workload=replace(wish.workload, concurrency=best.ask.batch if best.ask.engine == "llama.cpp" else wish.workload.concurrency),
        )  # fmt: skip
        for c in sorted(candidates(there), key=lambda c: c.tier):
            most = min(lengths.most, c.ask.max_len or c.ask.model.context)
            other = simulate_load.load(step_cost(c.ask), limits(c.ask), replace(lengths, most=most), load.objective)
            try:
                rate = _holds(other)
            except ValueError:
                continue
            if rate:
                name = f"--gpu {card.id}"
                yield _text(
                    f"{name} ({card.label}): one replica then holds {rate}/s.",
                    f"{name}（{card.label}）：此时单副本可承受 {rate}/s。",
                )
                return


def _better(card: Gpu, than: Gpu, late: bool, slow: bool) -> bool:
    """Whether it is worth a simulation: faster in what is missed, and usable."""
    pace = (card.fp16_tflops or card.fp32_tflops) > (than.fp16_tflops or than.fp32_tflops)
    width = card.bandwidth_gb_s > than.bandwidth_gb_s
    desk = "laptop" not in card.id or "laptop" in than.id
    return card.vendor == "NVIDIA" and card.supported and desk and (not late or pace) and (not slow or width)


def _size(card: Gpu) -> tuple[float, float]:
    return card.memory_gib, card.fp16_tflops or card.fp32_tflops


def _holds(load: Load) -> str:
    """Requests/s in three digits, or "" where the limits stay at the edge or leave a replica idle (`USEFUL`)."""
    if alone_at(load).kept < least(load) or load.figures(useful(load)).kept < KEPT:
        return ""
    return f"{simulate_load.knee(load, exact=0.03):.3g}"


def _up(ms: float) -> int:
    """Two digits, upwards."""
    step = 10 ** max(0, floor(log10(ms)) - 1) if ms >= 1 else 1
    return int(ceil(ms / step) * step)


def _down(tokens: float) -> int:
    step = 10 ** max(0, floor(log10(max(1.0, tokens))) - 1)
    return int(tokens // step * step)


def _text(en: str, zh: str) -> Text:
    return {"en": en, "zh": zh}
