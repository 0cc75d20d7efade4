"""Findings → edited files: which remedies can be carried out, what they change and why, and what a person has to do."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dstune.cli.hands import Hand, by_person, hand
from dstune.derive import disagreements
from dstune.diagnose import View
from dstune.expr import UNKNOWN, evaluate, parse
from dstune.lang import pick, say
from dstune.model import Diagnosis, Document, Evidence, Finding, Fix, Rule
from dstune.model.plan import Artifact
from dstune.patch import Source, diff
from dstune.readers.app_edit_context import Context

AUTOMATIC = ("flag", "code", "install")
ASKED = frozenset(("stream-endpoint", "max-length-to-prompt"))
"""Edits that add to what a program does: only where the person asked for advice or for this cause."""
ROUNDS = 6
"""Most rounds of diagnose and edit: an edit may bring a finding to light that another one hid; every round edits or is the last."""


@dataclass(frozen=True, slots=True)
class Step:
    """One remedy that was carried out on one file."""

    finding: Finding
    fix: Fix
    path: str
    before: str
    after: str


@dataclass(slots=True)
class Outcome:
    """All edits of a run: the new texts, the steps in order, what is left to do by hand, the last diagnosis, what was not read."""

    texts: dict[str, str]
    steps: list[Step] = field(default_factory=list)
    hands: list[Hand] = field(default_factory=list)
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    notes: list[str] = field(default_factory=list)
    unread: tuple[str, ...] = ()


Judge = Callable[[Sequence[Document]], tuple[Evidence, Diagnosis]]
"""Documents as they are now → the evidence with them in it, and its diagnosis."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the person asked for: causes (all where empty), advice too, what to say to each step, and evidence that is answered."""

    only: frozenset[str] = frozenset()
    advice: bool = False
    agree: Callable[[Step], bool] = lambda step: True
    known: frozenset[str] = frozenset()

    def wants(self, finding: Finding) -> bool:
        """Whether a finding's remedies are carried out: those named, else all that are no guess."""
        return finding.cause in self.only if self.only else finding.confidence != "low" or finding.severity == "info"

    def alone(self, finding: Finding) -> bool:
        """Whether a finding is reason enough to change a file. Advice is not, unless asked for: a healthy file stays as it is."""
        return bool(self.only) or self.advice or finding.severity != "info"


def carry_out(documents: Sequence[Document], judge: Judge, wish: Wish) -> Outcome:
    """Edits until nothing more can be done. The order of findings is doctor's; a remedy is tried on the files it concerns."""
    result = Outcome({d.path: d.text for d in documents})
    refused: set[tuple[str, str]] = set()
    done: set[tuple[str, str]] = set()
    reasons: dict[str, tuple[Fix, str]] = {}
    other: set[frozenset[str]] | None = None
    for _ in range(ROUNDS):
        now = [Document(d.path, d.kind, result.texts[d.path]) for d in documents]
        evidence, result.diagnosis = judge(now)
        if other is None:  # of the files as they were given: an edit makes them differ from the log, and that is its purpose
            other = {frozenset((a.source, b.source)) for a, b in disagreements(evidence)}
        changed = False
        for finding in result.diagnosis.findings:
            if not wish.wants(finding):
                continue
            if stale(finding, documents) in wish.known:
                reasons[finding.cause] = (
                    _shown(finding, evidence),
                    say(
                        "a fix for this evidence is written already; restart and give the new log",
                        "针对该证据的修复已写入，请重启后提供新日志",
                    ),
                )
                continue
            changed = _remedy(finding, now, evidence, result, wish, done, refused, reasons, other) or changed
        if not changed:
            break
    for finding in result.diagnosis.findings:
        if finding.fixes and finding.cause in reasons and not finding.because and wish.alone(finding):
            cited = {c.source for c in finding.evidence}
            own = [d for d in documents if not any(frozenset((d.path, c)) in (other or ()) for c in cited)]
            result.hands.append(hand(finding, *reasons[finding.cause], own, evidence))
    return result


def _shown(finding: Finding, evidence: Evidence) -> Fix:
    """The remedy that a person is shown: one for the files that holds here, else the finding's first."""
    if not finding.fixes:
        return Fix({}, "host", "display")
    return next((f for f in finding.fixes if automatic(f) and _holds(f, evidence, finding)), finding.fixes[0])


def unsafe() -> str:
    """Why a place is shown and left as it is."""
    return say("the code is written in a way that dstune does not change safely", "代码的写法无法由 dstune 安全修改")


def automatic(fix: Fix) -> bool:
    """Whether a remedy is one that dstune may carry out: it changes a file, and no person has to decide."""
    return fix.kind in AUTOMATIC and fix.safety != "display" and bool(fix.set or fix.edit)


def _remedy(
    finding: Finding, documents: Sequence[Document], evidence: Evidence, result: Outcome, wish: Wish,
    done: set[tuple[str, str]], refused: set[tuple[str, str]], reasons: dict[str, tuple[Fix, str]], other: set[frozenset[str]],
) -> bool:  # fmt: skip
    """The first remedy of a finding that can be carried out. True when a text changed."""
    from dstune.readers.edit import Uncomputed, fixed, suits, versions

    changed, reason = False, ""
    for fix in finding.fixes:
        if not automatic(fix) or (fix.edit in ASKED and not (wish.only or wish.advice)):
            continue
        if not _holds(fix, evidence, finding):
            reason = reason or say("whether it applies here is not known", "无法确定是否适用于此处")
            continue
        places = concerned(finding, [d for d in documents if suits(d, fix, evidence)])
        if not wish.alone(finding):
            touched = {s.path for s in result.steps}
            places = [d for d in places if d.path in touched]
        cited = {c.source for c in finding.evidence}
        foreign = [d for d in places if any(frozenset((d.path, c)) in other for c in cited)]
        if foreign:
            names = ", ".join(d.path for d in foreign)
            reason = say(f"{names} describes another server than this evidence", f"{names} 描述的不是这份证据中的服务")
            places = [d for d in places if d not in foreign]
        if not places:
            here = any(d.path in cited for d in documents)  # a variable that is put together later, say
            reason = reason or (
                unsafe() if here else say("none of the given files is where this is set", "给出的文件中没有设置此项的地方")
            )
            continue
        for document in places:
            key = (finding.cause, document.path)
            if key in done and fix.set:
                continue  # a computed value is set once
            if key in refused:
                continue
            now = Document(document.path, document.kind, result.texts[document.path])
            try:
                after = fixed(now, fix, context(finding, document.path, versions(evidence)))
            except Uncomputed as error:
                reason = say(f"its value needs {error}", f"其数值需要 {error}")
                continue
            if after is None:
                reason = reason or unsafe()
                continue
            step = Step(finding, fix, document.path, now.text, after)
            if not wish.agree(step):
                refused.add(key)
                continue
            done.add(key)
            result.texts[document.path] = after
            result.steps.append(step)
            changed = True
        if changed:
            return True
    if finding.fixes and not any(c == finding.cause for c, _ in done | refused):
        shown = _shown(finding, evidence)
        reasons[finding.cause] = (shown, reason if automatic(shown) else by_person(shown))
    return False


def context(finding: Finding, path: str, versions: dict[str, str]) -> Context:
    """What an edit may know of a finding."""
    lines = tuple(c.line for c in finding.evidence if c.line and c.source == path)
    return Context(versions, {}, lines, tuple(c.text for c in finding.evidence))


def _holds(fix: Fix, evidence: Evidence, finding: Finding) -> bool:
    """Whether the context of a fix is known to hold."""
    if not fix.when or any(name.startswith("hit.") for name in parse(fix.when).names):
        return True  # the groups of a log line are known to doctor alone, which has judged by them
    source = next((c.source for c in finding.evidence if c.line), "")
    value = evaluate(fix.when, View(evidence).lookup(finding.subject, source))
    return value is not UNKNOWN and bool(value)


def concerned(finding: Finding, documents: Sequence[Document]) -> list[Document]:
    """The files of a finding: those that its evidence cites, else the only one there is."""
    cited = {c.source for c in finding.evidence}
    return [d for d in documents if d.path in cited] or (list(documents) if len(documents) == 1 else [])


def stale(finding: Finding, documents: Sequence[Document]) -> str:
    """A key of the evidence that is not in the files being edited (a log): the same log again asks for the same fix again. "" if none."""
    own = {d.path for d in documents}
    texts = [c.text for c in finding.evidence if c.line and c.source not in own]
    return hashlib.sha256("\n".join([finding.cause, *texts]).encode()).hexdigest()[:16] if texts else ""


class Trace:
    """Which step made each line of a text, and which took each original line away."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.made: list[set[int]] = [set() for _ in self.lines]
        self.origin: list[int | None] = list(range(len(self.lines)))
        self.gone: dict[int, int] = {}

    def step(self, number: int, after: str) -> None:
        """The text after a step."""
        new = after.split("\n")
        made: list[set[int]] = []
        origin: list[int | None] = []
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, self.lines, new, autojunk=False).get_opcodes():
            if tag == "equal":
                made += self.made[i1:i2]
                origin += self.origin[i1:i2]
                continue
            before = set().union(*self.made[i1:i2]) if i2 > i1 else set()
            for place in self.origin[i1:i2]:
                if place is not None:
                    self.gone[place] = number
            made += [before | {number} for _ in range(j1, j2)]
            origin += [None] * (j2 - j1)
        self.lines, self.made, self.origin = new, made, origin

    def of_hunk(self, hunk: str) -> dict[int, list[int]]:
        """Steps that made a hunk of the whole diff, in order, with the lines of the old file that each changed or wrote behind."""
        head = re.match(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", hunk)
        assert head is not None
        old, new = int(head[1]) - (head[2] != "0"), int(head[3]) - (head[4] != "0")
        found: dict[int, set[int]] = {}
        taken: list[int] = []  # lines that went just before, and how many came for them
        came = 0
        for line in hunk.split("\n")[1:]:
            if line.startswith("+"):
                place = taken[min(came, len(taken) - 1)] + 1 if taken else max(old, 1)
                came += 1
                for number in self.made[new] - {self.gone.get(t) for t in taken}:
                    found.setdefault(number, set()).add(place)
            elif line.startswith("-"):
                taken, came = (taken if not came else []) + [old], 0
                if old in self.gone:
                    found.setdefault(self.gone[old], set()).add(old + 1)
            else:
                taken, came = [], 0
            old += line[:1] in ("-", " ", "")
            new += line[:1] in ("+", " ", "")
        return {number: sorted(found[number]) for number in sorted(found)}


def hunks(text: str) -> tuple[str, list[str]]:
    """(file header, hunks) of one file's unified diff."""
    parts = re.split(r"(?m)^(?=@@ )", text)
    return parts[0].rstrip("\n"), [p.rstrip("\n") for p in parts[1:]]


def artifacts(sources: Iterable[Source], outcome: Outcome) -> list[Artifact]:
    """Files that change, with the reasons of each."""
    found = []
    for source in sources:
        after = outcome.texts[source.path]
        if after == source.text:
            continue
        why = tuple(dict.fromkeys((s.finding.cause, reason(s.fix, s.finding)) for s in outcome.steps if s.path == source.path))
        found.append(Artifact(source.path, after, diff(source.path, source.text, after), why))
    return found


def reason(fix: Fix, finding: Finding) -> str:
    """Why a remedy does what it does, in the person's language."""
    return pick(fix.reason) or finding.why or pick(fix.title)


def trace_of(source: Source, outcome: Outcome) -> Trace:
    """The trace of one file over all steps of a run."""
    trace = Trace(source.text)
    for number, step in enumerate(outcome.steps):
        if step.path == source.path:
            trace.step(number, step.after)
    return trace


def chosen_rules(causes: Iterable[str]) -> list[Rule] | None:
    """The rules of these causes; None (all) where none is named. Raises `DstuneError` for an unknown one."""
    from dstune.catalog.rules import find

    return [find(c) for c in causes] or None
