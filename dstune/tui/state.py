"""What the screens share: the newest evidence by name, its diagnosis, and minutes of history. Filled by one message, read by panels."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

from dstune.lang import say
from dstune.model import Diagnosis, Evidence, Fact, Finding, Gap, Value, family_of

if TYPE_CHECKING:
    from dstune.plan.decompose import Holder

KEEP = 600
"""Samples of history: ten minutes at once a second, 8 bytes a value and series."""
WINDOWS = (60, 120, 300, 600)
SERIES = {
    "gpu": ("utilization_pct", "memory_used_pct", "power_draw_w", "temperature_c", "memory_utilization_pct"),
    "server": ("running", "waiting", "kv_usage_pct", "generation_tok_s"),
    "host": ("cpu_pct",),
}


@dataclass(slots=True)
class State:
    """Filled by `take`; read by panels. `revision` counts what was taken, so that a panel knows when it is stale."""

    evidence: Evidence = field(default_factory=Evidence)
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    kept: tuple[Finding, ...] = ()
    """What was found while the last load ran, and is not found now."""
    history: dict[tuple[str, str], deque[float | None]] = field(default_factory=dict)
    ended: bool = False
    samples: int = 0
    diagnosed: bool = False
    holders: dict[tuple[int, object], Holder] = field(default_factory=dict)
    """What each process on a card is made of, by card and pid (`split.holders`), as of the last diagnosis."""
    _facts: dict[str, dict[str, Value]] = field(default_factory=dict)
    _on_card: dict[int, list[str]] = field(default_factory=dict)
    _tokens: dict[str, tuple[float, float]] = field(default_factory=dict)
    _times: deque[float] = field(default_factory=lambda: deque(maxlen=60))

    def take(self, evidence: Evidence, diagnosis: Diagnosis | None) -> None:
        """A new sample; `diagnosis` None keeps the last one."""
        facts: dict[str, dict[str, Value]] = {}
        for f in evidence.facts:
            facts.setdefault(f.subject, {}).setdefault(f.name, f.value)
        self.evidence, self._facts = evidence, facts
        self._derive()
        if diagnosis is not None:
            self.diagnosis, self.diagnosed = diagnosis, True
        self.samples += 1
        started = evidence.origin.get("started")
        if isinstance(started, int | float):
            self._times.append(float(started))
        for subject in facts:
            for name in SERIES.get(family_of(subject), ()):
                key = (subject, name)
                if key not in self.history:
                    self.history[key] = deque([None] * min(KEEP, self.samples - 1), maxlen=KEEP)
                self.history[key].append(self.number(subject, name))
        for key, values in self.history.items():
            if key[0] not in facts:
                values.append(None)  # a card that is gone, a server that is down: a hole, not a line that stands still

    def rewind(self, count: int) -> None:
        """Forgets the last `count` samples of history: a recording was moved back."""
        for values in self.history.values():
            for _ in range(min(count, len(values))):
                values.pop()
        self.samples = max(0, self.samples - count)
        self._tokens.clear()

    def _derive(self) -> None:
        """Share of memory per card; token rate out of the counter of two samples where the server tells none; processes by card."""
        for subject, own in self._facts.items():
            family = family_of(subject)
            if family == "gpu":
                used, total = own.get("memory_used_mib"), own.get("memory_total_mib")
                if "memory_used_pct" not in own and isinstance(used, int | float) and isinstance(total, int | float) and total:
                    own["memory_used_pct"] = round(100 * used / total, 1)
            elif family == "server":
                self._rate(subject, own)
        self._on_card = {}
        for subject, own in self._facts.items():
            if family_of(subject) == "process" and isinstance(own.get("gpu"), int):
                self._on_card.setdefault(int(own["gpu"]), []).append(subject)  # type: ignore[arg-type]

    def _rate(self, subject: str, own: dict[str, Value]) -> None:
        tokens, at = own.get("generation_tokens"), self.evidence.origin.get("started")
        if "window_s" in own or not isinstance(tokens, int | float) or not isinstance(at, int | float):
            return
        before = self._tokens.get(subject)
        self._tokens[subject] = (float(at), float(tokens))
        if before and at > before[0] and tokens >= before[1] and "generation_tok_s" not in own:
            own["generation_tok_s"] = round((tokens - before[1]) / (at - before[0]), 1)

    def subjects(self, family: str) -> list[str]:
        """Subjects of a family, in the order of their numbers."""
        found = [s for s in self._facts if family_of(s) == family]
        return sorted(found, key=lambda s: int(s[len(family) :] or 0))

    def processes(self, card: int | None = None) -> list[str]:
        """Processes on one card or on all, the largest first."""
        cards = self._on_card.values() if card is None else [self._on_card.get(card, [])]
        return sorted((p for c in cards for p in c), key=lambda p: -(self.number(p, "memory_mib") or 0))

    def value(self, subject: str, name: str) -> Value:
        """A fact's value of the newest sample, None where it is not there."""
        return self._facts.get(subject, {}).get(name)

    def number(self, subject: str, name: str) -> float | None:
        """The value as a number."""
        value = self._facts.get(subject, {}).get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def first(self, family: str, name: str) -> Value:
        """The value of the first subject of a family that has it."""
        return next((v for s in self.subjects(family) if (v := self.value(s, name)) is not None), None)

    def urls(self) -> list[str]:
        """Addresses of the servers, as the load takes them."""
        found = []
        for server in self.subjects("server"):
            if url := self.value(server, "url"):
                found.append(str(url))
            elif port := self.value(server, "port"):
                found.append(f"http://127.0.0.1:{port}")
        return list(dict.fromkeys(found))

    def gap(self, subject: str) -> Gap | None:
        """Why a subject could not be read."""
        return next((g for g in self.evidence.gaps if g.subject == subject), None)

    def series(self, subject: str, name: str) -> list[float | None]:
        """History, oldest first."""
        return list(self.history.get((subject, name), ()))

    def window(self) -> int:
        """Samples that a curve spans: the smallest of `WINDOWS` that holds what was seen."""
        return next((w for w in WINDOWS if w >= self.samples), KEEP)

    def span(self) -> str:
        """The window in words: `5 min`."""
        gaps = sorted(b - a for a, b in itertools.pairwise(self._times))
        step = gaps[len(gaps) // 2] if gaps else 1.0
        seconds = self.window() * step
        if seconds >= 90:
            return say(f"{seconds / 60:.0f} min", f"{seconds / 60:.0f} 分钟")
        return say(f"{seconds:.0f} s", f"{seconds:.0f} 秒")

    def curve(self, subject: str, name: str, width: int) -> list[float | None]:
        """The window in at most `width` columns, each the mean of its samples. Columns begin at fixed samples, so that they do not shimmer."""
        values = self.series(subject, name)[-self.window() :]
        per = max(1, ceil(self.window() / max(1, width)))
        if per == 1:
            return list(values[-width:])
        first = (self.samples - len(values)) % per
        columns: list[float | None] = []
        at = 0
        while at < len(values):
            size = per - (first if at == 0 else 0)
            known = [v for v in values[at : at + size] if v is not None]
            columns.append(sum(known) / len(known) if known else None)
            at += size
        return columns[-width:]

    def plus(self, facts: list[Fact]) -> None:
        """Facts that were learnt beside the feed (a load that ended), kept in the evidence of this sample."""
        self.evidence = self.evidence.plus(facts)
