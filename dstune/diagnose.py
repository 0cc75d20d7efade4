"""Rules × evidence → findings, root causes first. Pure: data in, data out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal

from dstune.catalog.rules import candidates, count, names_in, parts, wanted
from dstune.catalog.vocabulary import terms, typed
from dstune.derive import disagreements
from dstune.expr import UNKNOWN, Lookup, evaluate, parse
from dstune.lang import pick, say
from dstune.model import Cite, Confidence, Diagnosis, Evidence, Fact, Finding, Fix, Hit, Rule, Unknown, Way, family_of
from dstune.redact import redact

_CONFIDENCE = {"high": 3, "medium": 2, "low": 1}
_SEVERITY = {"error": 3, "warning": 2, "info": 1}
_FIELD = re.compile(r"\{([a-z_]\w*\.\w+)(?::([^}]*))?\}")
_OPTIONAL = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


class View:
    """Facts by name as one subject sees them: its own first, then those of the same file, then the first of any other file that
    does not contradict this one."""

    def __init__(self, evidence: Evidence) -> None:
        self.by_name: dict[str, list[Fact]] = {}
        self._other: dict[str, set[str]] = {}
        for a, b in disagreements(evidence):
            self._other.setdefault(a.source, set()).add(b.source)
            self._other.setdefault(b.source, set()).add(a.source)
        for fact in evidence.facts:
            self.by_name.setdefault(f"{family_of(fact.subject)}.{fact.name}", []).append(fact)

    def reads(self, condition: str) -> bool:
        """Whether any name of a condition was read. Spares parsing it: most of the conditions are about other machines."""
        return any(name in self.by_name for name in names_in(condition))

    def fact(self, name: str, subject: str = "", source: str = "") -> Fact | None:
        """The fact that a condition means by this name."""
        facts = self.by_name.get(name)
        if not facts:
            return None
        other = self._other.get(source, ())
        if subject and family_of(subject) == name.partition(".")[0]:
            mine = [f for f in facts if f.subject == subject and f.source not in other]
            # beside a file that contradicts this one: of this file or no file at all, in their order, so that what a server answers
            # now comes before what its log said of it earlier
            own = [f for f in mine if f.source == source or f.line is None] if other else []
            return next(iter(own or mine), None)
        same = next((f for f in facts if f.source == source), None) if source else None
        return same or next((f for f in facts if f.source not in other), None)

    def sources(self, evidence: Evidence, subject: str) -> list[str]:
        """Files that a subject is judged in: the first that tells of it, and those that contradict it."""
        if not subject:
            return [""]
        files = list(dict.fromkeys(f.source for f in evidence.facts if f.subject == subject and f.line is not None)) or [""]
        return [f for f in files if f == files[0] or files[0] in self._other.get(f, ())]

    def lookup(self, subject: str = "", source: str = "", groups: dict[str, Any] | None = None) -> Lookup:
        """A name resolver for conditions."""

        def get(name: str) -> Any:
            if name.startswith("hit."):
                value = (groups or {}).get(name[4:])
                return UNKNOWN if value is None else value
            fact = self.fact(name, subject, source)
            return UNKNOWN if fact is None else typed(name, fact.value)

        return get


def diagnose(evidence: Evidence, only: Iterable[Rule] | None = None) -> Diagnosis:
    """All findings of the rules (all recipes unless `only`)."""
    view = View(evidence)
    by_cause: dict[str, dict[int, dict[int, list[Hit]]]] = {}
    for hit in evidence.hits:
        by_cause.setdefault(hit.cause, {}).setdefault(hit.way, {}).setdefault(hit.part, []).append(hit)
    chosen = candidates(by_cause, view.by_name) if only is None else list(only)
    findings: list[Finding] = []
    unknown: list[Unknown] = []
    quiet = count() - len(chosen) if only is None else 0
    for rule in chosen:
        hits = by_cause.get(rule.cause, {})
        lasting = _lasting(rule, view, hits)
        found, open_ = _judge(rule, evidence, view, lasting)
        if found is None and lasting is not hits:
            past, _ = _judge(rule, evidence, view, hits)
            found = past and replace(past, severity="info", confidence="low")
        if found is not None:
            findings.append(found)
        if open_ and (found is None or found.confidence != "high"):
            unknown.append(Unknown(rule.cause, pick(rule.needs) or _missing(rule, view)))
        quiet += found is None and not open_
    return Diagnosis(
        tuple(_ordered(findings, {r.cause: r for r in chosen}, unknown, Programs(evidence))), tuple(unknown), quiet
    )


def _missing(rule: Rule, view: View) -> str:
    """What the conditions of a rule ask for and nobody has read, in the words of the vocabulary."""
    asked = dict.fromkeys(n for way in rule.ways if way.when for n in parse(way.when).names)
    meant = [pick(terms()[n].meaning) for n in asked if n in terms() and view.fact(n) is None]
    return say("; ", "；").join(meant[:3]) or say("the facts it asks for", "该规则所需的信息")


def _lasting(rule: Rule, view: View, hits: dict[int, dict[int, list[Hit]]]) -> dict[int, dict[int, list[Hit]]]:
    """The hits without those that came before the fact that shows that the failure was got over; `hits` itself where all last."""
    if not rule.over:
        return hits

    def lasts(hit: Hit) -> bool:
        end = view.fact(rule.over, source=hit.source)
        return end is None or end.source != hit.source or end.line is None or end.line < hit.line

    found = {}
    for number, by_part in hits.items():
        first = by_part.get(0, [])
        left = [h for h in first if lasts(h)] if len(first) < _OFTEN and wanted(rule.ways[number]) else first
        found[number] = {part: left if part == 0 else others for part, others in by_part.items() if part or left}
    return hits if found == hits else found


_OFTEN = 20
"""Times that a failure is told from which on it lasts, whatever came in between: only the first hits are kept."""


def _judge(rule: Rule, evidence: Evidence, view: View, hits: dict[int, dict[int, list[Hit]]]) -> tuple[Finding | None, bool]:
    """The finding of one rule, if any way fires, and whether one stayed open."""
    best: Finding | None = None
    cites: dict[Cite, None] = {}
    open_ = False
    for number, way in enumerate(rule.ways):
        for confidence, lookup, subject, source, used in _fires(rule, way, evidence, view, hits.get(number, {})):
            if confidence == "":
                open_ = True
                continue
            if way.doubt and confidence == way.doubt and _CONFIDENCE[confidence] < _CONFIDENCE[way.confidence]:
                open_ = True
            cites.update(dict.fromkeys(used))
            if best is None or _CONFIDENCE[confidence] > _CONFIDENCE[best.confidence]:
                fixes = tuple(f for f in rule.fixes if _suits(f, lookup))
                best = Finding(
                    rule.cause, subject or source, rule.severity, confidence, redact(fill(pick(rule.message), lookup)),
                    redact(fill(pick(rule.why), lookup)), (), tuple(_filled(f, lookup) for f in fixes), pick(rule.verify),
                )  # fmt: skip
    if best is None:
        return None, open_
    if rule.consequence and best.confidence != "low":
        best = replace(best, confidence="low")
    placed = {c.source for c in cites if c.line is not None}
    shown = [
        c for c in cites if c.line is not None or c.source not in placed
    ]  # a remark on a whole file adds nothing to its line
    return replace(
        best, evidence=tuple(sorted(shown, key=lambda c: (c.line is None, c.source, c.line or 0))[:12])
    ), open_ or rule.consequence


def _suits(fix: Fix, lookup: Lookup) -> bool:
    value = evaluate(fix.when, lookup)
    return value is UNKNOWN or bool(value)


def _filled(fix: Fix, lookup: Lookup) -> Fix:
    """The fix with the expressions of `set` computed where they can be, and names in its texts filled in."""
    values = {key: (text if (v := evaluate(text, lookup)) is UNKNOWN else _plain(v)) for key, text in fix.set.items()}
    return replace(
        fix,
        title={k: fill(t, lookup) for k, t in fix.title.items()},
        run=fill(fix.run, lookup),
        remarks={fill(k, lookup): fill(t, lookup) for k, t in fix.remarks.items()},
        set={k: v if isinstance(v, str) else str(v) for k, v in values.items()},
    )


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _fires(
    rule: Rule, way: Way, evidence: Evidence, view: View, hits: dict[int, list[Hit]]
) -> Iterator[tuple[Confidence | Literal[""], Lookup, str, str, list[Cite]]]:
    """(confidence, names, subject, source, evidence) for each instance that fires; confidence "" for one that stays open."""
    if way.texts and not hits:
        return  # nearly all: asked first, for every way of every rule
    needed, total = wanted(way), len(parts(way))
    if any(p not in hits for p in range(needed)) or any(p in hits for p in range(needed, total)):
        return
    if not needed and not view.reads(way.when):
        return
    rest = {k: v for p in range(1, needed) for h in hits[p][:1] for k, v in h.groups.items()}
    for hit in hits[0] if needed else [None]:
        source = hit.source if hit else ""
        texts = [Cite(h.source, h.line, h.text) for p in range(needed) for h in ([hit] if p == 0 and hit else hits[p][:2])]
        subjects = _subjects(rule, way, evidence) or [""]
        for subject, own in ((s, o) for s in subjects for o in ([source] if source else view.sources(evidence, s))):
            lookup = view.lookup(subject, own, {**rest, **(hit.groups if hit else {})})
            value = evaluate(way.when, lookup)
            if value is not UNKNOWN and not value:
                continue
            refuted = evaluate(way.unless, lookup) if way.unless else False
            if refuted is not UNKNOWN and refuted:
                continue
            confidence: Confidence | Literal[""] = way.doubt if value is UNKNOWN else way.confidence
            if value is UNKNOWN and not needed:
                # a pure fact rule over a gap is open only when part of its condition was read and holds
                if not _touched(way, view, subject, own):
                    continue
                confidence = ""
            yield confidence, lookup, subject, own, texts + _cited(way, view, subject, own)


_INVENTORY = frozenset(
    ("gpu.count", "gpu.name", "gpu.memory_total_mib", "gpu.compute_capability", "gpu.unified_memory", "driver.version", "driver.cuda", "driver.installed",
     "host.os", "host.kernel", "host.wsl", "host.ram_total_mib", "container.inside", "python.version")
)  # fmt: skip
"""What every machine says of itself: that it was read is no sign of any failure."""


def _touched(way: Way, view: View, subject: str, source: str) -> bool:
    """Whether more than half of what a condition asks for was read, and something of it that not every machine says."""
    names = parse(way.when).names
    read = [n for n in names if view.fact(n, subject, source) is not None]
    return len(read) * 2 > len(names) and not _INVENTORY.issuperset(read)


def _subjects(rule: Rule, way: Way, evidence: Evidence) -> list[str]:
    families = [rule.scope] if rule.scope else []
    if not families and way.when:
        families = list(dict.fromkeys(n.partition(".")[0] for n in parse(way.when).names))
    counted = [(f, evidence.subjects(f)) for f in families if f != "hit"]
    several = [(f, s) for f, s in counted if len(s) > 1]
    if several:
        return several[0][1]
    return next((s for _, s in counted if s), [])


def _cited(way: Way, view: View, subject: str, source: str) -> list[Cite]:
    """The facts that a way's conditions read, as evidence."""
    names = [n for c in (way.when, way.unless) if c for n in parse(c).names]
    found: dict[Cite, None] = {}
    for name in names:
        fact = None if name.startswith("hit.") else view.fact(name, subject, source)
        if fact is not None:
            found[Cite(fact.source, fact.line, fact.text or f"{name} = {fact.value}")] = None
    return list(found)


def fill(text: str, lookup: Lookup) -> str:
    """A message with its `{family.name:format}` filled in; a part in [[ ]] goes when a name in it is unknown, or becomes what follows `||`."""

    def optional(part: re.Match[str]) -> str:
        if not _FIELD.search(part[1]):
            return part[0]  # `[[:blank:]]` of a regular expression
        known, _, other = part[1].partition("||")
        return other if any(lookup(m[1]) is UNKNOWN for m in _FIELD.finditer(known)) else known

    def one(field: re.Match[str]) -> str:
        value = lookup(field[1])
        if value is UNKNOWN:
            return "?"
        if isinstance(value, list | tuple):
            return ", ".join(map(str, value))
        try:
            return format(value, field[2] or "")
        except (ValueError, TypeError):
            return str(value)

    return _FIELD.sub(one, _OPTIONAL.sub(optional, text)).strip()


_ENGINES = ("vllm", "sglang", "llamacpp", "ollama", "tgi", "lmdeploy", "hfserve")
_APP = frozenset(("gradio", "generate", "transformers", "tokenizer"))


class Programs:
    """Which program each file is about, so that nothing in one explains what befell another."""

    def __init__(self, evidence: Evidence) -> None:
        self._of: dict[str, set[str]] = {}
        self._ports: dict[str, set[int]] = {}
        clients = {f.source for f in evidence.find("app", "client_only") if f.value is True}
        for fact in evidence.facts:
            family = family_of(fact.subject)
            if fact.line is None:
                continue
            if family in _ENGINES:
                self._of.setdefault(fact.source, set()).add(family)
                if fact.name == "port" and isinstance(fact.value, int | float):
                    self._ports.setdefault(fact.source, set()).add(int(fact.value))
            elif family in _APP and fact.source.endswith((".py", ".ipynb")) and fact.source not in clients:
                self._of.setdefault(fact.source, set()).add("app")
            elif (family, fact.name) == ("docker", "publish"):
                ports = re.findall(r"(\d+):\d+", str(fact.value))
                self._ports.setdefault(fact.source, set()).update(map(int, ports))
        self._other = {(a.source, b.source) for a, b in disagreements(evidence)}

    def apart(self, cause: Finding, other: Finding) -> bool:
        """Whether two findings are known to be about different programs: engines, settings or addresses that exclude each other."""
        one, two = _places(cause), _places(other)
        if not one or not two or one & two:
            return False
        if any((a, b) in self._other or (b, a) in self._other for a in one for b in two):
            return True
        mine, theirs = self._programs(one), self._programs(two)
        if mine and theirs and not mine & theirs:
            return True
        called = {int(m[1]) for s in two if (m := re.match(r"https?://[^/]*:(\d+)", s))}
        listens = self._listens(one)
        return bool(called and listens and all(s.startswith("http") for s in two) and not called & listens)

    def _programs(self, sources: set[str]) -> set[str]:
        return {p for s in sources for p in self._of.get(s, ())}

    def _listens(self, sources: set[str]) -> set[int]:
        """Ports of what these files start: those they name, else the engine's own; none where that is not known."""
        found = {p for s in sources for p in self._ports.get(s, ())}
        engines = self._programs(sources)
        if found or not engines:
            return found
        usual = [terms()[f"{e}.port"].spec.get("default") if f"{e}.port" in terms() else None for e in engines]
        return set() if None in usual else {int(p) for p in usual if p}


def _places(finding: Finding) -> set[str]:
    """Files and addresses that a finding stands in: not the readings of this machine."""
    return {c.source for c in finding.evidence if c.line is not None or c.source.startswith("http")}


def _ordered(findings: list[Finding], table: dict[str, Rule], unknown: list[Unknown], programs: Programs) -> list[Finding]:
    """Consequences folded under their causes; roots first, most probable first, each followed by what it explains."""
    present = {f.cause: f for f in findings}
    because: dict[str, str] = {}
    ranked = sorted(findings, key=lambda f: _order(f, table[f.cause]))
    for finding in ranked:
        for other in table[finding.cause].explains:
            if other in present and other != finding.cause and not _leads_to(finding.cause, other, because):
                if programs.apart(finding, present[other]):
                    continue
                weaker = _CONFIDENCE[finding.confidence] >= _CONFIDENCE[present[other].confidence] - 1
                if weaker or table[other].consequence:
                    because.setdefault(other, finding.cause)
    roots = [f for f in ranked if f.cause not in because and not table[f.cause].consequence]
    for finding in ranked:
        if table[finding.cause].consequence and finding.cause not in because:
            failures = [r for r in roots if r.severity == "error" and r.confidence != "low" and not programs.apart(r, finding)]
            near = (r for r in failures if _places(r) & _places(finding))  # the same log before any other file
            root = next(near, failures[0] if failures else None)
            if root is not None:
                because[finding.cause] = root.cause
    explained = set(because)
    unknown[:] = [u for u in unknown if u.cause not in explained or not table[u.cause].consequence]
    result = [f for f in ranked if f.cause not in because]
    level = _levels(findings, because)
    result.sort(key=lambda f: _order(f, table[f.cause], level[f.cause]))
    # what makes a program fail is an error, also where alone it would only work badly
    result = [
        replace(f, severity="error") if f.severity == "warning" and level[f.cause] == _SEVERITY["error"] else f for f in result
    ]
    pending = list(result)
    while pending:
        for child in [f for f in ranked if because.get(f.cause) == pending[0].cause]:
            result.append(replace(child, because=because[child.cause]))
            pending.append(child)
        pending.pop(0)
    return result


def _levels(findings: list[Finding], because: dict[str, str]) -> dict[str, int]:
    """Severity by cause, with that of everything it explains: advice that explains a failure comes before other warnings."""
    level = {f.cause: _SEVERITY[f.severity] for f in findings}
    for finding in findings:
        cause = finding.cause
        while cause in because:
            cause = because[cause]
            level[cause] = max(level[cause], _SEVERITY[finding.severity])
    return level


def _leads_to(cause: str, other: str, because: dict[str, str]) -> bool:
    """Whether `other` already explains `cause`, so that folding it under `cause` would close a circle."""
    seen = set()
    while cause in because and cause not in seen:
        seen.add(cause)
        cause = because[cause]
        if cause == other:
            return True
    return False


def _order(finding: Finding, rule: Rule, level: int = 0) -> tuple[Any, ...]:
    lines = [c.line for c in finding.evidence if c.line is not None]
    weight: float = level or _SEVERITY[finding.severity]
    if weight == _SEVERITY["error"] and finding.confidence == "low":
        weight -= 0.75  # a guess stands behind what is sure to work badly
    elif weight == _SEVERITY["warning"] and finding.confidence == "high":
        weight += 0.5
    return (
        1 if rule.consequence else 2 if weight == _SEVERITY["info"] else 0,  # a readout never stands before a failure
        -weight,
        -_CONFIDENCE[finding.confidence],
        -rule.rank,
        min(lines, default=1 << 30),
        finding.cause,
    )
