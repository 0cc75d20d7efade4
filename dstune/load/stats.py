"""Replies → the figures of a trial. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dstune.load.answers import Reply
from dstune.model.plan import Workload

BANDS = (0.5, 0.9, 0.95, 0.99)
SHORTEST_S = 0.25
"""Seconds of load below which the client's share of a core says nothing."""


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between the closest ranks (numpy's default), so that p50 is the median. Values must not be empty."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * share
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """mean, percentiles, min, max of values in seconds, as milliseconds; None where there are none."""
    if not values:
        return None
    ordered = sorted(1e3 * v for v in values)
    out = {"mean": math.fsum(ordered) / len(ordered)}
    out |= {f"p{round(100 * b)}": percentile(ordered, b) for b in BANDS}
    return {k: round(v, 3) for k, v in {**out, "min": ordered[0], "max": ordered[-1]}.items()}


def tpot(reply: Reply) -> float | None:
    """Time per output token after the first, in seconds: (last text − first text) / (output tokens − 1)."""
    if len(reply.stamps) < 2 or not reply.output_tokens or reply.output_tokens < 2:
        return None
    return (reply.stamps[-1] - reply.stamps[0]) / (reply.output_tokens - 1)


def meets(reply: Reply, workload: Workload) -> bool:
    """Whether a reply keeps the workload's objectives."""
    if not reply.ok:
        return False
    itl = tpot(reply)
    slow_start = workload.slo_ttft_ms is not None and (reply.ttft is None or 1e3 * reply.ttft > workload.slo_ttft_ms)
    return not slow_start and not (workload.slo_itl_ms is not None and itl is not None and 1e3 * itl > workload.slo_itl_ms)


def outcome(replies: Sequence[Reply], workload: Workload, client: dict[str, float]) -> dict[str, Any]:
    """The `trial` object of `dstune.report/1`.

    `client` holds cpu_s, start and end (perf_counter), and connections. Rates are over the span from the first request sent to the
    last answer's end; `steady` is the window in which the full concurrency was running.
    """
    good = [r for r in replies if r.ok]
    begin = min((r.sent for r in replies), default=0.0)
    end = max((r.ended for r in replies), default=begin)
    span = max(end - begin, 1e-9)
    tokens = sum(r.output_tokens or 0 for r in good)
    gaps = [b - a for r in good for a, b in itertools.pairwise(r.stamps)]
    steady = _steady(good, workload)
    errors = Counter(r.error for r in replies if r.error)
    words = {r.error: r.detail for r in replies if r.error and r.detail}
    out: dict[str, Any] = {
        "requests": {"ok": len(good), "failed": len(replies) - len(good)},
        "duration_s": round(span, 3),
        "output_tokens": tokens,
        "prompt_tokens": sum(r.prompt_tokens or 0 for r in good) or None,
        "tokens_counted_by": _one(r.counted for r in good),
        "ttft_ms": spread([r.ttft for r in good if r.ttft is not None and len(r.stamps) > 1]),
        "itl_ms": spread(gaps),
        "tpot_ms": spread([t for r in good if (t := tpot(r)) is not None]),
        "e2e_ms": spread([r.ended - r.due for r in good]),
        "queued_by_client_ms": spread([max(0.0, r.sent - r.due) for r in replies]),
        "output_tok_s": round(tokens / span, 2),
        "prompt_tok_s": round(sum(r.prompt_tokens or 0 for r in good) / span, 2) or None,
        "request_s": round(len(good) / span, 3),
        "steady": steady,
        "errors": dict(errors),
        "error_words": words,
        "finish": dict(Counter(r.finish or "none" for r in good)),
        "streamed_share": round(sum(len(r.stamps) > 1 for r in good) / len(good), 3) if good else None,
        "burst_share": round(sum(r.bursts for r in good) / max(1, sum(len(r.stamps) for r in good)), 3),
        "none_chunks": sum(r.none_chunks for r in good),
        "concurrency_peak": _peak(replies),
        "client_cpu_s": round(client["cpu_s"], 4),
        "client_share": round(client["cpu_s"] / span, 4),
        "connections": int(client.get("connections", 0)),
    }
    busy = span > SHORTEST_S and out["client_share"] > 0.8 * client.get("cores", 1.0)
    out["client_bottleneck"] = bool(good) and (busy or _late(replies))
    if workload.slo_ttft_ms is not None or workload.slo_itl_ms is not None:
        kept = [r for r in good if meets(r, workload)]
        out["goodput"] = {
            "request_s": round(len(kept) / span, 3),
            "share": round(len(kept) / len(replies), 4) if replies else 0.0,
            "slo_ttft_ms": workload.slo_ttft_ms,
            "slo_itl_ms": workload.slo_itl_ms,
        }
    return out


def _late(replies: Sequence[Reply]) -> bool:
    """Whether the client came to a tenth of its requests more than 50 ms after they were due."""
    late = sum(r.lag > 0.05 for r in replies)
    return bool(replies) and late > len(replies) / 10


def _one(values: Any) -> str:
    found = sorted({v for v in values if v})
    return "+".join(found)


def _edges(replies: Sequence[Reply]) -> list[tuple[float, int]]:
    return sorted([(r.sent, 1) for r in replies] + [(r.ended, -1) for r in replies])


def _peak(replies: Sequence[Reply]) -> int:
    running = peak = 0
    for _, step in _edges(replies):
        running += step
        peak = max(peak, running)
    return peak


def _steady(good: Sequence[Reply], workload: Workload) -> dict[str, float] | None:
    """Tokens per second while at least 90 % of the peak concurrency ran: without ramp and tail. Tokens are spread over a reply's stamps."""
    if not good or workload.rate is not None:
        return None
    need = max(1, math.ceil(0.9 * _peak(good)))
    running, begin, end = 0, None, None
    for at, step in _edges(good):
        running += step
        if running >= need and begin is None:
            begin = at
        if step == -1 and running == need - 1:
            end = at
    if begin is None or end is None or end - begin < 0.2:
        return None
    inside = 0.0
    for r in good:
        if r.stamps and r.output_tokens:
            inside += r.output_tokens * sum(begin <= s <= end for s in r.stamps) / len(r.stamps)
    return {"seconds": round(end - begin, 3), "output_tok_s": round(inside / (end - begin), 2)}
