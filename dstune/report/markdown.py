"""The diagnosis as Markdown, to paste into an issue."""

from __future__ import annotations

from dstune.lang import pick, remarked, say
from dstune.model import Report
from dstune.redact import redact


def markdown(report: Report) -> str:
    """Headings, evidence as quoted code, fixes as lists."""
    out = [f"## dstune {report.command} ({report.version})"]
    diagnosis = report.diagnosis
    for f in diagnosis.findings if diagnosis else ():
        reason = f" ({say('because of', '源于')} `{f.because}`)" if f.because else ""
        out += ["", f"### `{f.cause}` — {f.severity}, {f.confidence}{reason}", "", f.message, ""]
        for c in f.evidence[:6]:
            place = f"{c.source}:{c.line}" if c.line else c.source
            out.append(f"- `{redact(place)}`: `{redact(c.text).replace('`', chr(39))}`")
        if f.why:
            out += ["", f.why]
        for fix in f.fixes:
            out += ["", f"**{say('Fix', '修复')}:** {pick(fix.title)}"]
            out += [f"- `{k} = {v}`" for k, v in fix.set.items()]
            if fix.run:
                out += ["```", remarked(fix.run.strip(), fix.remarks), "```"]
    if diagnosis and diagnosis.unknown:
        out += ["", f"### {say('Not decided', '未定')}", ""] + [f"- `{u.cause}`: {u.needs}" for u in diagnosis.unknown]
    if report.command == "doctor" and report.evidence is not None:
        from dstune.report.memory import memory_markdown

        out += memory_markdown(report.evidence)
    return "\n".join(out)
