"""The types of a plan, of the files that carry it out, and of the loads that measure it. Apart from the others since most diagnoses need none of
them, and making the eleven costs 7 ms of CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from dstune.model import Text, Value


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted number and its band of about 90 %, in the unit of the metric's name."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One part of the memory in MiB, the formula it comes from, and where its coefficient comes from."""

    part: str
    mib: float
    formula: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """A chosen value of a declared setting (`vllm.max_model_len`), with the reason and the source of the reason."""

    key: str
    value: Value
    why: Text = field(default_factory=dict)
    source: str = ""
    was: Value = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """An option that was not taken, and why, with a number where there is one."""

    option: str
    why: Text


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked of a server. Lengths in tokens; `rate` in requests/s, or None for a fixed concurrency."""

    prompt_tokens: int = 512
    output_tokens: int = 512
    concurrency: int = 1
    rate: float | None = None
    goal: Literal["latency", "throughput", "memory"] = "latency"
    slo_ttft_ms: float | None = None
    slo_itl_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a rate of requests asks of copies of a plan, by simulation.

    `holds`: requests/s of one replica at which `share` of the requests is within the limits; `replicas` for `rate`, with the numbers for both ends
    of the band of `holds` (0: no number is enough). `loads` are figures of one replica at rising rates, `at_rate` those at its part of `rate`.
    `alone` is the share within the limits of requests that come one by one, `assumed` names the limits (ttft, itl) that were not given, `reach`
    says why no rate holds and what would.
    """

    rate: float
    holds: Prediction
    replicas: int
    replicas_band: tuple[int, int]
    slo_ttft_ms: float
    slo_itl_ms: float
    share: float
    lengths: str
    prompt_tokens: float
    output_tokens: float
    requests: int
    seed: int
    at_once: int
    loads: tuple[dict[str, float], ...] = ()
    at_rate: dict[str, float] = field(default_factory=dict)
    alone: float = 1.0
    assumed: tuple[str, ...] = ()
    reach: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    """A configuration that no other beats in every respect, with its settings and numbers; `why` compares it with the chosen one."""

    name: str
    engine: str
    engine_version: str
    gpus: int
    settings: tuple[Setting, ...]
    numbers: dict[str, Prediction]
    quality_loss_pct: float | None
    chosen: bool = False
    why: Text = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A configuration with its memory, its predicted speed, and what was rejected."""

    engine: str
    engine_version: str
    model: str
    gpu: str
    gpus: int
    settings: tuple[Setting, ...]
    memory: tuple[MemoryLine, ...]
    predictions: dict[str, Prediction]
    rejected: tuple[Rejected, ...] = ()
    notes: tuple[Text, ...] = ()
    launch: str = ""
    workload: Workload = field(default_factory=Workload)
    capacity: Capacity | None = None
    pareto: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file as it should be: its whole new text, and the unified diff against what is on disk ("" for a new file)."""

    path: str
    text: str
    diff: str = ""
    why: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """One load run, as `report` prints it (`dstune.report/1`, key `trial`)."""

    workload: Workload
    settings: dict[str, Value]
    outcome: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim checked before and after; `spread` is the noise below which a difference means nothing. `load`: of which load, where
    there are several (a sweep), in words.
    """

    claim: str
    before: float
    after: float
    spread: float
    met: bool
    load: str = ""
