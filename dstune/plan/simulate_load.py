"""Loads for the simulation and what comes out of them: arrivals, lengths, percentiles against limits, the knee."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log, sqrt

from dstune.plan.simulate import Limits, Run, StepCost, simulate

PROMPT_CV, OUTPUT_CV = 0.96, 0.77
"""Spread over mean of the lengths of 19,366 conversations (Azure LLM inference trace 2023, AzureLLMInferenceTrace_conv.csv)."""

TTFT_MS, TPOT_MS = 2000.0, 200.0
"""Limits where none are asked: the server scenario of MLPerf Inference for Llama-2-70B."""

KEPT = 0.95
"""Share of requests that must be within the limits."""

REQUESTS, ROUNDS = 3000, 20
"""Requests of one simulated load: this many, and for big batches this many times the batch, or an overload would not show."""

EDGES = (0.1, 0.9)
"""The part of the requests that is judged: neither the empty server at the start nor the empty queue at the end."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output tokens of requests: means with a spread (0: fixed), or pairs of a recorded run to draw from. `most`: longest sequence."""

    prompt: float
    output: float
    prompt_cv: float = 0.0
    output_cv: float = 0.0
    pairs: tuple[tuple[int, int], ...] = ()
    most: int = 1 << 30

    @property
    def name(self) -> str:
        """`recorded`, `fixed` or `lognormal`."""
        return "recorded" if self.pairs else "lognormal" if self.prompt_cv or self.output_cv else "fixed"

    def draw(self, count: int, seed: int) -> tuple[list[int], list[int]]:
        """`count` pairs, the same for a seed. Longer ones are cut as a server with a context limit cuts them."""
        source = random.Random(seed * 7919 + 1)
        if self.pairs:
            drawn = source.choices(self.pairs, k=count)
        else:
            first, then = _lognormal(source, self.prompt, self.prompt_cv), _lognormal(source, self.output, self.output_cv)
            drawn = [(first(), then()) for _ in range(count)]
        prompt = [max(1, min(p, self.most - 1)) for p, _ in drawn]
        return prompt, [max(1, min(o, self.most - p)) for p, (_, o) in zip(prompt, drawn, strict=True)]


def _lognormal(source: random.Random, mean: float, cv: float) -> Callable[[], int]:
    """Draws whole numbers with this mean and this standard deviation over it."""
    if not cv:
        return lambda: round(mean)
    sigma = sqrt(log(1 + cv * cv))
    middle = log(mean) - sigma * sigma / 2
    return lambda: max(1, round(source.lognormvariate(middle, sigma)))


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits in ms for the first token and for the mean time of each further one."""

    ttft_ms: float = TTFT_MS
    itl_ms: float = TPOT_MS


@dataclass(frozen=True, slots=True)
class Figures:
    """One simulated load on one replica. Rates in requests/s or tokens/s, times in ms; `kept` is the share within the limits, `goodput` the rate of
    those, `busy` the share of time in which steps ran, `running` sequences at once while busy, `cache` the largest share of the cache in use."""

    rate: float
    kept: float
    goodput: float
    request_s: float
    output_tok_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    itl_p50_ms: float
    itl_p95_ms: float
    tpot_p95_ms: float
    busy: float
    running: float
    cache: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class Load:
    """A server and what arrives at it: the draws are made once, so that loads differ by their rate alone."""

    cost: StepCost
    limits: Limits
    gaps: tuple[float, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    objective: Objective

    def run(self, rate: float) -> tuple[list[float], Run]:
        """Arrival times of a Poisson process of `rate` requests/s (0: all at once), and what happened."""
        now, at = 0.0, []
        for gap in self.gaps:
            now += gap / rate if rate else 0.0
            at.append(now)
        return at, simulate(self.cost, self.limits, at, self.prompt, self.output)

    def figures(self, rate: float) -> Figures:
        """The figures of a rate."""
        return judge(*self.run(rate), self, rate)


def load(cost: StepCost, limits: Limits, lengths: Lengths, objective: Objective, count: int = 0, seed: int = 1) -> Load:
    """Draws the requests (`count` 0: as many as the batch asks for). The same for a seed."""
    count = count or max(REQUESTS, ROUNDS * limits.seqs)
    source = random.Random(seed)
    prompt, output = lengths.draw(count, seed)
    return Load(cost, limits, tuple(source.expovariate(1.0) for _ in range(count)), tuple(prompt), tuple(output), objective)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the closest ranks of sorted values."""
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def judge(at: Sequence[float], run: Run, what: Load, rate: float) -> Figures:
    """Figures over the middle of the requests (`EDGES`); rates of the whole run."""
    count = len(at)
    low, high = int(EDGES[0] * count), max(int(EDGES[0] * count) + 1, int(EDGES[1] * count))
    most_ttft, most_itl = what.objective.ttft_ms / 1e3, what.objective.itl_ms / 1e3
    ttft, tpot, kept = [], [], 0
    for i in range(low, high):
        first = run.first[i] - at[i]
        each = (run.done[i] - run.first[i]) / (what.output[i] - 1) if what.output[i] > 1 else 0.0
        ttft.append(first)
        if what.output[i] > 1:
            tpot.append(each)
        kept += first <= most_ttft and each <= most_itl
    ttft.sort()
    tpot.sort()
    begin, end = at[low], at[min(high, count - 1)]
    if end > begin:  # what left the server while the judged requests came
        left = [o for d, o in zip(run.done, what.output, strict=True) if begin < d <= end]
        request_s, tokens_s = len(left) / (end - begin), sum(left) / (end - begin)
    else:  # all at once
        request_s, tokens_s = count / (run.end - at[0]), run.tokens / (run.end - at[0])
    share = kept / (high - low)
    return Figures(
        rate=rate or request_s, kept=share, goodput=share * min(rate or request_s, request_s), request_s=request_s, output_tok_s=tokens_s,
        ttft_p50_ms=1e3 * percentile(ttft, 0.5), ttft_p95_ms=1e3 * percentile(ttft, 0.95),
        itl_p50_ms=1e3 * (run.gap(0.5) or 0.0), itl_p95_ms=1e3 * (run.gap(0.95) or 0.0),
        tpot_p95_ms=1e3 * percentile(tpot, 0.95) if tpot else 0.0,
        busy=run.busy / (run.end - at[0]), running=run.running,
        cache=run.blocks_peak / what.limits.blocks if what.limits.blocks else 0.0, preemptions=run.preemptions,
    )  # fmt: skip


def saturated(what: Load) -> float:
    """Requests/s that the server finishes when all of them wait at the door: the middle half of the answers."""
    at, run = what.run(0.0)
    done = sorted(run.done)
    low, high = len(done) // 4, 3 * len(done) // 4
    return (high - low) / (done[high] - done[low]) if done[high] > done[low] else len(at) / run.end


def knee(what: Load, share: float = KEPT, exact: float = 0.01) -> float:
    """The highest rate in requests/s at which `share` of the requests is within the limits, to `exact`; 0 where no rate is."""
    high = most = saturated(what)
    low, probe = 0.0, 0.8 * high
    if what.figures(high).kept >= share:
        return high
    while not low:
        if what.figures(probe).kept >= share:
            low = probe
        elif probe < most / 300:
            return 0.0
        else:
            high, probe = probe, probe / 2
    while high > (1 + exact) * low:
        middle = (low + high) / 2
        if what.figures(middle).kept >= share:
            low = middle
        else:
            high = middle
    return low


def replicas(what: Load, rate: float, holds: float, share: float = KEPT) -> int:
    """Servers of this kind that a rate needs when each takes an equal part; 0 where none is enough."""
    if not holds:
        return 0
    count = max(1, ceil(rate / holds - 0.01))
    while what.figures(rate / count).kept < share and count * holds < 4 * rate + 4 * holds:
        count += 1
    return count


def slower(what: Load, factor: float) -> Load:
    """The same requests at a server that is `factor` times slower."""
    return replace(what, cost=what.cost.scaled(factor))
