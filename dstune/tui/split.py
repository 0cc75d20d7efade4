"""A card's memory by what holds it: weights, KV cache and the rest of model servers, other processes, what no process accounts for.

The parts of a server come from `plan.decompose`, made anew with each diagnosis; every sample lays them over NVML's number of that moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dstune.lang import say
from dstune.tui.state import State

if TYPE_CHECKING:
    from dstune.model import Evidence
    from dstune.plan.decompose import Holder

LEAST_MIB = 64.0
"""Memory of no listed process below which it is not worth a part."""


@dataclass(frozen=True, slots=True)
class Part:
    """`kind` is one of `palette.PART_STYLES`; `estimated` where the size follows from the configuration and was not read."""

    kind: str
    mib: float
    estimated: bool = False

    @property
    def label(self) -> str:
        """What a person reads."""
        words = {
            "weights": say("weights", "权重"), "kv": "KV", "other": say("engine", "引擎其余"), "rest": say("unexplained", "未解释"),
            "others": say("others", "其他进程"), "unlisted": say("unlisted", "未列出"), "used": say("used", "已用"),
        }  # fmt: skip
        return ("~" if self.estimated else "") + words[self.kind]


def split(state: State, subject: str) -> list[Part]:
    """Parts that sum to the used memory, largest meaning first. One part `used` where processes are not readable."""
    used = state.number(subject, "memory_used_mib")
    if not used:
        return []
    index = int(subject.removeprefix("gpu") or 0)
    ours: dict[str, Part] = {}
    listed = others = 0.0
    for process in state.processes(index):
        size = state.number(process, "memory_mib") or 0.0
        listed += size
        if state.value(process, "engine") and state.value(process, "ours") is not False:
            for part in parts(state.holders.get((index, state.value(process, "pid"))), size):
                before = ours.get(part.kind, Part(part.kind, 0.0))
                ours[part.kind] = Part(part.kind, before.mib + part.mib, before.estimated or part.estimated)
        else:
            others += size
    if not listed:
        return [Part("used", used)]
    found = [ours[kind] for kind in ("weights", "kv", "other", "rest") if kind in ours]
    unlisted = used - listed
    found += [Part("others", others), Part("unlisted", unlisted if unlisted > LEAST_MIB else 0.0)]
    return [p for p in found if p.mib >= 1]


def parts(holder: Holder | None, size: float) -> list[Part]:
    """The parts of one server, which sum to what it holds now. What does not fit in is taken from the least certain first."""
    if holder is None or not holder.parts:
        return [Part("other", size)]
    weights = min(size, holder.of("weights"))
    cache = [p for p in holder.parts if p.kind == "kv" and (p.read or not holder.guessed)]
    engine = holder.estimate - holder.of("weights") - holder.of("kv")
    least = 0.0 if _read(holder, "kv") else engine  # a pool that is an estimate gives way to the parts that are constants
    kv = max(0.0, min(size - weights - least, sum(p.mib for p in cache)))
    over = size - weights - kv
    other = over if holder.low <= size <= holder.high or holder.guessed else min(over, engine)
    made = [Part("weights", weights, not _read(holder, "weights")), Part("kv", kv, not _read(holder, "kv"))]
    return [p for p in (*made, Part("other", other), Part("rest", over - other)) if p.mib >= 1]


def _read(holder: Holder, kind: str) -> bool:
    return any(p.read for p in holder.parts if p.kind == kind)


def holders(evidence: Evidence) -> dict[tuple[int, object], Holder]:
    """Every process on the cards by card and pid."""
    from dstune.plan.decompose import decompose

    return {(int(h.card[3:]), h.pid): h for h in decompose(evidence)}
