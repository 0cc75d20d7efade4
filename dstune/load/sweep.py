"""The load at which a server stops getting faster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from dstune.load.run import CONNECTIONS
from dstune.model.plan import Workload

LEAST = 4
"""Clients from which throughput that does not grow ends a sweep."""


def sweep(workload: Workload, step: Callable[[Workload], dict[str, Any]], limit: int = CONNECTIONS) -> Iterable[dict[str, Any]]:
    """Doubles the concurrency until throughput stops growing (< 8 %), errors appear, or the objective breaks; then says why.

    Up to `LEAST` clients it goes on all the same: with two alone nobody can tell a serial server from one at its limit.

    `step` runs one trial and gives its outcome; each outcome gets `concurrency`, the last one `stopped` (the reason) and `knee`
    (the concurrency worth running: the last that raised throughput by 8 %; 0 where none held).
    """
    best, knee = 0.0, 0
    figures: dict[str, Any] = {}
    for power in itertools.count():
        concurrency = 2**power
        try:
            figures = step(replace(workload, concurrency=concurrency, rate=None))
        except KeyboardInterrupt:  # while the step warmed up: the steps so far are the report
            if not power:
                raise
            figures["stopped"], figures["knee"] = "interrupted", knee
            return
        figures["concurrency"] = concurrency
        failed, ok = figures["requests"]["failed"], figures["requests"]["ok"]
        rate = figures["output_tok_s"]
        kept = figures.get("goodput", {}).get("share", 1.0)
        grew = not power or rate >= 1.08 * best
        reason = ""
        if failed > 0.02 * max(1, ok + failed):
            reason = "errors"
        elif kept < 0.9:
            reason = "objective"
        elif concurrency >= LEAST and not grew:
            reason = "throughput"
        elif concurrency * 2 > limit:
            reason = "limit"
        elif figures.get("interrupted"):
            reason = "interrupted"
        if reason in ("", "limit", "interrupted") and grew:
            knee = concurrency
        best = max(best, rate)
        if reason:
            figures["stopped"], figures["knee"] = reason, knee
        yield figures
        if reason:
            return
