"""What the screens share: the newest evidence, its diagnosis, and minutes of history. One object, replaced never, filled by one message."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dstune.model import Diagnosis, Evidence, Fact

KEEP = 600
"""Samples of history: ten minutes at once a second, 80 bytes a value."""
SERIES = ("utilization_pct", "memory_used_pct", "power_draw_w", "temperature_c", "clock_sm_mhz")
SERVER_SERIES = ("running", "waiting", "kv_usage_pct", "generation_tok_s", "ttft_p50_ms", "itl_p50_ms")


@dataclass(slots=True)
class State:
    """Filled by `take`; read by panels."""

    evidence: Evidence = field(default_factory=Evidence)
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    history: dict[tuple[str, str], deque[float | None]] = field(default_factory=dict)
    ended: bool = False
    samples: int = 0
    _tokens: tuple[float, float] | None = None

    def take(self, evidence: Evidence, diagnosis: Diagnosis | None) -> None:
        """A new sample; `diagnosis` None keeps the last one."""
        self.evidence = self._with_rates(evidence)
        if diagnosis is not None:
            self.diagnosis = diagnosis
        self.samples += 1
        for subject in self.evidence.subjects("gpu"):
            for name in SERIES:
                self._push(subject, name, self.number(subject, name))
        for name in SERVER_SERIES:
            self._push("server", name, self.number("server", name))
        for name in ("cpu_pct",):
            self._push("host", name, self.number("host", name))

    def _push(self, subject: str, name: str, value: float | None) -> None:
        self.history.setdefault((subject, name), deque(maxlen=KEEP)).append(value)

    def _with_rates(self, evidence: Evidence) -> Evidence:
        """Token rate out of the counter of two samples, where the endpoint was read only once per sample; memory share per card."""
        extra = []
        for subject in evidence.subjects("gpu"):
            own = {f.name: f.value for f in evidence.facts if f.subject == subject}
            used, total = own.get("memory_used_mib"), own.get("memory_total_mib")
            if "memory_used_pct" not in own and isinstance(used, int | float) and isinstance(total, int | float) and total:
                extra.append(Fact(subject, "memory_used_pct", round(100 * used / total, 1), "derived: used / total"))
        tokens, at = evidence.first("server", "generation_tokens"), evidence.origin.get("started")
        if isinstance(tokens, int | float) and isinstance(at, int | float):
            before, self._tokens = self._tokens, (float(at), float(tokens))
            known = evidence.first("server", "generation_tok_s")
            if before and at > before[0] and tokens >= before[1] and known is None:
                extra.append(
                    Fact("server", "generation_tok_s", round((tokens - before[1]) / (at - before[0]), 1), "derived: counter")
                )
        return evidence.plus(extra) if extra else evidence

    def value(self, subject: str, name: str) -> object:
        """A fact's value of the newest sample, None where it is not there."""
        return next((f.value for f in self.evidence.facts if f.subject == subject and f.name == name), None)

    def number(self, subject: str, name: str) -> float | None:
        """The value as a number."""
        value = self.value(subject, name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def series(self, subject: str, name: str) -> list[float | None]:
        """History, oldest first."""
        return list(self.history.get((subject, name), ()))
