"""Two sets of runs → better, worse, or noise, by the spread of the repeated runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from dstune.model import Verdict

_CLAIMS: tuple[tuple[str, Callable[[dict[str, Any]], Any], bool], ...] = (
    ("output_tok_s", lambda o: o.get("output_tok_s"), True),
    ("request_s", lambda o: o.get("request_s"), True),
    ("ttft_ms p50", lambda o: (o.get("ttft_ms") or {}).get("p50"), False),
    ("ttft_ms p95", lambda o: (o.get("ttft_ms") or {}).get("p95"), False),
    ("itl_ms p50", lambda o: (o.get("itl_ms") or {}).get("p50"), False),
    ("itl_ms p95", lambda o: (o.get("itl_ms") or {}).get("p95"), False),
    ("e2e_ms p95", lambda o: (o.get("e2e_ms") or {}).get("p95"), False),
    ("failed", lambda o: o["requests"]["failed"], False),
)
SINGLE_RUN_NOISE = 0.10
"""Relative spread taken for single runs: eager decode moved by up to ±20 % between runs on an H200 (recipes/measurements), half of it is
the deviation. Repeated runs replace it by their own."""


def compare(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[Verdict]:
    """A verdict per figure that both have. `met`: not worse than the noise allows. `spread` is the half-width of the noise band."""
    out = []
    for claim, value, more_is_better in _CLAIMS:
        a, b = ([float(v) for o in runs if (v := value(o)) is not None] for runs in (before, after))
        if not a or not b:
            continue
        mean_a, mean_b = statistics.fmean(a), statistics.fmean(b)
        noise = 2 * math.hypot(_error(a), _error(b))
        worse = (mean_a - mean_b) if more_is_better else (mean_b - mean_a)
        out.append(Verdict(claim, round(mean_a, 3), round(mean_b, 3), round(noise, 3), worse <= noise))
    return out


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean."""
    if len(values) < 2:
        return SINGLE_RUN_NOISE / 2 * abs(values[0])
    return statistics.stdev(values) / math.sqrt(len(values))


def word(verdict: Verdict) -> str:
    """better, worse or noise."""
    rising = verdict.claim in ("output_tok_s", "request_s")
    gain = (verdict.after - verdict.before) * (1 if rising else -1)
    if abs(gain) <= verdict.spread:
        return "noise"
    return "better" if gain > 0 else "worse"
