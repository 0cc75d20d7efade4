"""The Doctor screen: findings as a list, the chosen one opened in place with evidence, reason and fixes; the diff of a fix. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import chop_cells
from rich.text import Text

from dstune.lang import say
from dstune.model import Cite, Finding, Fix
from dstune.model.plan import Artifact
from dstune.report.text import commands, titled, worded
from dstune.tui.draw import MARK, TONE, Lines, chopped, click, fit, wrapped
from dstune.tui.servers import place
from dstune.tui.state import State

CONTEXT = 2
"""Lines shown above and below a line of evidence; half of it where there are several."""
PIECES, FACTS, WHOLE = 1, 6, 3
"""Pieces of one file, cited facts, and lines of one cited line that are shown; reason and fix must be near."""


@dataclass(slots=True)
class View:
    """What the person has chosen here."""

    chosen: int = 0
    open: set[str] = field(default_factory=set)
    artifacts: tuple[Artifact, ...] = ()
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Lines of the files and the log that evidence may cite, by path."""


def rows(state: State) -> list[Finding]:
    """Findings in the order of the story: roots, each followed by what it explains; at the end what only the last load showed."""
    found = state.diagnosis.findings
    out: dict[str, Finding] = {}

    def add(f: Finding) -> None:
        if f.cause not in out:
            out[f.cause] = f
            for child in found:
                if child.because == f.cause:
                    add(child)

    for f in found:
        if not f.because:
            add(f)
    for f in (*found, *state.kept):
        add(f)
    return list(out.values())


def doctor(state: State, view: View, width: int, plain: bool = False) -> tuple[Lines, int]:
    """The screen, and the line of the chosen finding."""
    if view.artifacts:
        return diff(view.artifacts, width), 0
    found = rows(state)
    view.chosen = min(view.chosen, max(0, len(found) - 1))
    out: Lines = []
    at = 0
    if not found:
        words = (
            say("No findings in what was read.", "在已读取的内容中没有发现问题。")
            if state.diagnosed
            else say("not diagnosed yet", "尚未诊断")
        )
        out.append(Text(words, "green" if state.diagnosed else "dim"))
    for number, f in enumerate(found):
        if number == view.chosen:
            at = len(out)
        where = f" @ {spot}" if (spot := place(state, f.subject)) else ""
        where += say(" (while the load ran)", "（压测期间）") if f in state.kept else ""
        out.append(_row(f, number == view.chosen, number, f.cause in view.open, width, where))
        if f.cause in view.open:
            out += [*_opened(f, view.texts, width), Text()]
    if found:
        roots = sum(not f.because for f in found)
        more = len(found) - roots
        words = say(
            f"{roots} cause{'s' * (roots != 1)}" + f", {more} consequence{'s' * (more != 1)} (↳)" * bool(more),
            f"{roots} 个原因" + f"，{more} 个后果（↳）" * bool(more),
        )
        out += [*([] if f.cause in view.open else [Text()]), Text(fit(words, width), "dim", no_wrap=True)]
    undecided = state.diagnosis.unknown
    if undecided:
        out += [
            Text(),
            Text(
                say(
                    f"{len(undecided)} cause{'s stay' if len(undecided) != 1 else ' stays'} open; what would decide:",
                    f"{len(undecided)} 项未定，需要的信息：",
                ),
                "dim",
            ),
        ]
        for unknown in undecided[:4]:
            out += wrapped(f"{unknown.cause}: {unknown.needs}", width, "dim", "  ")
    return out, at


def _row(f: Finding, chosen: bool, number: int, opened: bool, width: int, where: str = "") -> Text:
    style = f"reverse {TONE[f.severity]}" if chosen else TONE[f.severity]
    words = f"{'▼' if opened else '▶'} {'↳ ' if f.because else ''}{MARK[f.severity]} {f.cause}{where}"
    line = Text(no_wrap=True).append(words, click(f"app.choose({number})", style))
    if not opened:
        first = f.message.replace("\n", " ")
        line.append(fit("  " + first, width - line.cell_len), click(f"app.choose({number})", "dim"))
    return line


def _opened(f: Finding, texts: Mapping[str, Sequence[str]], width: int) -> Lines:
    out = wrapped(f.message, width - 2, "bold", "  ")
    words = worded(f.confidence)
    if f.because:
        words += say(f"; explained by {f.because}", f"；源于 {f.because}")
    out.append(Text(say(f"  ({words})", f"  （{words}）"), "dim"))
    out += _evidence(f.evidence, texts, width)
    out += wrapped(f.why, width - 2, "", "  ")
    for fix in f.fixes[:4]:
        out += _fix(fix, width)
    if f.verify:
        out += wrapped(say("verify: ", "验证：") + f.verify, width - 2, "dim", "  ")
    return out


def _evidence(cites: Sequence[Cite], texts: Mapping[str, Sequence[str]], width: int) -> Lines:
    """Cited lines between their neighbours, overlapping ones as one piece; then cited facts; what has no room by number."""
    placed: dict[str, list[int]] = {}
    other = []
    for cite in cites:
        lines = texts.get(cite.source)
        if cite.line is None or not lines or cite.line > len(lines):
            other.append(cite)
        else:
            placed.setdefault(cite.source, []).append(cite.line)
    out: Lines = []
    for source, numbers in placed.items():
        pieces = _pieces(numbers, len(texts[source]))
        for piece in pieces[:PIECES]:
            out.append(Text(fit(f"  │ {source}:{next(n for n in piece if n in numbers)}", width), "cyan", no_wrap=True))
            for number in piece:
                out += _line(number, texts[source][number - 1].rstrip(), number in numbers, width)
        more = [str(n) for piece in pieces[PIECES:] for n in piece if n in numbers]
        if more:
            out.append(
                Text(
                    fit(say(f"  │ … also in lines {', '.join(more)}", f"  │ … 另见第 {'、'.join(more)} 行"), width),
                    "dim",
                    no_wrap=True,
                )
            )
    for cite in other[:FACTS]:
        place = f"{cite.source}:{cite.line}" if cite.line else cite.source
        out.append(
            Text(no_wrap=True).append(fit(f"  │ {place}  ", width), "cyan").append(fit(cite.text.strip(), max(20, width - len(place) - 6)))
        )  # fmt: skip
    return out


def _pieces(numbers: Sequence[int], last: int) -> list[list[int]]:
    """Line numbers with their neighbours, joined where they touch."""
    pieces: list[list[int]] = []
    context = CONTEXT if len(numbers) == 1 else CONTEXT // 2
    for number in sorted(set(numbers)):
        around = range(max(1, number - context), min(last, number + context) + 1)
        if pieces and around[0] <= pieces[-1][-1] + 1:
            pieces[-1] += [n for n in around if n > pieces[-1][-1]]
        else:
            pieces.append(list(around))
    return pieces


def _line(number: int, text: str, here: bool, width: int) -> Lines:
    """A line of a file; a cited one whole (in up to `WHOLE` lines): what proves the finding often stands at its end."""
    head = f"  │ {'▶' if here else ' '}{number:>5} "
    room = max(10, width - len(head))
    if not here:
        return [Text(head + fit(text, room), "dim", no_wrap=True)]
    parts = chop_cells(text, room) or [""]
    shown = parts if len(parts) <= WHOLE else [*parts[: WHOLE - 1], fit(parts[WHOLE - 1] + parts[WHOLE], room)]
    return [
        Text((head if n == 0 else "  │" + " " * (len(head) - 3)) + part, "bold yellow", no_wrap=True)
        for n, part in enumerate(shown)
    ]


def _fix(fix: Fix, width: int) -> Lines:
    out = wrapped(say("fix: ", "修复：") + titled(fix), width - 2, "bold", "  ")
    for key, value in fix.set.items():
        out.append(Text(fit(f"    {flag(key)} {value}", width), "green", no_wrap=True))
    out += [Text(fit(f"    {line}", width), "green", no_wrap=True) for line in commands(fix)]
    return out


def flag(key: str) -> str:
    """How a setting is written on the command line, where it is: `--max-num-seqs` of `vllm.max_num_seqs`."""
    from dstune.catalog.vocabulary import terms

    term = terms().get(key)
    flags = term.spec.get("flag") if term is not None else None
    return str(flags[0]) if flags else f"{key} ="


def diff(artifacts: Sequence[Artifact], width: int) -> Lines:
    """The files as they would be, as unified diffs with the reasons above."""
    out: Lines = []
    for artifact in artifacts:
        for cause, reason in artifact.why:
            out += wrapped(f"# {cause}: {reason}", width, "dim")
        text = artifact.diff or "\n".join(f"+{line}" for line in artifact.text.splitlines())
        for line in text.splitlines():
            style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
            style = "bold" if line.startswith(("+++", "---")) else style
            out += [Text(part, style, no_wrap=True) for part in chopped(line, width)]  # a change must not stand beyond the edge
        out.append(Text())
    return out
