"""How many copies of a configuration a rate of requests takes: the plan for throughput, simulated with arrivals and limits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil

from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import Capacity, Plan, Prediction, Text
from dstune.plan import simulate_load
from dstune.plan.estimate import band
from dstune.plan.search import DEFAULT_CONTEXT, Candidate, Wish, candidates, choose, recommend
from dstune.plan.simulate_load import KEPT, Lengths, Load, Objective
from dstune.plan.simulate_steps import limits, step_cost

PARTS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1)
"""Loads that are shown, as parts of what one replica holds."""


SLOTS, WORTH = (2, 4, 8, 16, 32), 0.05
"""Numbers of llama.cpp slots that are tried, and the gain in requests/s that another doubling must bring."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What arrives: requests/s, their lengths, the seed of the draws."""

    rate: float
    lengths: Lengths
    seed: int = 1


def sized(wish: Wish, demand: Demand) -> Plan:
    """The plan for a wish with its capacity. The number of sequences at once is the largest that the memory allows: it never lowers
    what a replica holds. A lossier number format is taken only where no rate at all is within the limits.

    Raises `DstuneError` when nothing fits or a request is longer than the cache.
    """
    work = wish.workload
    objective = Objective(work.slo_ttft_ms or simulate_load.TTFT_MS, work.slo_itl_ms or simulate_load.TPOT_MS)
    goal = "throughput" if work.goal == "latency" else work.goal
    wish = wish if wish.context else replace(wish, context=_context(wish, demand))
    shaped = replace(wish, workload=replace(work, goal=goal, slo_ttft_ms=None, slo_itl_ms=None))
    found = list(candidates(shaped))
    plan = recommend(shaped)
    best = choose(shaped, found)
    load, holds = _holds(best, demand, objective)
    if not holds:
        for tier in range(best.tier + 1, max(wish.tiers, default=0) + 1):
            lossier = replace(shaped, tiers=(tier,))
            pool = [c for c in found if c.tier == tier]
            if pool and (other := _holds(choose(lossier, pool), demand, objective))[1]:
                plan, best, (load, holds) = recommend(lossier), choose(lossier, pool), other
                break
    if best.ask.engine == "llama.cpp" and not wish.asked_concurrency:
        shaped, best, load, holds = _slots(
            replace(shaped, engine="llama.cpp", tiers=(best.tier,)), best, demand, objective, load, holds
        )
        plan = recommend(shaped)
    capacity = _capacity(best, demand, objective, load, holds)
    notes = [*plan.notes, *_notes(best, capacity, load, work.slo_ttft_ms is None or work.slo_itl_ms is None)]
    return replace(plan, capacity=capacity, notes=tuple(notes), workload=replace(plan.workload, rate=demand.rate))


def _context(wish: Wish, demand: Demand) -> int:
    """The default context, or in whole 1,024s what 99 of 100 requests need; never more than the model reads."""
    usual = min(wish.model.context, DEFAULT_CONTEXT[wish.model.reasoning])
    sums = sorted(map(sum, zip(*demand.lengths.draw(2000, demand.seed), strict=True)))
    return min(wish.model.context, max(usual, 1024 * ceil(sums[int(0.99 * len(sums))] / 1024)))


def _slots(
    wish: Wish, best: Candidate, demand: Demand, objective: Objective, load: Load, holds: float
) -> tuple[Wish, Candidate, Load, float]:
    """llama.cpp's slots are made at the start, each with its own cache: doubled as long as that pays and fits."""
    for slots in SLOTS:
        more = replace(wish, workload=replace(wish.workload, concurrency=slots))
        found = list(candidates(more))
        if not found:
            break
        other = choose(more, found)
        held = _holds(other, demand, objective)
        if held[1] < (1 + WORTH) * holds:
            break
        wish, best, (load, holds) = more, other, held
    return wish, best, load, holds


def _holds(best: Candidate, demand: Demand, objective: Objective) -> tuple[Load, float]:
    """The load on one replica, and the requests/s that it holds."""
    lengths = replace(demand.lengths, most=min(demand.lengths.most, best.ask.max_len or best.ask.model.context))
    load = simulate_load.load(step_cost(best.ask), limits(best.ask), lengths, objective, seed=demand.seed)
    try:
        return load, simulate_load.knee(load)
    except ValueError:
        raise DstuneError(
            say("a request of this workload is longer than the whole KV cache", "该负载中有请求比整个 KV 缓存还长"),
            say(
                f"the cache holds {best.memory.kv_tokens or 0:,.0f} tokens", f"缓存只有 {best.memory.kv_tokens or 0:,.0f} token"
            ),
            say("a shorter --context, or another card", "缩短 --context，或换一张卡"),
        ) from None


def _capacity(best: Candidate, demand: Demand, objective: Objective, load: Load, holds: float) -> Capacity:
    low, high = band(best.ask, "total_tok_s")
    slow, fast = simulate_load.slower(load, 1 / low), simulate_load.slower(load, 1 / high)
    least, most = simulate_load.knee(slow, exact=0.03), simulate_load.knee(fast, exact=0.03)
    count = simulate_load.replicas(load, demand.rate, holds)
    most_s = simulate_load.saturated(load)

    def shown(rate: float) -> dict[str, float]:
        return {**asdict(load.figures(rate)), "utilisation": min(1.0, rate / most_s)}

    ends = tuple(ceil(demand.rate / k - 0.01) if k else 0 for k in (most, least))
    return Capacity(
        rate=demand.rate,
        holds=Prediction(holds, min(least, holds), max(most, holds)),
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
        loads=tuple(shown(part * holds) for part in PARTS) if holds else (),
        at_rate=shown(demand.rate / count) if count else {},
    )


def _notes(best: Candidate, capacity: Capacity, load: Load, assumed: bool) -> list[Text]:
    out: list[Text] = []
    if assumed:
        ttft, itl = simulate_load.TTFT_MS, simulate_load.TPOT_MS
        out.append(
            {
                "en": f"A limit that was not given is that of MLPerf's server scenario: {ttft:,.0f} ms to the first token, {itl:.0f} ms a token.",
                "zh": f"未给出的时延上限取 MLPerf server 场景：首 token {ttft:,.0f} ms，每 token {itl:.0f} ms。",
            }
        )
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
    if not capacity.holds.value:
        prompt = sorted(load.prompt)[int(KEPT * len(load.prompt))]
        first = 1e3 * load.cost.seconds(prompt, prompt * prompt / 2, 0, 0)
        each = 1e3 * load.cost.seconds(0, 0, 1, capacity.prompt_tokens)
        out.append(
            {
                "en": f"No rate is within the limits: alone on the card a prompt of {prompt:,} tokens takes {first:,.0f} ms to the first token, and "
                f"each further token {each:.1f} ms.",
                "zh": f"任何请求率都达不到时延要求：独占该卡时，{prompt:,} token 的输入首 token 需 {first:,.0f} ms，之后每 token {each:.1f} ms。",
            }
        )
    return out
