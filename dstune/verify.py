"""Two sets of runs → better, worse, or noise, by the spread of the repeated runs; and what their texts say. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dstune.model.plan import Verdict

Read = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure of a run that is compared. `floor`: a difference below it is no difference, in the figure's unit."""

    name: str
    value: Read
    rising: bool = False
    """More is better."""
    floor: float = 0.0
    noise: float = 0.0
    """What is known of the relative deviation of one run; 0: `SINGLE_RUN_NOISE` / 2."""
    equal_work: bool = False
    """Says something only where answers are as long on both sides."""
    count: bool = False
    """Counts things that must not happen at all: where none did before, one is worse."""


def _at(*path: str) -> Read:
    def value(o: dict[str, Any]) -> Any:
        found: Any = o
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    return value


def _gap(which: str, *place: str) -> Read:
    """Time between two pieces of text. None where they come together, in which case a gap is the transport's and no model's."""
    part, gap, middle = _at(*place) if place else (lambda o: o), _at("itl_ms", which), _at("itl_ms", "p50")

    def value(o: dict[str, Any]) -> Any:
        run = part(o)
        return gap(run) if (middle(run) or 0.0) >= TOGETHER_MS else None

    return value


TOGETHER_MS = 0.2
"""Milliseconds: 5,000 tokens a second for one stream, which no model makes (docs/results.md)."""
TIME_FLOOR_MS = 1.0
"""Milliseconds below which two latencies are the same: what the load client itself adds and varies by (benchmarks/load_client.py)."""
MEMORY_FLOOR_MIB = 16.0
"""Above the 7 MiB that two starts of one program differed by (docs/verify.md)."""

CLAIMS: tuple[Claim, ...] = (
    Claim("serves", _at("serves"), rising=True),
    Claim("answers", _at("answers"), rising=True),
    Claim("first text, alone", _at("alone", "first_text_ms", "p50"), floor=TIME_FLOOR_MS),
    Claim("itl_ms, alone", _gap("p50", "alone"), floor=TIME_FLOOR_MS),
    Claim("e2e_ms, alone", _at("alone", "e2e_ms", "p50"), floor=TIME_FLOOR_MS, equal_work=True),
    Claim("tok_s, alone", _at("alone", "output_tok_s"), rising=True),
    Claim("second's wait", _at("pair", "second_wait_ms"), floor=TIME_FLOOR_MS),
    Claim("first text p50", _at("first_text_ms", "p50"), floor=TIME_FLOOR_MS),
    Claim("first text p95", _at("first_text_ms", "p95"), floor=TIME_FLOOR_MS),
    Claim("output_tok_s", _at("output_tok_s"), rising=True),
    Claim("output_char_s", lambda o: None if o.get("output_tok_s") is not None else o.get("output_char_s"), rising=True),
    Claim("request_s", _at("request_s"), rising=True, equal_work=True),
    Claim("ttft_ms p50", lambda o: None if "alone" in o else _at("ttft_ms", "p50")(o), floor=TIME_FLOOR_MS),
    Claim("ttft_ms p95", lambda o: None if "alone" in o else _at("ttft_ms", "p95")(o), floor=TIME_FLOOR_MS),
    Claim("itl_ms p50", _gap("p50"), floor=TIME_FLOOR_MS),
    Claim("itl_ms p95", _gap("p95"), floor=TIME_FLOOR_MS),
    Claim("e2e_ms p95", _at("e2e_ms", "p95"), floor=TIME_FLOOR_MS, equal_work=True),
    Claim("failed", lambda o: o["failed_all"] if "failed_all" in o else o["requests"]["failed"], count=True),
    Claim("unseen", _at("unseen"), count=True),
    Claim("faulty texts", _at("faults"), count=True),
    Claim("echoed questions", _at("echoes"), count=True),
    Claim("memory RSS MiB", _at("memory", "rss_mib"), floor=MEMORY_FLOOR_MIB, noise=0.01),
    Claim("memory RSS MiB, loading", _at("memory", "start_rss_mib"), floor=MEMORY_FLOOR_MIB, noise=0.01),
    Claim("memory GPU MiB", _at("memory", "gpu_mib"), floor=MEMORY_FLOOR_MIB, noise=0.01),
)
_BY_NAME = {c.name: c for c in CLAIMS}
SINGLE_RUN_NOISE = 0.10
"""Relative spread taken for single runs: eager decode moved by up to ±20 % between runs on an H200 (recipes/measurements), half of it is
the deviation. Repeated runs replace it by their own."""
PRIOR = 4
"""Degrees of freedom that this knowledge weighs."""
SAME = 0.05
"""Relative difference below which two figures count as one however well they repeat within one start of a program: a choice."""
_T = (63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17)
"""Student's t for 99 % on both sides, by degrees of freedom from 1; beyond the table 3.0. With 95 %, one of twenty figures would be called
better or worse by chance, and about so many are compared."""


def compare(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[Verdict]:
    """A verdict per figure that both have. `met`: not worse than the noise allows. `spread` is the half-width of the noise band."""
    out = []
    equal = as_long(before, after)
    for claim in CLAIMS:
        if claim.equal_work and not equal:
            continue
        a, b = ([float(v) for o in runs if (v := claim.value(o)) is not None] for runs in (before, after))
        if not a or not b:
            continue
        mean_a, mean_b = statistics.fmean(a), statistics.fmean(b)
        noise = band(a, b, claim)
        worse = (mean_a - mean_b) if claim.rising else (mean_b - mean_a)
        out.append(Verdict(claim.name, round(mean_a, 3), round(mean_b, 3), round(noise, 3), worse <= noise))
    return out


def as_long(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> bool:
    """Whether answers have the same length on both sides, within `SAME`; True where runs do not tell."""
    a, b = ([float(v) for o in runs if (v := o.get("length")) is not None] for runs in (before, after))
    if not a or not b:
        return True
    low, high = sorted((statistics.fmean(a), statistics.fmean(b)))
    return high - low <= SAME * high


def band(a: Sequence[float], b: Sequence[float], claim: Claim) -> float:
    """Half-width of the noise of the difference of two means; at least `SAME` of the larger and the claim's floor."""
    if claim.count and not any(a):
        return 0.0
    error = math.hypot(*(_error(v, claim.noise or SINGLE_RUN_NOISE / 2) for v in (a, b)))
    if min(len(a), len(b)) < 2:
        wide = 2.0 * error
    else:
        freedom = len(a) + len(b) - 2 + PRIOR
        wide = error * (_T[freedom - 1] if freedom <= len(_T) else 3.0)
    if claim.count:
        return wide
    return max(wide, SAME * max(abs(statistics.fmean(a)), abs(statistics.fmean(b))), claim.floor)


def _error(values: Sequence[float], deviation: float) -> float:
    """Standard error of the mean. Two or three values say little about their spread: what is known of single runs counts as `PRIOR` more
    (a moderated t statistic: Smyth, Linear models and empirical Bayes methods, 2004)."""
    mean = statistics.fmean(values)
    known = deviation * mean
    freedom = len(values) - 1
    variance = (PRIOR * known**2 + sum((v - mean) ** 2 for v in values)) / (PRIOR + freedom)
    return math.sqrt(variance / len(values))


Word = Literal["better", "worse", "noise"]


def word(verdict: Verdict) -> Word:
    """better, worse or noise."""
    claim = _BY_NAME.get(verdict.claim)
    gain = (verdict.after - verdict.before) * (1 if claim is not None and claim.rising else -1)
    if abs(gain) <= verdict.spread:
        return "noise"
    return "better" if gain > 0 else "worse"


@dataclass(frozen=True, slots=True)
class Answers:
    """How the texts of both sides stand to each other, question by question; `compared` is 0 where that says nothing, `why` tells why.

    `cut`: after is the beginning of before, `longer` the other way round; `lost`: an answer there was before and is none now.
    """

    compared: int = 0
    same: int = 0
    cut: int = 0
    longer: int = 0
    lost: int = 0
    why: str = ""
    example: tuple[str, str, str] = ("", "", "")
    """(question, before, after) of the first that differ."""

    @property
    def worse(self) -> bool:
        """Whether text was lost."""
        return bool(self.cut or self.lost)


def answers(questions: Sequence[str], before: Sequence[Sequence[str]], after: Sequence[Sequence[str]], held: bool) -> Answers:
    """`before` and `after` hold the answers of each pass. Texts are compared where each side repeats itself: `held` says that both
    decode greedily, else two passes have to show it."""
    if not before or not after:
        return Answers(why="one side")
    lost = sum(any(p[i] for p in before) and not any(p[i] for p in after) for i in range(len(questions)))
    unsteady = "before" if _differ(before) else "after" if _differ(after) else ""
    if unsteady or (not held and min(len(before), len(after)) < 2):
        return Answers(lost=lost, why=f"sampled {unsteady}".strip() if unsteady else "as is")
    same = cut = longer = compared = 0
    example = ("", "", "")
    for question, a, b in zip(questions, before[0], after[0], strict=True):
        if not a or not b:
            continue
        compared += 1
        same += a == b
        cut += a != b and a.startswith(b)
        longer += a != b and b.startswith(a)
        if a != b and not example[0]:
            example = (question, a, b)
    return Answers(compared, same, cut, longer, lost, example=example)


def _differ(passes: Sequence[Sequence[str]]) -> bool:
    """Whether one side answers one question in two ways."""
    return any(len({p[i] for p in passes if p[i]}) > 1 for i in range(len(passes[0])))
