"""`dstune.report/1`: the frozen JSON. Its own shape, so that a change of our types breaks nobody."""

from __future__ import annotations

import json
from typing import Any

from dstune.lang import pick, remarked
from dstune.model import Evidence, Finding, Report, to_json
from dstune.redact import redact

SCHEMA = "dstune.report/1"


def dumps(report: Report) -> str:
    """The report as one JSON object."""
    return json.dumps(as_dict(report), ensure_ascii=False, indent=1)


def as_dict(report: Report) -> dict[str, Any]:
    """The object; only the parts that the command has."""
    out: dict[str, Any] = {"schema": SCHEMA, "command": report.command, "version": report.version}
    if report.diagnosis is not None:
        out["findings"] = [finding(f) for f in report.diagnosis.findings]
        out["unknown"] = [{"cause": u.cause, "needs": u.needs} for u in report.diagnosis.unknown]
        out["quiet"] = report.diagnosis.quiet
    if report.command == "doctor" and report.evidence is not None:
        from dstune.report.health import health_json
        from dstune.report.memory import memory_json

        out["read"] = health_json(report.evidence)
        if memory := memory_json(report.evidence):
            out["memory"] = memory
    if report.plan is not None:
        from dstune.report.plan import plan_json

        out["plan"] = plan_json(report.plan)
    if report.command == "probe" and report.evidence is not None:
        out["evidence"] = evidence(report.evidence)
    if report.artifacts:
        out["artifacts"] = [{"path": a.path, "diff": a.diff, "text": a.text} for a in report.artifacts]
    trials = [{**t.outcome, "workload": to_json(t.workload), "settings": t.settings} for t in report.trials]
    if len(trials) == 1:
        out["trial"] = trials[0]
    elif trials:
        out["trials"] = trials
    if report.behaviours:
        out["behaviours"] = list(report.behaviours)
    if report.verdicts:
        out["verdicts"] = to_json(report.verdicts)
    if report.notes:
        out["notes"] = list(report.notes)
    return out


def finding(f: Finding) -> dict[str, Any]:
    """One finding."""
    return {
        "cause": f.cause,
        "severity": f.severity,
        "confidence": f.confidence,
        "message": f.message,
        "why": f.why,
        "evidence": [{"source": redact(c.source), "line": c.line, "text": redact(c.text)} for c in f.evidence],
        "fixes": [
            {
                "title": pick(x.title), "safety": x.safety, "kind": x.kind, "set": x.set, "run": remarked(x.run, x.remarks), "edit": x.edit, "verify": x.verify,
                "reason": pick(x.reason),
            }
            for x in f.fixes
        ],
        "verify": f.verify,
        "because": f.because,
    }  # fmt: skip


def evidence(e: Evidence) -> dict[str, Any]:
    """Facts and gaps."""
    return {
        "facts": [{"subject": f.subject, "name": f.name, "value": f.value, "source": redact(f.source)} for f in e.facts],
        "gaps": [{"subject": g.subject, "name": g.name, "reason": redact(g.reason), "hint": g.hint} for g in e.gaps],
    }
