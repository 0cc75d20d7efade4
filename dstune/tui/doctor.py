"""The Doctor screen: findings, one opened with its evidence and fixes, and the diff of a fix. Pure."""

from __future__ import annotations

from rich.text import Text

from dstune.lang import pick, say
from dstune.model import Finding
from dstune.report.text import wrap
from dstune.tui.state import State

_TONE = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def rows(state: State) -> list[Finding]:
    """Findings in the order of the story: roots, each followed by what it explains."""
    found = state.diagnosis.findings
    out: list[Finding] = []

    def add(f: Finding) -> None:
        if f not in out:
            out.append(f)
            for child in found:
                if child.because == f.cause:
                    add(child)

    for f in found:
        if not f.because:
            add(f)
    return out


def listing(state: State, chosen: int, width: int, height: int) -> Text:
    """The findings, the chosen one marked."""
    found = rows(state)
    out = Text()
    if not found:
        out.append(say("No findings in what was read.\n", "在已读取的内容中没有发现问题。\n"), "green")
    first = max(0, min(chosen - height + 2, len(found) - height + 1)) if len(found) >= height else 0
    for number, f in enumerate(found[first : first + height], first):
        mark = "▶ " if number == chosen else "  "
        indent = "↳ " if f.because else ""
        out.append(
            f"{mark}{indent}{f.cause}"[:width] + "\n", f"reverse {_TONE[f.severity]}" if number == chosen else _TONE[f.severity]
        )
    undecided = len(state.diagnosis.unknown)
    if undecided:
        out.append(
            say(f"\n{undecided} not decided: ", f"\n{undecided} 项未定：") + state.diagnosis.unknown[0].needs[: 2 * width],
            "dim",
        )
    return out


def detail(state: State, chosen: int, width: int) -> Text:
    """The chosen finding with evidence, reason, fixes, verification."""
    found = rows(state)
    if not found:
        return Text()
    f = found[min(chosen, len(found) - 1)]
    out = Text(wrap(f.message, "", width) + "\n\n", _TONE[f.severity])
    if f.because:
        out.append(say(f"because of {f.because}\n\n", f"源于 {f.because}\n\n"), "dim")
    for c in f.evidence[:6]:
        out.append(f"{c.source}:{c.line}" if c.line else c.source, "dim").append("\n")
        out.append(wrap(c.text, "  ", width) + "\n")
    out.append("\n" + wrap(f.why, "", width) + "\n")
    for fix in f.fixes[:4]:
        out.append("\n" + wrap(say("fix: ", "修复：") + pick(fix.title), "", width) + "\n", "bold")
        for key, value in fix.set.items():
            out.append(f"  {key} = {value}\n", "green")
        for line in fix.run.strip().splitlines():
            out.append(f"  $ {line}\n", "green")
    if f.verify:
        out.append("\n" + wrap(say("verify: ", "验证：") + f.verify, "", width) + "\n", "dim")
    return out


def diff_text(diff: str) -> Text:
    """A unified diff with its colours."""
    out = Text()
    for line in diff.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        out.append(line + "\n", "bold" if line.startswith(("+++", "---")) else style)
    return out
