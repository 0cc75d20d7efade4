"""What `fix` leaves to a person: the remedy, where it goes, what to write there, and why it was not written for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dstune.catalog.vocabulary import terms
from dstune.lang import say
from dstune.model import Document, Evidence, Finding, Fix, Value

_WHY = {
    "model": ("it takes another checkpoint", "需要换检查点"),
    "install": ("it takes other programs than the files name", "需要换用文件以外的程序"),
    "host": ("it is done on the machine, not in these files", "需要在机器上操作，不在这些文件里"),
}
"""Why a remedy is no change of a file, by its kind; of the others there are several, and a person knows which one suits."""


@dataclass(frozen=True, slots=True)
class Hand:
    """What a person has to do: the finding, its remedy, the place (file and line), what to write there, and why dstune did not."""

    finding: Finding
    fix: Fix
    reason: str
    place: str
    text: str


def hand(finding: Finding, fix: Fix, reason: str, documents: Sequence[Document], evidence: Evidence) -> Hand:
    """The place is where one of the remedy's settings stands in the files, else what the finding cites: of the files, then of the rest.

    What to write is said for a place in one of these files alone.
    """
    kinds = {d.path: d.kind for d in documents}
    here = [
        f for f in evidence.facts if f.source in kinds and f.line and f"{f.subject.rstrip('0123456789')}.{f.name}" in fix.set
    ]
    cites: list[Any] = [*here, *(c for c in finding.evidence if c.source in kinds), *finding.evidence]
    cite = next((c for c in cites if c.line), None)
    if cite is None or cite.source not in kinds:
        return Hand(finding, fix, reason, f"{cite.source}:{cite.line}" if cite else finding.subject, "")
    families = {f.subject.rstrip("0123456789") for f in evidence.facts if f.source == cite.source}
    given = {k: v for k, v in fix.set.items() if k.partition(".")[0] in families} or dict(fix.set)
    return Hand(finding, fix, reason, f"{cite.source}:{cite.line}", spelled(given, kinds[cite.source] == "app"))


def spelled(given: Mapping[str, Value], program: bool) -> str:
    """Settings as they are written in a program or on a command line; as `name = value` where the vocabulary knows neither."""
    words: list[str] = []
    calls: dict[str, list[str]] = {}
    for key, value in given.items():
        spec = terms()[key].spec if key in terms() else {}
        flag, keyword, call = (_one(spec.get(name)) for name in ("flag", "keyword", "call"))
        bare = str(value).strip("'\"")
        in_call = bool(keyword) and (program or not flag)
        if bare in ("None", "null"):
            word = keyword if in_call else flag or key
            words.append(say(f"without {word}", f"去掉 {word}"))
        elif in_call:
            quoted = terms()[key].type == "text" and not bare.startswith("torch.")
            calls.setdefault(call, []).append(f"{keyword}={bare!r}" if quoted else f"{keyword}={bare}")
        elif flag:
            words.append(flag if spec.get("switch") and bare.lower() == "true" else f"{flag} {bare}")
        else:
            words.append(f"{key} = {bare}")
    return ", ".join([*(f"{call}(…, {', '.join(made)})" if call else ", ".join(made) for call, made in calls.items()), *words])


def by_person(fix: Fix) -> str:
    """Why a remedy that dstune never carries out is a person's."""
    return say(*_WHY.get(fix.kind, ("several ways lead there, and you know which one suits", "有多种做法，由您选择合适的一种")))


def _one(value: Any) -> str:
    return str(value[0]) if isinstance(value, list) and value else str(value or "")
