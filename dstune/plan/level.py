"""Configurations brought to one number of sequences at once, so that their numbers can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from dstune.model.plan import Workload
from dstune.plan.ask import Ask
from dstune.plan.fit import fits
from dstune.plan.speed import Speed, speed

if TYPE_CHECKING:
    from dstune.plan.search import Candidate, Wish

SLOTS = (2, 4, 8, 16, 32)
"""Numbers of llama.cpp slots that are tried."""

STATIC = 8
"""Sequences up to which transformers' compiled static cache is planned."""


def levelled(best: Candidate, found: list[Candidate], wish: Wish) -> list[Candidate]:
    """The candidates at `best`'s number of sequences, `best` itself unchanged; those that cannot hold so many, at as many as they can
    (halved until it fits, llama.cpp at most `SLOTS`). Where arrivals are planned (`rate`) transformers stays at one: its loop serves one
    request after the other."""
    return [best if c is best else _at(c, best.ask.batch, wish) for c in found]


def _at(c: Candidate, batch: int, wish: Wish) -> Candidate:
    for count in _counts(c.ask, batch, wish):
        if count == c.ask.batch:
            return c
        ask = _shaped(c.ask, count)
        ok, mem = fits(ask)
        if ok and (not wish.limit_mib or mem.total_mib <= wish.limit_mib + 1):
            pace = speed(ask)
            if within(pace, wish.workload) or not c.meets:
                return replace(c, ask=ask, memory=mem, speed=pace)
    return c


def within(pace: Speed, work: Workload) -> bool:
    """Whether the limits that were set hold."""
    ttft = work.slo_ttft_ms is None or pace.ttft_ms <= work.slo_ttft_ms
    return ttft and (work.slo_itl_ms is None or pace.step.total * 1e3 <= work.slo_itl_ms)


def _counts(ask: Ask, batch: int, wish: Wish) -> Iterator[int]:
    if ask.engine == "transformers" and wish.workload.rate is not None:
        batch = 1
    if ask.engine == "llama.cpp":
        batch = min(batch, SLOTS[-1])
    if ask.max_seqs:
        batch = min(batch, ask.max_seqs)
    while batch >= 1:
        yield batch
        batch //= 2


def _shaped(ask: Ask, batch: int) -> Ask:
    if ask.engine == "llama.cpp":
        return replace(ask, batch=batch, parallel=batch)
    if ask.engine == "transformers":
        return replace(ask, batch=batch, cache="dynamic" if batch > STATIC else ask.cache)
    return replace(ask, batch=batch)
