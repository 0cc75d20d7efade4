"""Step times for the simulation: out of the predicted physics of a configuration, or fitted to what was measured on a server."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from dstune.plan import physics
from dstune.plan.ask import Ask
from dstune.plan.memory import memory, tensor_parallel, vllm_limits
from dstune.plan.simulate import Limits, StepCost
from dstune.plan.speed import SHARP, decode_step, rate

LLAMA_BATCH = 2048
"""Tokens a step of llama.cpp's server (n_batch); it fills a step as vLLM does: running slots first, then prompts."""

SGLANG_CHUNK, SGLANG_RUNNING = 8192, 4096
"""SGLang's chunked_prefill_size on cards up to 80 GB, and the most it runs when its memory does not say less (server_args.py)."""


def step_cost(ask: Ask) -> StepCost:
    """The step of `speed.decode_step` and `speed.prefill_seconds`, taken apart into what sequences, prompts and cached tokens add."""
    m, tp = ask.model, tensor_parallel(ask)
    most = limits(ask).seqs
    context = float(max(1, ask.prompt + ask.output / 2))
    empty = [decode_step(ask, n, 0.0) for n in range(1, most + 1)]
    one, full = empty[0], decode_step(ask, 1, context)
    pair = (full.compute - one.compute) / context
    mix = physics.value("vllm", "mix") if ask.engine in ("vllm", "sglang") else 1.0
    return StepCost(
        read=(one.memory, *(s.memory for s in empty)),
        overhead=(one.overhead, *(s.overhead for s in empty)),
        token=one.compute,
        prompt=2 * (m.read - m.output) / tp / rate(ask),
        pair=pair,
        kv=(full.memory - one.memory) / context,
        mix=float(mix),
        sharp=SHARP,
        host=one.host,
    )


def limits(ask: Ask) -> Limits:
    """What the engine's scheduler may do in this configuration. transformers' `generate` serves one request after the other."""
    if ask.engine == "vllm":
        lim, mem = vllm_limits(ask), memory(ask)
        size = int(physics.value("vllm", "block"))
        return Limits(lim["seqs"], lim["batched_tokens"], int((mem.kv_tokens or 0) // size), size, ahead=_ahead(ask))
    if ask.engine == "sglang":
        tokens = int(memory(ask).kv_tokens or 0)
        seqs = ask.max_seqs or min(SGLANG_RUNNING, max(1, tokens // max(1, ask.prompt + ask.output)))
        return Limits(min(seqs, 1024), ask.batched_tokens or SGLANG_CHUNK, tokens, 1, ahead=True, alone=True)
    if ask.engine == "llama.cpp":
        return Limits(max(1, ask.parallel or ask.batch), LLAMA_BATCH)
    return Limits(1, 1 << 20)


def _ahead(ask: Ask) -> bool:
    """Asynchronous scheduling is vLLM's default since 0.14.0 (vllm-project/vllm PR 27614)."""
    return ask.v1 and ask.at_least("0.14")


@dataclass(frozen=True, slots=True)
class Measured:
    """What short runs on a server give. Seconds and tokens.

    `steps`: by sequences at once, times of decode steps. `context`: (cached tokens of one sequence, time of its decode step). `prompts`: (prompt
    tokens, time to the first token of a request that is alone).
    """

    steps: Mapping[int, Sequence[float]]
    context: Sequence[tuple[int, float]]
    prompts: Sequence[tuple[int, float]]
    tokens: float = 0.0


def fitted(seen: Measured) -> StepCost:
    """Coefficients of a server from `Measured`: medians of the decode steps by batch size with straight lines between them, the slope over the
    context, and the first tokens as delay + step + tokens + pairs.

    `tokens` is the context at which `steps` were taken. Raises `ValueError` with fewer than two batch sizes or three prompt lengths.
    """
    rows = sorted((n, median(v)) for n, v in seen.steps.items() if v)
    if len(rows) < 2 or len({p for p, _ in seen.prompts}) < 3:
        raise ValueError("two batch sizes and three prompt lengths are needed")
    cached = max(0.0, _slope(seen.context)) if len({c for c, _ in seen.context}) > 1 else 0.0
    base = [(n, max(1e-6, t - cached * n * seen.tokens)) for n, t in rows]
    whole = [base[0][1]]
    for n in range(1, base[-1][0] + 1):
        (a, low), (b, high) = next(((x, y) for x, y in itertools.pairwise(base) if n <= y[0]), (base[-2], base[-1]))
        whole.append(low + (high - low) * (n - a) / (b - a))
    offset, prompt, pair = _first(seen.prompts)
    return StepCost(
        read=(0.0,),
        overhead=tuple(whole),
        prompt=prompt,
        pair=pair,
        kv=max(0.0, cached - pair),
        delay=max(0.0, offset - whole[1]),
    )


def _slope(points: Sequence[tuple[int, float]]) -> float:
    """Of the straight line through the points, by least squares."""
    x, y = sum(p[0] for p in points) / len(points), sum(p[1] for p in points) / len(points)
    across = sum((p[0] - x) ** 2 for p in points)
    return sum((p[0] - x) * (p[1] - y) for p in points) / across


def _first(points: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """(offset, a token, a pair) of first tokens: offset + token x P + pair x P^2 / 2, least squares over the median of each length, weighted by
    1 / time, so that short prompts count as long ones."""
    by: dict[int, list[float]] = {}
    for p, t in points:
        by.setdefault(p, []).append(t)
    rows = [(1.0, float(p), p * p / 2, median(t)) for p, t in sorted(by.items())]
    found = _solve(rows, (0, 1, 2))
    if found[2] < 0:
        found = _solve(rows, (0, 1))
    return max(0.0, found[0]), max(0.0, found[1]), found[2]


def _solve(rows: Sequence[tuple[float, float, float, float]], use: Sequence[int]) -> list[float]:
    """Weighted least squares of the last column on the columns in `use` (Gauss on the normal equations); the others are 0."""
    size = len(use)
    matrix = [[sum(r[i] * r[j] / r[3] ** 2 for r in rows) for j in use] + [sum(r[i] / r[3] for r in rows)] for i in use]
    for i in range(size):
        top = max(range(i, size), key=lambda r: abs(matrix[r][i]))
        matrix[i], matrix[top] = matrix[top], matrix[i]
        for r in range(size):
            if r != i:
                f = matrix[r][i] / matrix[i][i]
                matrix[r] = [a - f * b for a, b in zip(matrix[r], matrix[i], strict=True)]
    out = [0.0, 0.0, 0.0]
    for place, i in enumerate(use):
        out[i] = matrix[place][size] / matrix[place][place]
    return out


def needed(seqs: int) -> list[int]:
    """Batch sizes to measure for a server that runs `seqs` at once: 1, 2, 4 … and the last."""
    return sorted({min(seqs, 1 << k) for k in range(ceil(seqs).bit_length() + 1)})
