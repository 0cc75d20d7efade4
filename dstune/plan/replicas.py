"""How many copies of a configuration a rate of requests takes: the plan for throughput, simulated with arrivals and limits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil

from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import Text
from dstune.model.plan import Capacity, Plan, Prediction
from dstune.plan import simulate_load
from dstune.plan.estimate import band
from dstune.plan.level import SLOTS, levelled
from dstune.plan.reach import USEFUL, alone_at, least, ways_out
from dstune.plan.search import CLOSE, DEFAULT_CONTEXT, PREFERENCE, Candidate, Wish, candidates, choose, planned, recommend
from dstune.plan.simulate_load import KEPT, Figures, Lengths, Load, Objective
from dstune.plan.simulate_steps import limits, step_cost

PARTS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1)
"""Loads that are shown, as parts of what one replica holds."""

NEAREST = {"en": "nothing keeps the limits at any rate; this comes nearest", "zh": "任何请求率下都没有配置达标，这是最接近的"}

WORTH = 0.05
"""Gain in requests/s that another doubling of llama.cpp's slots must bring."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What arrives: requests/s, their lengths, the seed of the draws."""

    rate: float
    lengths: Lengths
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Held:
    """A configuration, the load on it, the requests/s that it holds, and the figures of requests that come one by one."""

    best: Candidate
    load: Load
    holds: float
    alone: Figures


def sized(wish: Wish, demand: Demand) -> Plan:
    """The plan for a wish with its capacity. The number of sequences at once is the largest that the memory allows: it never lowers
    what a replica holds. A lossier number format is taken only where this one stands idle to keep the limits, or cannot.

    Raises `DstuneError` when nothing fits or a request is longer than the cache.
    """
    work = wish.workload
    objective = Objective(work.slo_ttft_ms or simulate_load.TTFT_MS, work.slo_itl_ms or simulate_load.TPOT_MS)
    goal = "throughput" if work.goal == "latency" else work.goal
    wish = wish if wish.context else replace(wish, context=_context(wish, demand))
    shaped = replace(wish, workload=replace(work, goal=goal, slo_ttft_ms=None, slo_itl_ms=None, rate=demand.rate))
    found = list(candidates(shaped))
    held: Held | None = None
    for tier in sorted({c.tier for c in found}):
        this = _best(replace(shaped, tiers=(tier,)), [c for c in found if c.tier == tier], demand, objective)
        if held is None or this.holds * CLOSE > held.holds:
            held = this
        if held.holds and held.holds >= USEFUL * simulate_load.saturated(held.load):
            break  # a lossier format would only hold more; this one does not stand idle to keep the limits
    if held is None:
        return recommend(shaped)  # says why nothing fits
    best = held.best
    plan = planned(best, levelled(best, [best, *(c for c in found if not _same(c, best))], shaped), shaped)
    if not held.holds:
        plan = replace(plan, pareto=(replace(plan.pareto[0], why=NEAREST), *plan.pareto[1:]))
    capacity = _capacity(best, demand, objective, held)
    assumed = [n for n, limit in (("ttft", work.slo_ttft_ms), ("itl", work.slo_itl_ms)) if limit is None]
    reach = () if held.holds else ways_out(best, shaped, demand.lengths, held.load, held.alone)
    capacity = replace(capacity, assumed=tuple(assumed), reach=reach)
    return replace(plan, capacity=capacity, notes=(*plan.notes, *_notes(best, held.load)))


def _same(a: Candidate, b: Candidate) -> bool:
    """Whether both are the same engine, format and cards, at any number at once."""
    return (a.ask.engine, a.ask.scheme, a.ask.dtype, a.ask.gpus) == (b.ask.engine, b.ask.scheme, b.ask.dtype, b.ask.gpus)


def _best(wish: Wish, pool: list[Candidate], demand: Demand, objective: Objective) -> Held:
    """Of one tier the candidate that holds the most; an engine earlier in `PREFERENCE` at `CLOSE` of it. Each is judged by its own best
    number at once, on the fewest cards."""
    if wish.workload.goal == "memory":
        return _widest(wish, choose(wish, pool), demand, objective)
    fewest = min(c.ask.gpus for c in pool)
    order = sorted((c for c in pool if c.ask.gpus == fewest), key=lambda c: PREFERENCE.index(c.ask.engine))
    held: list[Held] = []
    for c in order:
        if not held or _bound(wish, c, demand, objective) * CLOSE > max(h.holds for h in held):
            held.append(_widest(wish, c, demand, objective))
    most = max(h.holds for h in held)
    if not most:  # the nearest to the limits
        return max(held, key=lambda h: (round(h.alone.kept, 2), -round(_over(h.alone, objective), 1)))
    return next(h for h in held if h.holds >= CLOSE * most)


def _over(alone: Figures, objective: Objective) -> float:
    """How many times a limit the slowest twentieth takes."""
    return max(alone.ttft_p95_ms / objective.ttft_ms, alone.tpot_p95_ms / objective.itl_ms)


def _bound(wish: Wish, c: Candidate, demand: Demand, objective: Objective) -> float:
    """Requests/s that no limit lets it exceed: what it finishes when all wait at the door, llama.cpp with as many slots as fit."""
    if c.ask.engine == "llama.cpp" and not wish.asked_concurrency:
        for slots in reversed(SLOTS):
            more = replace(wish, engine="llama.cpp", workload=replace(wish.workload, concurrency=slots))
            if found := [w for w in candidates(more) if _same(w, c)]:
                c = found[0]
                break
    try:
        return simulate_load.saturated(_load(c, demand, objective))
    except ValueError:
        return 0.0


def _widest(wish: Wish, c: Candidate, demand: Demand, objective: Objective) -> Held:
    held = _holds(c, demand, objective)
    if c.ask.engine != "llama.cpp" or wish.asked_concurrency:
        return held
    return _slots(replace(wish, engine="llama.cpp"), held, demand, objective)


def _context(wish: Wish, demand: Demand) -> int:
    """The default context, or in whole 1,024s what 99 of 100 requests need; never more than the model reads."""
    usual = min(wish.model.context, DEFAULT_CONTEXT[wish.model.reasoning])
    sums = sorted(map(sum, zip(*demand.lengths.draw(2000, demand.seed), strict=True)))
    return min(wish.model.context, max(usual, 1024 * ceil(sums[int(0.99 * len(sums))] / 1024)))


def _slots(wish: Wish, held: Held, demand: Demand, objective: Objective) -> Held:
    """llama.cpp's slots are made at the start, each with its own cache: doubled as long as that pays and fits."""
    for slots in SLOTS:
        more = replace(wish, workload=replace(wish.workload, concurrency=slots))
        found = [c for c in candidates(more) if _same(c, held.best)]
        if not found:
            break
        wider = _holds(found[0], demand, objective)
        before, now = held.holds, wider.holds
        if not now and wider.alone.kept < least(wider.load):  # no number of slots holds: the one with the most output
            before, now = simulate_load.saturated(held.load), simulate_load.saturated(wider.load)
        if now < (1 + WORTH) * before:
            break
        held = wider
    return held


def _load(c: Candidate, demand: Demand, objective: Objective) -> Load:
    lengths = replace(demand.lengths, most=min(demand.lengths.most, c.ask.max_len or c.ask.model.context))
    return simulate_load.load(step_cost(c.ask), limits(c.ask), lengths, objective, seed=demand.seed)


def _holds(best: Candidate, demand: Demand, objective: Objective) -> Held:
    """The load on one replica, and the requests/s that it holds: 0 where the limits stand at the edge of what one request alone takes."""
    load = _load(best, demand, objective)
    try:
        alone = alone_at(load)
        return Held(best, load, simulate_load.knee(load) if alone.kept >= least(load) else 0.0, alone)
    except ValueError:
        raise DstuneError(
            say("a request of this workload is longer than the whole KV cache", "该负载中有请求比整个 KV 缓存还长"),
            say(
                f"the cache holds {best.memory.kv_tokens or 0:,.0f} tokens", f"缓存只有 {best.memory.kv_tokens or 0:,.0f} token"
            ),
            say("a shorter --context, or another card", "缩短 --context，或换一张卡"),
        ) from None


def _capacity(best: Candidate, demand: Demand, objective: Objective, held: Held) -> Capacity:
    load, holds = held.load, held.holds
    low, high = band(best.ask, "total_tok_s")
    slow, fast = simulate_load.slower(load, 1 / low), simulate_load.slower(load, 1 / high)
    worst, most = simulate_load.knee(slow, exact=0.03), simulate_load.knee(fast, exact=0.03)
    count = simulate_load.replicas(load, demand.rate, holds)
    most_s = simulate_load.saturated(load)

    def shown(rate: float) -> dict[str, float]:
        return {**asdict(load.figures(rate)), "utilisation": min(1.0, rate / most_s)}

    ends = tuple(ceil(demand.rate / k - 0.01) if k else 0 for k in (most, worst))
    return Capacity(
        rate=demand.rate,
        holds=Prediction(holds, min(worst, holds), max(most, holds)),
        replicas=count,
        replicas_band=(max(1, min(ends[0], count)) if ends[0] else 0, max(ends[1], count) if ends[1] else 0),
        slo_ttft_ms=objective.ttft_ms,
        slo_itl_ms=objective.itl_ms,
        share=KEPT,
        lengths=demand.lengths.name,
        prompt_tokens=sum(load.prompt) / len(load.prompt),
        output_tokens=sum(load.output) / len(load.output),
        requests=len(load.prompt),
        seed=demand.seed,
        at_once=load.limits.seqs,
        alone=held.alone.kept,
        loads=tuple(shown(part * holds) for part in PARTS) if holds else (),
        at_rate=shown(demand.rate / count) if count else {},
    )


def _notes(best: Candidate, load: Load) -> list[Text]:
    out: list[Text] = []
    full = best.ask.max_len or best.ask.model.context
    cut = sum(p + o >= full for p, o in zip(load.prompt, load.output, strict=True)) / len(load.prompt)
    if cut >= 0.005:
        out.append(
            {
                "en": f"{100 * cut:.1f} % of the requests fill the context of {full:,} tokens and are cut there.",
                "zh": f"{100 * cut:.1f}% 的请求占满 {full:,} token 的上下文，在此处截断。",
            }
        )
    if best.ask.engine == "transformers":
        out.append(
            {
                "en": "transformers' generate() answers one request after the other; vLLM and llama.cpp batch what waits.",
                "zh": "transformers 的 generate() 逐个处理请求；vLLM 和 llama.cpp 会把排队的请求合批。",
            }
        )
    return out
