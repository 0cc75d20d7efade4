"""The simulation of continuous batching: against a scheduler that goes token by token, against formulas, and its invariants."""

import json
import random
import time
from collections import deque
from importlib.util import module_from_spec, spec_from_file_location
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dstune.catalog import gpus, models
from dstune.plan.ask import Ask
from dstune.plan.simulate import Limits, StepCost, simulate
from dstune.plan.simulate_load import (
    OUTPUT_CV,
    PROMPT_CV,
    Lengths,
    Objective,
    knee,
    load,
    percentile,
    replicas,
    saturated,
    slower,
)
from dstune.plan.simulate_steps import Measured, fitted, limits, step_cost
from dstune.plan.speed import decode_step, prefill_seconds, speed

COST = StepCost(read=(0.010,), overhead=(0.0, 0.001, 0.0015, 0.002), token=1e-4, prompt=2e-4, pair=1e-7, kv=1e-6)


def plain(
    cost: StepCost, limits: Limits, at: list[float], prompt: list[int], output: list[int]
) -> tuple[list[float], list[float], int, int, int]:
    """The rules, one step after the other and every sequence with its own blocks: first and last token, preemptions, peak of blocks, steps."""
    count = len(at)
    pool = limits.blocks if limits.blocks is not None else 10**9
    first, done = [0.0] * count, [0.0] * count
    made, computed = [0] * count, [0] * count
    held = [0] * count
    full = [False] * count  # its prompt (and what it had said before it was preempted) is read
    running: list[int] = []
    waiting: deque[int] = deque()
    new = 0
    now, before = at[0], at[0]
    preemptions = peak = steps = 0

    def blocks(tokens: int) -> int:
        return -(-tokens // limits.block)

    def total(i: int) -> int:
        return prompt[i] + made[i]

    while new < count or waiting or running:
        if not running and not waiting:
            now = max(now, at[new])
            before = now
        seen = before if limits.ahead else now
        while new < count and at[new] <= (seen if running else max(now, seen)):
            waiting.append(new)
            new += 1
        refused = False
        for i in list(running):  # each needs room for its next token; the last one in goes first
            if i not in running or not full[i]:
                continue
            while blocks(computed[i] + 1) - held[i] > pool - sum(held):
                gone = running.pop()
                waiting.appendleft(gone)
                computed[gone] = held[gone] = 0
                full[gone] = False
                preemptions += 1
                refused = True
                if gone == i:
                    break
            if i in running:
                held[i] = blocks(computed[i] + 1)
        plan: dict[int, int] = {}
        budget = limits.budget
        for i in running:
            take = min(total(i) - computed[i], budget)
            if take > 0:
                plan[i] = take
                budget -= take
        if not refused:
            while (
                waiting
                and budget > 0
                and len(running) < limits.seqs
                and all(total(i) - computed[i] <= plan.get(i, 0) for i in running)
            ):
                i = waiting[0]
                if blocks(total(i)) > pool - sum(held):
                    break
                waiting.popleft()
                running.append(i)
                held[i] = blocks(total(i))
                plan[i] = min(total(i), budget)
                budget -= plan[i]
        if not plan:
            continue
        peak = max(peak, sum(held))
        decode = [i for i in plan if full[i]]
        fill = [i for i in plan if not full[i]]
        pairs = sum(plan[i] * (computed[i] + plan[i] / 2) for i in fill)
        took = cost.seconds(sum(plan[i] for i in fill), pairs, len(decode), sum(computed[i] for i in decode))
        before = now
        now += took
        steps += 1
        for i in list(plan):
            computed[i] += plan[i]
            if computed[i] == total(i):
                made[i] += 1
                full[i] = True
                first[i] = first[i] or now
                if made[i] == output[i]:
                    done[i] = now
                    running.remove(i)
                    held[i] = 0
    return first, done, preemptions, peak, steps


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Limits, list[float], list[int], list[int]]:
    source = random.Random(draw(st.integers(0, 10**6)))
    count = draw(st.integers(1, 40))
    rate = draw(st.sampled_from([0.5, 5.0, 50.0]))
    prompt = [source.randint(1, draw(st.sampled_from([8, 60]))) for _ in range(count)]
    output = [source.randint(1, draw(st.sampled_from([3, 40]))) for _ in range(count)]
    block = draw(st.sampled_from([1, 4, 16]))
    least = max(-(-(p + o) // block) for p, o in zip(prompt, output, strict=True))
    blocks = draw(st.sampled_from([None, least, least + 2, 2 * least]))
    seqs = draw(st.sampled_from([1, 2, 5, 16]))
    limits = Limits(seqs, draw(st.sampled_from([max(8, seqs), 32, 512])), blocks, block, draw(st.booleans()))
    at = list(accumulate(source.expovariate(rate) for _ in range(count)))
    return limits, at, prompt, output


PREEMPTED_ALONE = (
    Limits(seqs=2, budget=32, blocks=35, block=1, ahead=True),
    [0.29152882, 0.356322346, 0.51034412, 0.55490028, 0.61804992, 0.68316974, 0.6837859],
    [7, 4, 6, 3, 4, 4, 4],
    [2, 29, 1, 2, 9, 2, 8],
)
"""A preempted request is all that is left when the next one arrives: both start together."""


@settings(max_examples=300, deadline=None)
@example(PREEMPTED_ALONE)
@given(workloads())
def test_events_agree_with_going_token_by_token(case: tuple[Limits, list[float], list[int], list[int]]) -> None:
    may, at, prompt, output = case
    first, done, preemptions, peak, steps = plain(COST, may, at, prompt, output)
    run = simulate(COST, may, at, prompt, output)
    assert list(run.first) == pytest.approx(first, rel=1e-9)
    assert list(run.done) == pytest.approx(done, rel=1e-9)
    assert (run.preemptions, run.steps) == (preemptions, steps)
    assert run.blocks_peak == peak
    assert may.blocks is None or run.blocks_peak <= may.blocks
    assert run.tokens == sum(output), "every token is made once, those of preempted sequences too"
    assert run.prompt_tokens == sum(prompt) + run.recomputed


def poisson(rate: float, count: int, seed: int = 1) -> list[float]:
    source = random.Random(seed)
    return list(accumulate(source.expovariate(rate) for _ in range(count)))


def mixed(count: int, seed: int = 1) -> tuple[list[int], list[int]]:
    return Lengths(120, 60, PROMPT_CV, OUTPUT_CV).draw(count, seed)


def test_a_lone_request_waits_for_its_prompt_and_then_a_step_a_token() -> None:
    run = simulate(COST, Limits(), [3.0], [200], [5])
    prefill = COST.seconds(200, 200 * 200 / 2, 0, 0)
    assert run.first[0] == pytest.approx(3.0 + prefill)
    assert run.done[0] == pytest.approx(3.0 + prefill + sum(COST.seconds(0, 0, 1, 200 + k) for k in range(4)))
    assert (run.steps, run.tokens, run.busy) == (5, 5, pytest.approx(run.done[0] - 3.0))


def test_a_long_prompt_is_read_in_chunks() -> None:
    run = simulate(COST, Limits(budget=2048), [0.0], [5000], [1])
    chunks = ((0, 2048), (2048, 2048), (4096, 904))
    assert run.first[0] == run.done[0] == pytest.approx(sum(COST.seconds(n, n * (have + n / 2), 0, 0) for have, n in chunks))


def test_what_passes_outside_the_engine_is_added_once() -> None:
    late = StepCost(COST.read, COST.overhead, COST.token, COST.prompt, COST.pair, COST.kv, delay=0.25)
    a, b = (simulate(c, Limits(), [0.0], [10], [3]) for c in (COST, late))
    assert b.first[0] - a.first[0] == b.done[0] - a.done[0] == pytest.approx(0.25)


@pytest.mark.parametrize("load_", [0.3, 0.6, 0.8])
def test_one_place_and_one_length_is_an_m_d_1_queue(load_: float) -> None:
    service = simulate(COST, Limits(seqs=1), [0.0], [50], [20]).done[0]
    count = 60_000
    at = poisson(load_ / service, count)
    run = simulate(COST, Limits(seqs=1), at, [50] * count, [20] * count)
    wait = sum(d - a for d, a in zip(run.done, at, strict=True)) / count - service
    assert wait == pytest.approx(load_ * service / (2 * (1 - load_)), rel=0.05)
    assert run.busy == pytest.approx(count * service)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("blocks", [None, 150])
def test_the_server_works_whenever_somebody_is_there(ahead: bool, blocks: int | None) -> None:
    prompt, output = mixed(2000)
    at = poisson(4.0, 2000)
    run = simulate(COST, Limits(8, 256, blocks, ahead=ahead), at, prompt, output)
    there, until = 0.0, 0.0
    for begin, end in sorted(zip(at, run.done, strict=True)):
        there += max(0.0, end - max(begin, until))
        until = max(until, end)
    assert run.busy == pytest.approx(there)
    assert all(a < f <= d for a, f, d in zip(at, run.first, run.done, strict=True))
    assert sum(run.gaps.values()) == sum(output) - len(output), "an answer of n tokens has n - 1 gaps"


def test_a_full_cache_preempts_and_never_overflows() -> None:
    prompt, output = mixed(2000)
    at = poisson(8.0, 2000)
    least = max(-(-(p + o) // 16) for p, o in zip(prompt, output, strict=True))
    tight, wide = (simulate(COST, Limits(32, 512, blocks), at, prompt, output) for blocks in (least, None))
    assert tight.preemptions > 10
    assert wide.preemptions == 0
    assert tight.blocks_peak <= least < wide.blocks_peak
    assert tight.tokens == wide.tokens == sum(output)
    assert tight.end > wide.end
    assert tight.recomputed > 0
    with pytest.raises(ValueError, match="longer than the whole cache"):
        simulate(COST, Limits(32, 512, least - 1), at, prompt, output)


def test_a_step_already_decided_costs_an_arrival_one_step_more() -> None:
    at, prompt, output = [0.0, 0.051], [10, 10], [60, 2]
    now, ahead = (simulate(COST, Limits(ahead=a), at, prompt, output) for a in (False, True))
    step = COST.seconds(0, 0, 1, 14)
    assert ahead.first[1] - now.first[1] == pytest.approx(step, rel=0.01)


def test_prompts_alone_make_running_answers_wait() -> None:
    cost = StepCost(read=(0.01,), prompt=1e-3)
    run = simulate(cost, Limits(alone=True), [0.0, 0.025], [10, 100], [6, 2])
    prefill = 0.01 + 0.1  # of the second, decided at the end of the second step
    assert run.first[1] == pytest.approx(0.02 + 0.01 + prefill)
    assert run.done[0] == pytest.approx(0.02 + 5 * 0.01 + prefill)
    assert run.gap(1.0) == pytest.approx(0.01 + prefill, rel=0.01)


def test_more_requests_never_make_it_better() -> None:
    what = load(COST, Limits(16, 512), Lengths(120, 60, PROMPT_CV, OUTPUT_CV), Objective(1500, 120), 3000)
    rows = [what.figures(rate) for rate in (0.5, 1, 2, 4, 7, 10, 20)]
    for slow, fast in pairwise(rows):
        assert fast.kept <= slow.kept + 0.002
        assert fast.ttft_p95_ms >= slow.ttft_p95_ms * 0.99
        assert fast.itl_p50_ms >= slow.itl_p50_ms * 0.99
        assert fast.busy >= slow.busy - 1e-9
    assert rows[0].request_s == pytest.approx(0.5, rel=0.1)
    assert rows[-1].request_s == pytest.approx(saturated(what), rel=0.1), "an overloaded server works at its ceiling"


def test_the_knee_is_the_last_rate_within_the_limits() -> None:
    what = load(COST, Limits(16, 512), Lengths(120, 60, PROMPT_CV, OUTPUT_CV), Objective(1500, 120))
    holds = knee(what)
    assert what.figures(holds).kept >= 0.95 > what.figures(1.03 * holds).kept
    assert holds < saturated(what)
    assert knee(slower(what, 2.0)) < 0.5 * holds, "limits do not scale with the server"
    count = replicas(what, 3.3 * holds, holds)
    assert count == 4
    assert what.figures(3.3 * holds / count).kept >= 0.95
    impossible = load(COST, Limits(16, 512), Lengths(120, 60), Objective(1500, 5))
    assert knee(impossible) == 0.0
    assert replicas(impossible, 1.0, 0.0) == 0


def test_draws_repeat_and_have_the_mean_and_the_limit_that_was_asked() -> None:
    spread = Lengths(300, 100, PROMPT_CV, OUTPUT_CV, most=4096)
    prompt, output = spread.draw(20_000, 5)
    assert (prompt, output) == spread.draw(20_000, 5) != spread.draw(20_000, 6)
    assert sum(prompt) / 20_000 == pytest.approx(300, rel=0.03)
    assert sum(output) / 20_000 == pytest.approx(100, rel=0.03)
    assert stdev(output) / fmean(output) == pytest.approx(OUTPUT_CV, rel=0.05)
    assert max(p + o for p, o in zip(prompt, output, strict=True)) <= 4096
    cut = Lengths(300, 100, PROMPT_CV, OUTPUT_CV, most=200).draw(1000, 1)
    assert max(p + o for p, o in zip(*cut, strict=True)) == 200
    assert min(map(min, cut)) >= 1
    recorded = Lengths(0, 0, pairs=((7, 3), (9, 4)))
    assert set(zip(*recorded.draw(100, 1), strict=True)) == {(7, 3), (9, 4)}


@pytest.mark.parametrize(("card", "engine", "at_once"), [("4090", "vllm", 64), ("T4", "vllm", 16), ("H200", "vllm", 128), ("4090", "llama.cpp", 4)])  # fmt: skip
def test_a_batch_that_comes_at_once_takes_what_the_estimate_says(card: str, engine: str, at_once: int) -> None:
    """The same physics as `dstune estimate`, taken apart and put together step by step."""
    spec = models.get("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    ask = Ask(
        engine, gpus.find(card), spec, prompt=256, output=512, batch=at_once, max_len=4096, max_seqs=at_once, parallel=at_once
    )
    cost, may = step_cost(ask), limits(ask)
    assert may.seqs == at_once
    assert cost.seconds(0, 0, at_once, at_once * 512) == pytest.approx(decode_step(ask, at_once, 512).total, rel=1e-6)
    assert cost.seconds(256, 256 * 256 / 2, 0, 0) == pytest.approx(prefill_seconds(ask, 256, 256), rel=0.01)
    run = simulate(cost, may, [0.0] * at_once, [256] * at_once, [512] * at_once)
    assert run.tokens / run.end == pytest.approx(speed(ask).total, rel=0.03)


def test_coefficients_come_back_out_of_measurements() -> None:
    true = StepCost(read=(0.0,), overhead=(0.030, 0.030, 0.033, 0.036, 0.040), prompt=1.5e-3, pair=2e-7, kv=5e-7, delay=0.004)
    steps = {n: [true.seconds(0, 0, n, 60 * n)] * 3 for n in (1, 2, 4)}
    prompts = [(p, true.delay + true.seconds(p, p * p / 2, 0, 0)) for p in (40, 200, 900)]
    found = fitted(Measured(steps, [(c, true.seconds(0, 0, 1, c)) for c in (60, 900)], prompts, 60))
    assert (found.prompt, found.pair, found.kv, found.delay) == pytest.approx((1.5e-3, 2e-7, 5e-7, 0.004), rel=1e-3)
    assert found.overhead[1] == pytest.approx(0.030)
    assert found.overhead[4] == pytest.approx(0.040)
    assert found.overhead[3] == pytest.approx(0.0365), "a straight line between the sizes that were measured"
    with pytest.raises(ValueError, match="two batch sizes"):
        fitted(Measured({1: [0.03]}, [], prompts, 60))


RECORD = Path(__file__).parents[1] / "recipes/measurements/vllm-cpu-simulation.json"


def between(a: dict[str, Any], b: dict[str, Any]) -> StepCost:
    """The mean of the step times right before and right after a load."""
    means = {k: (a[k] + b[k]) / 2 for k in ("token", "prompt", "pair", "kv", "mix", "sharp", "host", "delay")}
    tables = {k: tuple((x + y) / 2 for x, y in zip(a[k], b[k], strict=True)) for k in ("read", "overhead")}
    return StepCost(**means, **tables)


@pytest.mark.parametrize(("name", "limit"), [("low", 0.2), ("medium", 0.2), ("near the knee", 0.2), ("overload", 0.25)])
def test_loads_that_a_real_server_was_given(name: str, limit: float) -> None:
    """Throughput and p95 of the first token against what vLLM did, by the median of three rounds (benchmarks/simulate_validate.py)."""
    rate, first = [], []
    for session in json.loads(RECORD.read_text(encoding="utf-8"))["sessions"]:
        for i, row in enumerate(session["rows"]):
            if row["load"] != name:
                continue
            run = simulate(
                between(*session["calibrations"][i : i + 2]),
                Limits(**session["limits"]),
                row["at"],
                row["prompt"],
                row["output"],
            )
            waits = sorted(f - a for f, a in zip(run.first, row["at"], strict=True))
            rate.append(abs(run.tokens / max(run.done) / row["measured"]["output_tok_s"] - 1))
            first.append(abs(1e3 * percentile(waits, 0.95) / row["measured"]["ttft_p95_ms"] - 1))
    assert len(rate) == 3
    assert median(rate) < 0.05
    assert median(first) < limit, first


def test_loads_on_a_gpu_that_others_measured() -> None:
    """Qwen3.5-4B on a GB10 at 0.1 to 1.0 requests/s, from model, card and settings alone (benchmarks/simulate_published.py has all 40 rows)."""
    place = Path(__file__).parents[1] / "benchmarks/simulate_published.py"
    told = spec_from_file_location("simulate_published", place)
    assert told is not None
    assert told.loader is not None
    published = module_from_spec(told)
    told.loader.exec_module(published)
    rows = [
        r
        for r in json.loads((RECORD.parent / "published-loads-gb10.json").read_text(encoding="utf-8"))["rows"]
        if "3.5-4B" in r["model"]
    ]
    assert len(rows) == 8
    drawn = [[published.predict(row, "GB10", seed) for seed in (1, 2, 3)] for row in rows]
    said = [{k: median(d[k] for d in each) for k in published.FIGURES} for each in drawn]
    for key, limit in (("output_tok_s", 0.12), ("p50_tpot_ms", 0.20), ("p50_ttft_ms", 0.30), ("p95_ttft_ms", 0.35)):
        assert median(abs(s[key] / r[key] - 1) for s, r in zip(said, rows, strict=True)) < limit, key


def test_a_million_requests_take_less_than_a_minute_of_one_core() -> None:
    count = 50_000
    prompt, output = mixed(count)
    at = poisson(6.0, count)
    begin = time.process_time()
    run = simulate(COST, Limits(64, 2048, 4000), at, prompt, output)
    assert time.process_time() - begin < 60 * count / 1_000_000
    assert run.steps > count
