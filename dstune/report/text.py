"""The report for a person at a terminal of 80 columns. Colour only on a terminal and without NO_COLOR."""

from __future__ import annotations

import os
import re
import sys
import unicodedata

from dstune.lang import pick, remarked, say
from dstune.model import Diagnosis, Finding, Fix, Report, Rule
from dstune.redact import redact

WIDTH = 80
_COLOURS = {"error": "31;1", "warning": "33;1", "info": "36", "dim": "2", "bold": "1", "add": "32", "del": "31", "hunk": "36"}


def coloured() -> bool:
    """Whether stdout is a terminal that wants colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """The text in a colour of the table, where colours are wanted."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if coloured() else text


def cells(text: str) -> int:
    """Columns that a text takes: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


_OPENING = ("（", "“", "‘", "《")


def wrap(text: str, indent: str = "", width: int = WIDTH) -> str:
    """Lines of at most `width` columns. Breaks at spaces and between Chinese characters; never before closing or after opening punctuation."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = indent
        for token in _tokens(paragraph):
            if cells(line) + cells(token.rstrip()) > width and line.strip() and token[0] not in "，。；：、）！？”’》,.;:)":
                lines.append(line.rstrip())
                line = indent
                token = token.lstrip()
            line += token
        lines.append(line.rstrip())
    return "\n".join(lines)


def _tokens(text: str) -> list[str]:
    out: list[str] = []
    word = ""
    for c in text:
        wide = unicodedata.east_asian_width(c) in "WF"
        if c in _OPENING:  # stays with what follows
            if word[-1:] not in _OPENING:
                out.append(word)
                word = ""
            word += c
        elif wide:
            if word[-1:] in _OPENING:
                c = word + c
            elif word:
                out.append(word)
            word = ""
            out.append(c)
        elif c == " ":
            out.append(word + " ")
            word = ""
        else:
            word += c
    return [t for t in [*out, word] if t]


def text(report: Report) -> str:
    """The whole report."""
    parts: list[str] = []
    if report.command == "doctor" and report.evidence is not None:
        from dstune.report.health import health_text
        from dstune.report.memory import memory_text

        for said in (health_text(report.evidence), memory_text(report.evidence)):
            parts += [said + "\n"] if said else []
    if report.diagnosis is not None:
        parts.append(diagnosis(report.diagnosis))
    if report.command == "probe" and report.evidence is not None:
        from dstune.report.evidence import evidence_text

        parts.append(evidence_text(report.evidence))
    if report.plan is not None:
        from dstune.report.plan import plan_text

        parts.append(plan_text(report.plan))
    if report.trials and report.command != "verify":
        from dstune.report.trial import trials_text

        parts.append(trials_text(report.trials))
    samples = sum(t.outcome.get("judged", 0) for t in report.trials)
    if report.behaviours or report.verdicts or samples:
        from dstune.report.trial import behaviours_text
        from dstune.report.verify import verdicts_text

        parts += [behaviours_text(report.behaviours, samples), verdicts_text(report.verdicts)]
    parts += [diff(a.diff) for a in report.artifacts if a.diff]
    parts += [wrap(n) for n in report.notes]
    return "\n".join(p for p in parts if p)


def diagnosis(d: Diagnosis) -> str:
    """Findings as an ordered story, what stayed open, and the count of what was quiet."""
    out: list[str] = []
    roots = [f for f in d.findings if not f.because]
    needs = {u.cause: u.needs for u in d.unknown}
    for number, f in enumerate(roots, 1):
        out.append(finding(f, str(number)))
        if f.cause in needs:
            out.append(wrap(say("to be sure: ", "要确认：") + needs[f.cause], "   "))
        out += [_explained(c) for c in _children(f, d)]
        out.append("")
    if not roots:
        out.append(say("No fault found in this evidence.", "在这些证据中没有发现故障。"))
    named = {f.cause for f in d.findings}
    unknown = [u for u in d.unknown if u.cause not in named]
    if unknown:
        out.append(paint(say("Not decided by this evidence:", "这些证据无法判断："), "bold"))
        out += [wrap(f"- {u.cause}: {u.needs}", "  ") for u in unknown[:6]]
        if len(unknown) > 6:
            out.append(say(f"  … and {len(unknown) - 6} more (--json)", f"  … 另有 {len(unknown) - 6} 项（--json）"))
    found, followed = len(roots), len(d.findings) - len(roots)
    out.append(
        paint(
            say(
                f"{found} cause{'s' * (found != 1)}, {followed} consequence{'s' * (followed != 1)}, {len(unknown)} undecided, {d.quiet} rules quiet",
                f"{found} 个原因，{followed} 个后果，{len(unknown)} 项未定，{d.quiet} 条规则无异常",
            ),
            "dim",
        )
    )
    return "\n".join(out)


def _children(f: Finding, d: Diagnosis) -> list[Finding]:
    direct = [c for c in d.findings if c.because == f.cause]
    return [x for c in direct for x in [c, *_children(c, d)]]


_WORDS = {
    "error": ("error", "错误"), "warning": ("warning", "警告"), "info": ("advice", "建议"), "high": ("sure", "确定"), "medium": ("likely", "很可能"),
    "low": ("possible", "可能"), "live": ("applies live", "即时生效"), "restart": ("needs a restart", "需要重启"), "display": ("by hand", "需手动处理"),
}  # fmt: skip


def worded(key: str) -> str:
    """A severity, a confidence or a safety in the words that every screen uses."""
    return say(*_WORDS[key])


def titled(fix: Fix) -> str:
    """What a fix does, and what it takes."""
    return say(f"{pick(fix.title)} ({worded(fix.safety)})", f"{pick(fix.title)}（{worded(fix.safety)}）")


_COMMAND = re.compile(
    r"""(?:[A-Z_][A-Z0-9_]*=(?:"[^"]*"|'[^']*'|\S*)\ )*  # variables of the command
    (?!(?:from|import|def|class|with|for|if|while|return|del|async|await)\b)
    [a-z~./][a-z0-9./+-]*(?:;|\ (?!\+?=\ )|$)(?!.*\ \{(?:\ |$))""",
    re.VERBOSE,
)
"""A line for a shell. Python, YAML, a Dockerfile's and a proxy's lines go into a file."""


def commands(fix: Fix) -> list[str]:
    """What to type, behind a prompt; a comment, the rest of a command and what goes into a file stand as they are."""
    lines = remarked(fix.run.strip(), fix.remarks).splitlines()
    first = next((line for line in lines if not line.startswith("#")), "")
    typed = _COMMAND.match(first) is not None
    return [f"$ {line}" if typed and _COMMAND.match(line) else line for line in lines]


def finding(f: Finding, number: str) -> str:
    """One root: what, evidence, why, fixes, how to verify."""
    head = f"{number}. {say(*_WORDS[f.severity])} · {f.cause} · {say(*_WORDS[f.confidence])}"
    out = [paint(head, f.severity), wrap(f.message, "   ")]
    for cite in f.evidence[:4]:
        place = f"{cite.source}:{cite.line}" if cite.line else cite.source
        line = redact(cite.text)
        out.append(paint(f"   │ {redact(place)}", "dim"))
        out.append(f"   │   {line if cells(line) <= WIDTH - 7 else line[: WIDTH - 8] + '…'}")
    if len(f.evidence) > 4:
        out.append(paint(say(f"   │ … {len(f.evidence) - 4} more", f"   │ … 另有 {len(f.evidence) - 4} 处"), "dim"))
    if f.why:
        out.append(wrap(say("why: ", "原因：") + f.why, "   "))
    for fix in f.fixes[:3]:
        out.append(wrap(say("fix: ", "修复：") + titled(fix), "   "))
        if fix.set:
            out.append("        " + ", ".join(f"{k} = {v}" for k, v in fix.set.items()))
        out += [f"        {line}" for line in commands(fix)]
        if fix.reason:
            out.append(wrap(pick(fix.reason), "        "))
    if f.verify:
        out.append(wrap(say("verify: ", "验证：") + f.verify, "   "))
    return "\n".join(out)


def _explained(f: Finding) -> str:
    cite = next((c for c in f.evidence if c.line), None)
    place = f" ({redact(cite.source)}:{cite.line})" if cite else ""
    return wrap(f"↳ {say('which explains', '由此导致')} {f.cause}: {f.message}{place}", "   ")


def recipe(rule: Rule) -> str:
    """A rule as `dstune explain` prints it."""
    out = [paint(f"{rule.cause} · {say(*_WORDS[rule.severity])}", "bold"), wrap(pick(rule.title)), ""]
    out += [wrap(pick(rule.why)), ""]
    for fix in rule.fixes:
        out.append(wrap(say("fix: ", "修复：") + titled(fix)))
        if fix.when:
            out.append(f"    {say('when: ', '条件：')}{fix.when}")
        out += [f"    {k} = {v}" for k, v in fix.set.items()]
        out += [f"    {line}" for line in commands(fix)]
        if fix.reason:
            out.append(wrap(pick(fix.reason), "    "))
    if rule.verify:
        out.append(wrap(f"{say('verify: ', '验证：')}{pick(rule.verify)}"))
    if rule.needs:
        out.append(wrap(f"{say('evidence that decides: ', '可判断的证据：')}{pick(rule.needs)}"))
    shown = [p for w in rule.ways for ps in w.texts.values() for p in ps][:6]
    if shown:
        out += ["", say("seen in text as:", "在文本中的样子：")] + [f"    {p}" for p in shown]
    conditions = [w.when for w in rule.ways if w.when]
    if conditions:
        out += [say("conditions:", "条件：")] + [f"    {c}" for c in conditions]
    if rule.explains:
        out.append(wrap(say("explains: ", "可解释：") + ", ".join(rule.explains)))
    if rule.sources:
        out += ["", say("sources:", "来源：")] + [wrap(f"- {s}", "  ") for s in rule.sources]
    return "\n".join(out)


def diff(patch: str) -> str:
    """A unified diff, coloured where colours are wanted."""
    if not coloured():
        return patch
    tone = {"+": "add", "-": "del", "@": "hunk"}
    return "\n".join(paint(line, tone[line[0]]) if line[:1] in tone else line for line in patch.split("\n"))
