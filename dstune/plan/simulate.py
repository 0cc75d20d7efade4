"""Continuous batching by discrete events: what a server does with requests that arrive one by one.

The rules are those of vLLM's V1 scheduler: every step gives each running sequence one token, what is left of `budget` goes to prompts in the order
they came, in chunks; a prompt starts when a place and the cache blocks of all its tokens are free; when the cache is full the sequence that came
last gives up its blocks and is computed again, before anything new. Between an arrival, a prompt and an end the batch does not change, and
the time of a step is linear in the cached tokens: such a run of steps is one sum, so that the cost is per event and not per token.

Times in seconds, lengths in tokens. Standard library only.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import exp, log, sqrt

FINE = 100.0
"""Bins of the gap histogram a factor of e: each is 1 % wide."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one step: p-norm(read + kv x cached tokens, tokens + pairs) + overhead, not below `host`.

    `read` and `overhead` are by number of sequences (index 0: none; the last holds beyond). `token` is a decoded token, `prompt` a prompt token,
    `pair` a token that looks at one cached token, `kv` a cached token that is read. Prompt tokens cost `mix` times as much beside running
    sequences. `sharp` is the exponent of the p-norm (1: a sum). `delay` passes between client and engine and takes no step's time.
    """

    read: tuple[float, ...]
    overhead: tuple[float, ...] = (0.0,)
    token: float = 0.0
    prompt: float = 0.0
    pair: float = 0.0
    kv: float = 0.0
    mix: float = 1.0
    sharp: float = 1.0
    host: float = 0.0
    delay: float = 0.0

    def seconds(self, prompt: float, pairs: float, sequences: int, cached: float) -> float:
        """One step of `sequences` decoding with `cached` tokens together, and `prompt` prompt tokens looking at `pairs` tokens."""
        at = sequences or 1
        memory = self.read[min(at, len(self.read) - 1)] + self.kv * cached
        compute = (
            self.token * sequences + self.pair * (cached + pairs) + self.prompt * prompt * (self.mix if sequences else 1.0)
        )
        if self.sharp == 1.0:
            moved = memory + compute
        else:
            moved = (memory**self.sharp + compute**self.sharp) ** (1 / self.sharp)
        return max(self.host, moved + self.overhead[min(at, len(self.overhead) - 1)])

    def scaled(self, factor: float) -> StepCost:
        """The same server, `factor` times slower."""
        return StepCost(
            tuple(factor * x for x in self.read), tuple(factor * x for x in self.overhead), factor * self.token, factor * self.prompt,
            factor * self.pair, factor * self.kv, self.mix, self.sharp, factor * self.host, self.delay,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler may do: sequences at once, tokens a step, cache blocks (None: never short) of `block` tokens.

    `ahead`: the next step is already decided while one runs (asynchronous scheduling), so that an arrival waits for one step more. `alone`: prompts
    are read in steps of their own while running sequences wait (SGLang without mixed chunks).
    """

    seqs: int = 256
    budget: int = 2048
    blocks: int | None = None
    block: int = 16
    ahead: bool = False
    alone: bool = False


@dataclass(slots=True)
class Run:
    """What happened: time of each request's first and last token, and sums over the run. `gaps` are counts of times between tokens by log bin."""

    first: array[float]
    done: array[float]
    end: float = 0.0
    busy: float = 0.0
    steps: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    recomputed: int = 0
    preemptions: int = 0
    running: float = 0.0
    blocks_peak: int = 0
    gaps: dict[int, int] = field(default_factory=dict)

    def gap(self, share: float) -> float | None:
        """Quantile of the time between two tokens of an answer, to 1 %; None where no answer has two."""
        total = sum(self.gaps.values())
        seen = 0
        for at in sorted(self.gaps):
            seen += self.gaps[at]
            if seen >= share * total:
                return exp((at + 0.5) / FINE)
        return None


def simulate(
    cost: StepCost, limits: Limits, at: Sequence[float], prompt: Sequence[int], output: Sequence[int], context: float = 0.0
) -> Run:
    """Requests that arrive at the (rising) times `at`, each `prompt` tokens in and `output` (at least 1) out.

    `context`: cached tokens of a typical sequence, where the decode step is made linear (the mean length when 0).
    Raises `ValueError` for a request that the cache cannot hold.
    """
    count = len(at)
    size = limits.block
    free = limits.blocks if limits.blocks is not None else 1 << 60
    if count and (max(map(sum, zip(prompt, output, strict=True))) - 1 + size - 1) // size > free:
        raise ValueError("a request is longer than the whole cache")
    if count and (min(prompt) < 1 or min(output) < 1):
        raise ValueError("a request has no tokens")
    most, budget_of_step, alone, ahead = limits.seqs, limits.budget, limits.alone, limits.ahead
    base, slope = _linear(cost, most, context or _mean(prompt) + _mean(output) / 2 or 1.0)
    seconds = cost.seconds
    run = Run(array("d", bytes(8 * count)), array("d", bytes(8 * count)))
    first, done, gaps = run.first, run.done, run.gaps
    pool = free
    key = [0] * count  # of decoding requests: the step after which they end, shifted over the number; else 0
    left = list(output)  # tokens still to come, of requests that wait
    stopped: dict[int, float] = {}  # preempted: when their last token came
    heap: list[int] = []
    order: list[int] = []  # running requests in the order of admission, ended ones among them
    again: deque[int] = deque()  # preempted, first to come back at the left
    need = [0] * (2 * size)  # sequences that need a block at step d: need[-d % size]; twice, so that a window is a slice
    head = 0  # first request that was never admitted
    partial, read = -1, 0  # the prompt in chunks, and its tokens already read
    now = before = at[0] if count else 0.0  # `before`: when the step before this one began
    start = now
    idle = 0.0
    d = n = cached = steps = made = 0
    lowest = free
    stall = running = 0.0

    def leave(i: int) -> None:
        """Takes a decoding request out of the batch, after `d` steps."""
        nonlocal n, cached, free
        length = prompt[i] + output[i] - (key[i] >> 32) + d - 1
        n -= 1
        cached -= length
        free += -(-length // size)
        slot = (length - d) % size
        need[slot] -= 1
        need[slot + size] -= 1
        key[i] = 0

    while True:
        if not n and partial < 0:
            if not again:
                if head >= count:
                    break
                if at[head] > now:
                    idle += at[head] - now
                    now = at[head]
            before = now
        wanted = need[-d % size]
        refused = False
        while wanted > free:  # the cache is full: the last one in gives up its blocks
            i = order.pop()
            if i == partial:
                free += -(-(prompt[i] + output[i] - left[i]) // size)
                run.recomputed += read
                partial = -1
            elif key[i]:
                left[i] = (key[i] >> 32) - d
                leave(i)
                run.recomputed += prompt[i] + output[i] - left[i]
                stopped[i] = now - stall
                wanted = need[-d % size]
            else:
                continue
            refused = True
            again.appendleft(i)
            run.preemptions += 1
        fresh: list[int] = []
        tokens = 0
        pairs = 0.0
        budget = budget_of_step if alone else budget_of_step - n
        if partial >= 0 and budget > 0:
            length = prompt[partial] + output[partial] - left[partial]
            tokens = min(length - read, budget)
            pairs = tokens * (read + tokens / 2)
            budget -= tokens
            read += tokens
            if read == length:
                fresh.append(partial)
                partial = -1
        seen = before if ahead else now
        places = most - n - len(fresh) - (partial >= 0)
        waits = bool(again) or head < count  # somebody may still be admitted
        if not refused and partial < 0:
            while places > 0 and budget > 0 and waits:
                if again:
                    i = again[0]
                elif at[head] <= seen:
                    i = head
                else:
                    break
                length = prompt[i] + output[i] - left[i]
                blocks = -(-length // size)
                if blocks > free - wanted:
                    waits = False  # until a sequence ends
                    break
                if again:
                    again.popleft()
                else:
                    head += 1
                free -= blocks
                order.append(i)
                places -= 1
                waits = bool(again) or head < count
                chunk = length if length <= budget else budget
                tokens += chunk
                pairs += 0.5 * chunk * chunk
                budget -= chunk
                if chunk < length:
                    partial, read = i, chunk
                    break
                fresh.append(i)
        if tokens:  # a step with prompts in it
            run.prompt_tokens += tokens
            steps += 1
            before = now
            if alone:
                took = seconds(tokens, pairs, 0, 0)
                stall += took
                now += took
            else:
                took = seconds(tokens, pairs, n, cached)
                now += took
                if n:
                    bin_ = int(log(took) * FINE // 1)
                    gaps[bin_] = gaps.get(bin_, 0) + n
                    free -= wanted
                    d += 1
                    cached += n
                    made += n
            running += took * (n + len(fresh) + (partial >= 0))
            if free < lowest:
                lowest = free
            for i in fresh:
                length = prompt[i] + output[i] - left[i]
                if first[i] == 0.0:
                    first[i] = now
                elif i in stopped:
                    bin_ = int(log(now - stopped.pop(i)) * FINE // 1)
                    gaps[bin_] = gaps.get(bin_, 0) + 1
                rest = left[i] - 1
                if rest:
                    n += 1
                    cached += length
                    slot = (length - d) % size
                    need[slot] += 1
                    need[slot + size] += 1
                    key[i] = ended = (d + rest) << 32 | i
                    heappush(heap, ended)
                else:
                    done[i] = now
                    free += -(-length // size)
            made += len(fresh)
        elif n:  # steps of the same batch, until one ends, one may come, or the cache is full
            while key[heap[0] & 0xFFFFFFFF] != heap[0]:
                heappop(heap)
            k = (heap[0] >> 32) - d
            one, grow = base[n] + slope[n] * cached, slope[n] * n
            if refused:
                k = 1
            elif waits and places > 0 and not again:
                wait = at[head] - now
                if wait > 0:
                    b = one - grow / 2
                    soon = int(2 * wait / (b + sqrt(b * b + 2 * grow * wait)))
                    if soon < k:
                        if soon * (one + grow * (soon - 1) / 2) < wait:
                            soon += 1
                        soon += ahead
                        k = soon if soon < k else k
                else:
                    k = 1
                k = k or 1
            if (k // size + 1) * n > free:
                k = _until_full(need, n, size, d, free, k)
            took = k * (one + grow * (k - 1) / 2)
            edge = -d % size
            free -= (k // size) * n + sum(need[edge + size - k % size + 1 : edge + size + 1])
            if free < lowest:
                lowest = free
            if stall:
                bin_ = int(log(one + stall) * FINE // 1)
                gaps[bin_] = gaps.get(bin_, 0) + n
                stall = 0.0
                rest = k - 1
            else:
                rest = k
            if rest:
                bin_ = int(log(took / k) * FINE // 1)
                gaps[bin_] = gaps.get(bin_, 0) + n * rest
            now += took
            before = now - one - grow * (k - 1)
            steps += k
            running += took * n
            d += k
            cached += k * n
            made += k * n
        while heap and heap[0] >> 32 <= d:
            i = heappop(heap)
            number = i & 0xFFFFFFFF
            if key[number] == i:
                leave(number)
                done[number] = now
        if len(order) > 4 * most + 1024:
            order = [i for i in order if key[i] or i == partial]
    run.end, run.busy, run.steps, run.tokens = now, now - start - idle, steps, made
    run.running = running / run.busy if run.busy else 0.0
    run.blocks_peak = pool - lowest
    if cost.delay:
        for i in range(count):
            first[i] += cost.delay
            done[i] += cost.delay
    return run


def _until_full(need: Sequence[int], n: int, size: int, d: int, free: int, k: int) -> int:
    """The most steps, at most `k`, whose new blocks are free. `n` blocks go in every `size` steps."""
    whole = min(k, (free // n) * size)
    rest = free - (whole // size) * n
    while whole < k and need[-(d + whole) % size] <= rest:
        rest -= need[-(d + whole) % size]
        whole += 1
    return whole


def _linear(cost: StepCost, most: int, context: float) -> tuple[list[float], list[float]]:
    """By number of sequences: seconds of a decode step with nothing cached, and what a cached token adds, so that half and one and
    a half times `context` are met exactly."""
    base, slope = [0.0], [0.0]
    for n in range(1, most + 1):
        low, high = cost.seconds(0, 0, n, n * context / 2), cost.seconds(0, 0, n, 1.5 * n * context)
        grow = max(0.0, (high - low) / (n * context))
        slope.append(grow)
        base.append(low - grow * n * context / 2)
    return base, slope


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
