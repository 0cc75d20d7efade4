"""The simulation of continuous batching: against a scheduler that goes token by token, against formulas, and its invariants."""

import random
from collections import deque
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstune.plan.simulate import Limits, StepCost, simulate

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


@settings(max_examples=300, deadline=None)
@given(workloads())
def test_events_agree_with_going_token_by_token(case: tuple[Limits, list[float], list[int], list[int]]) -> None:
    limits, at, prompt, output = case
    first, done, preemptions, peak, steps = plain(COST, limits, at, prompt, output)
    run = simulate(COST, limits, at, prompt, output)
    assert list(run.first) == pytest.approx(first, rel=1e-9)
    assert list(run.done) == pytest.approx(done, rel=1e-9)
    assert (run.preemptions, run.steps) == (preemptions, steps)
    assert run.blocks_peak == peak
    assert limits.blocks is None or run.blocks_peak <= limits.blocks
    assert run.tokens == sum(output), "every token is made once, those of preempted sequences too"
    assert run.prompt_tokens == sum(prompt) + run.recomputed
