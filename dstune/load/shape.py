"""The shape of a run over time: histograms, a timeline, and how many answers a server really serves at once. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from dstune.load.answers import Reply
from dstune.load.stats import percentile

BINS = 20
SLICES = 60
"""Most slices of a timeline: what a terminal shows in a line."""


PAIRS = 1000
"""Most lengths of requests that a report keeps (`lengths`): enough to draw a load from (`dstune recommend --workload`)."""

HELD = 0.02
"""Share of the busy time that a number of streams must be held for to count as the peak: ends and beginnings overlap by a chunk."""


def shape(replies: Sequence[Reply]) -> dict[str, Any]:
    """All of this module, as parts of a trial."""
    good = [r for r in replies if r.ok]
    out = {"histogram": histograms(good), "timeline": timeline(replies), "at_once": at_once(good), "stairs": stairs(good)}
    out["lengths"] = lengths(good)
    return out | ({"server": said} if (said := timings(good)) else {})


def lengths(good: Sequence[Reply]) -> dict[str, list[int]] | None:
    """Prompt and output tokens of the answered requests, evenly thinned to `PAIRS`; None where the server did not count both."""
    pairs = [(r.prompt_tokens, r.output_tokens) for r in good if r.prompt_tokens and r.output_tokens]
    if not pairs:
        return None
    step = max(1.0, len(pairs) / PAIRS)
    kept = [pairs[int(i * step)] for i in range(min(PAIRS, len(pairs)))]
    return {"prompt": [p for p, _ in kept], "output": [o for _, o in kept]}


def timings(good: Sequence[Reply]) -> dict[str, float]:
    """What the server itself says in its answers, as means: llama.cpp's `timings`, the queue of Gradio."""
    told = [r.timings for r in good if r.timings]
    out: dict[str, float] = {}
    for key, name in (("prompt_ms", "prefill_ms"), ("predicted_ms", "decode_ms"), ("queue_ms", "queue_ms")):
        values = [float(t[key]) for t in told if isinstance(t.get(key), int | float)]
        if values:
            out[name] = round(sum(values) / len(values), 3)
    tokens = [int(t["predicted_n"]) for t in told if isinstance(t.get("predicted_n"), int)]
    return out | ({"generation_tokens": sum(tokens)} if tokens else {})


def histogram(values: Sequence[float], bins: int = BINS) -> list[list[float]]:
    """[lower edge, count] of equal bins from 0 to the 99th percentile, in the unit of the values; the last bin takes what is above."""
    if not values:
        return []
    top = percentile(values, 0.99) or max(values) or 1.0
    counts = [0] * (bins + 1)
    scale = bins / top
    for v in values:
        at = int(v * scale)
        counts[at if at < bins else bins] += 1
    counts[bins - 1] += counts.pop()
    return [[round(i * top / bins, 3), c] for i, c in enumerate(counts)]


def histograms(good: Sequence[Reply]) -> dict[str, list[list[float]]]:
    """First tokens and gaps of answered requests, in ms."""
    first = [1e3 * r.ttft for r in good if r.ttft is not None and len(r.stamps) > 1]
    gaps = [1e3 * (b - a) for r in good for a, b in itertools.pairwise(r.stamps)]
    return {"ttft_ms": histogram(first), "itl_ms": histogram(gaps)}


def timeline(replies: Sequence[Reply]) -> dict[str, Any] | None:
    """Tokens per second, requests in flight, answers streaming and the worst first token, slice by slice from the first request sent.

    Tokens of an answer are spread over its chunks. None where nothing was answered.
    """
    if not replies:
        return None
    begin, end = min(r.sent for r in replies), max(r.ended for r in replies)
    step = next((s for s in (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60) if (end - begin) / s <= SLICES), 120)
    slices = max(1, int((end - begin) / step) + 1)
    tokens, worst = [0.0] * slices, [0.0] * slices
    for r in replies:
        share = (r.output_tokens or 0) / len(r.stamps) if r.stamps and r.ok else 0.0
        if share:
            for s in r.stamps:
                tokens[int((s - begin) / step)] += share
        if r.ttft is not None and r.stamps:
            at = int((r.stamps[0] - begin) / step)
            worst[at] = max(worst[at], 1e3 * r.ttft)
    return {
        "step_s": step,
        "tok_s": [round(t / step, 1) for t in tokens],
        "in_flight": _sampled(((r.sent, r.ended) for r in replies), begin, step, slices),
        "streaming": _sampled(((r.stamps[0], r.stamps[-1]) for r in replies if r.stamps), begin, step, slices),
        "ttft_max_ms": [round(w, 1) for w in worst],
    }


def _sampled(spans: Iterable[tuple[float, float]], begin: float, step: float, slices: int) -> list[int]:
    """How many spans cover the middle of each slice."""
    edges = sorted(e for a, b in spans for e in ((a, 1), (b, -1)))
    out, at, running = [], 0, 0
    for i in range(slices):
        middle = begin + (i + 0.5) * step
        while at < len(edges) and edges[at][0] <= middle:
            running += edges[at][1]
            at += 1
        out.append(running)
    return out


def at_once(replies: Sequence[Reply]) -> dict[str, float] | None:
    """How many requests were in flight and how many answers were streaming at once, as means over the time in which both could be.

    A server that batches streams what is in flight; one that serves a request after the other streams one. The time counted is that
    with at least half of the peak in flight. None where streams are too short to tell (under three chunks).
    """
    told = [r for r in replies if r.ok and len(r.stamps) > 2]
    if len(told) < 2:
        return None
    changes = sorted(
        [(r.sent, 1, 0) for r in told] + [(r.ended, -1, 0) for r in told]
        + [(r.stamps[0], 0, 1) for r in told] + [(r.stamps[-1], 0, -1) for r in told]
    )  # fmt: skip
    flying = streaming = 0
    spans: list[tuple[float, int, int]] = []
    for (at, f, s), after in itertools.pairwise([*changes, (changes[-1][0], 0, 0)]):
        flying += f
        streaming += s
        if after[0] > at:
            spans.append((after[0] - at, flying, streaming))
    peak = max((f for _, f, _ in spans), default=0)
    busy = [s for s in spans if s[1] >= max(1, peak / 2)]
    total = sum(s[0] for s in busy)
    if not total:
        return None
    return {
        "in_flight": round(sum(d * f for d, f, _ in busy) / total, 2),
        "streaming": round(sum(d * s for d, _, s in busy) / total, 2),
        "streaming_peak": max(n for n in {s for _, _, s in busy} if sum(d for d, _, s in busy if s >= n) >= HELD * total),
    }


def stairs(replies: Sequence[Reply]) -> float | None:
    """How well first tokens of requests that were sent together form stairs of one service time: 0 (no) to 1 (a serial queue).

    The correlation of a request's place among those answered with its wait, over the first wave (requests sent before any was
    answered). None for waves under three.
    """
    told = sorted((r for r in replies if r.ok and r.ttft is not None and r.stamps), key=lambda r: r.stamps[0])
    if not told:
        return None
    first = told[0].ended
    wave = [r for r in told if r.sent <= first]
    if len(wave) < 3:
        return None
    waits = [r.stamps[0] - r.sent for r in wave]
    rise = waits[-1] - waits[0]
    service = (told[0].ended - told[0].sent) or 1e-9
    mean = sum(waits) / len(waits)
    middle = (len(waits) - 1) / 2
    above = sum((i - middle) * (w - mean) for i, w in enumerate(waits))
    spread = (sum((i - middle) ** 2 for i in range(len(waits))) * sum((w - mean) ** 2 for w in waits)) ** 0.5
    return round(max(0.0, above / spread), 3) if spread and rise > 0.5 * service else 0.0
