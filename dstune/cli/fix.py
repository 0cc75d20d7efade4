"""`dstune fix`: the remedies of doctor, carried out on the files: a diff first, the files with --write."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click

from dstune.cli.doctor import contradictions, gather, left_out
from dstune.cli.fixes import (
    Outcome,
    Step,
    Wish,
    artifacts,
    automatic,
    carry_out,
    chosen_rules,
    hunks,
    reason,
    stale,
    trace_of,
)
from dstune.cli.hands import Hand
from dstune.cli.options import common, empty, evidence_option, facts_option, log_option, no_host_option
from dstune.errors import DstuneError, Exit, UnobservableError
from dstune.lang import pick, remarked, say
from dstune.model import Diagnosis, Document, Evidence, Report
from dstune.model.plan import Artifact
from dstune.patch import Change, Source, backups, diff, read, write


@click.command(
    help=say(
        "Show the fixes for FILES (app.py, launch scripts, compose, Dockerfile, config; logs are read as evidence) as a diff. "
        "Exit 1: there are fixes that are not written.",
        "以 diff 显示对 FILES（app.py、启动脚本、compose、Dockerfile、配置；日志仅作为证据）的修复。退出码 1 表示有未写入的修复。",
    )
)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "--write",
    "-w",
    "do_write",
    is_flag=True,
    help=say("Write the files (all or none), with a backup.", "写入文件（全部成功或全部不写），并保留备份。"),
)
@click.option("--only", multiple=True, metavar="CAUSE", help=say("Only the fixes of this cause.", "只做该病因的修复。"))
@click.option("--advice", is_flag=True, help=say("Also what is advice and no fault.", "连同建议类（非故障）一起修改。"))
@click.option("--why", is_flag=True, help=say("Explain every part of the diff.", "逐段解释 diff。"))
@click.option("--ask", is_flag=True, help=say("Ask before each fix.", "逐项询问。"))
@log_option
@facts_option
@click.option(
    "--verify",
    "prove",
    is_flag=True,
    help=say(
        "Start the program as it is and as it would be fixed, under the same load; with --write, nothing is written that makes it worse.",
        "分别启动修复前和修复后的程序并施加同样的负载；与 --write 同用时，变差则不写入。",
    ),
)
@click.option("--python", default="", help=say("Interpreter for --verify.", "--verify 使用的 Python。"))
@click.option(
    "--verify-options",
    default="",
    metavar="OPTIONS",
    help=say("Options of `dstune verify`, as one text.", "`dstune verify` 的选项，写成一个字符串。"),
)
@no_host_option
@evidence_option
@common
def command(
    files: tuple[str, ...],
    do_write: bool,
    only: tuple[str, ...],
    advice: bool,
    why: bool,
    ask: bool,
    prove: bool,
    python: str,
    verify_options: str,
    logs: tuple[str, ...],
    said_facts: str | None,
    no_host: bool,
    evidence: tuple[str, ...],
    as_json: bool,
) -> int:
    from dstune.derive import derive
    from dstune.diagnose import diagnose
    from dstune.readers import WHOLE, read_documents, recognise

    rules = chosen_rules(only)
    sources, others = _sorted(files, WHOLE, recognise)
    if not sources:
        raise DstuneError(
            say("none of the files can be fixed", "这些文件都不是可修复的类型"),
            say("they are logs", "它们是日志"),
            "dstune fix app.py server.log",
        )
    look = not (no_host or evidence or said_facts)
    base = gather(tuple(others), logs, said_facts, evidence, look=look)

    def judge(documents: Sequence[Document]) -> tuple[Evidence, Diagnosis]:
        seen = derive(read_documents(documents).merged(base))
        return seen, diagnose(seen)

    kinds = {s.path: recognise(s.path, s.text) for s in sources}
    documents = [Document(s.path, kinds[s.path], s.text) for s in sources]
    wish = Wish(frozenset(r.cause for r in rules or ()), advice, _asking() if ask else lambda step: True, _known(sources))
    outcome = carry_out(documents, judge, wish)
    seen = read_documents(documents).merged(base)
    outcome.unread = left_out(seen, files)
    outcome.notes += [*outcome.unread, *contradictions(seen)]
    made = artifacts(sources, outcome)
    proof = None
    if prove and made:
        from dstune.cli.fix_verify import proved

        try:
            proof = proved(made, sources, kinds, python, verify_options)
        except UnobservableError:  # the diff is shown all the same; what is not proven is not written
            _tell(made, sources, outcome, "", why, as_json, None, False)
            raise
    held = proof is not None and bool(proof[1]["worse"])
    number = _write(made, sources, documents, outcome) if do_write and made and not held else ""
    _tell(made, sources, outcome, number, why, as_json, proof, held and do_write)
    if outcome.unread and not (made or outcome.hands):
        return Exit.UNOBSERVABLE
    return Exit.OK if number or not made else Exit.FINDINGS


def _sorted(files: Sequence[str], limit: int, recognise: Callable[[str, str], str]) -> tuple[list[Source], list[str]]:
    """(files that can be changed, files that are evidence only: logs, big files, standard input)."""
    import os

    sources: list[Source] = []
    others: list[str] = []
    for path in dict.fromkeys(files):
        if path == "-" or path.endswith(".gz") or (os.path.isfile(path) and os.path.getsize(path) > limit):
            others.append(path)
            continue
        source = read(path)
        if any(s.real == source.real for s in sources):
            continue
        if recognise(path, source.text) == "log":
            others.append(path)
        else:
            sources.append(source)
    return sources, others


def _known(sources: Sequence[Source]) -> frozenset[str]:
    """Evidence that earlier fixes of these files answered and that no undo took back."""
    real = {s.real for s in sources}
    mine = [m for m in backups() if not m["undone"] and any(f["path"] in real for f in m["files"])]
    return frozenset(k for m in mine for k in m.get("answered", ()) if k)


def _asking() -> Callable[[Step], bool]:
    """Asks on the terminal before each step: yes, no, all of the rest, none of the rest."""
    import sys

    if not sys.stdin.isatty():
        raise DstuneError(say("--ask needs a terminal", "--ask 需要终端"), "", "--only CAUSE")
    rest: list[bool] = []

    def agree(step: Step) -> bool:
        from dstune.report.text import diff as coloured

        if rest:
            return rest[0]
        click.echo(coloured(diff(step.path, step.before, step.after)), err=True)
        click.echo(f"{step.finding.cause}: {reason(step.fix, step.finding)}", err=True)
        question = say("Apply? y yes, n no, a all, q none of the rest", "是否应用？y 是，n 否，a 全部，q 其余都不要")
        answer = click.prompt(question, type=click.Choice(["y", "n", "a", "q"]), default="y", show_choices=False, err=True)
        if answer in ("a", "q"):
            rest.append(answer == "a")
        return answer in ("y", "a")

    return agree


def _write(made: Sequence[Artifact], sources: Sequence[Source], documents: Sequence[Document], outcome: Outcome) -> str:
    by_path = {s.path: s for s in sources}
    changes = [Change(by_path[a.path], by_path[a.path].encoded(a.text)) for a in made]
    steps = [{"cause": s.finding.cause, "path": s.path, "set": s.fix.set, "edit": s.fix.edit} for s in outcome.steps]
    answered = sorted({k for s in outcome.steps if (k := stale(s.finding, documents))})
    return write(changes, {"command": "fix", "steps": steps, "answered": answered})


def _tell(
    made: Sequence[Artifact], sources: Sequence[Source], outcome: Outcome, number: str, why: bool, as_json: bool,
    proof: tuple[Report, dict[str, Any]] | None, held: bool,
) -> None:  # fmt: skip
    notes = [*_git(made), *outcome.notes, *_closing(made, outcome, number)]
    if held and proof:
        notes = [
            say(
                f"Not written, since the fixed program is worse. {proof[1]['conclusion']}",
                f"未写入：修复后的程序变差。{proof[1]['conclusion']}",
            )
        ]
    if as_json:
        from dstune.report import FORMATS

        hands = [_hand(h) for h in outcome.hands]
        report = replace(empty("fix"), artifacts=tuple(made), notes=(*hands, *notes))
        data = json.loads(FORMATS["json"](report))
        data.setdefault("artifacts", [])
        data["steps"] = [
            {
                "cause": s.finding.cause,
                "path": s.path,
                "title": pick(s.fix.title),
                "reason": reason(s.fix, s.finding),
                "set": s.fix.set,
                "edit": s.fix.edit,
            }
            for s in outcome.steps
        ]
        data["by_hand"] = [
            {
                "cause": h.finding.cause,
                "place": h.place,
                "title": pick(h.fix.title),
                "text": h.text,
                "run": remarked(h.fix.run, h.fix.remarks),
                "reason": h.reason,
            }
            for h in outcome.hands
        ]
        data["backup"] = number or None
        if proof:
            data["verify"] = proof[1]
        click.echo(json.dumps(data, ensure_ascii=False, indent=1))
        return
    for artifact in made:
        click.echo(_shown(artifact, next(s for s in sources if s.path == artifact.path), outcome, why))
    for line in _by_hand(outcome.hands):
        click.echo(line)
    if proof:
        click.echo("\n".join(["", *_proof(*proof), ""]))
    for note in notes:
        click.echo(note)


def _proof(report: Report, data: dict[str, Any]) -> list[str]:
    """The verdict, and which of the changed files had no part in it."""
    from dstune.redact import printable
    from dstune.report import FORMATS

    out = [printable(data["load"]), "", printable(FORMATS["text"](report))]
    if data["not_run"]:
        names = ", ".join(data["not_run"])
        out.append(say(f"Changed, but not part of this run: {names}.", f"有改动但未参与本次运行：{names}。"))
    return out


def _shown(artifact: Artifact, source: Source, outcome: Outcome, why: bool) -> str:
    """The diff of one file; secrets are taken out on a terminal only, as a diff that is piped is there to be applied."""
    import sys

    from dstune.redact import printable, redact
    from dstune.report.text import diff as coloured
    from dstune.report.text import paint, wrap

    head, parts = hunks(artifact.diff)
    trace = trace_of(source, outcome)
    told: dict[tuple[str, str, str], set[int]] = {}
    for number, part in enumerate(parts if why else ()):
        place, _, rest = part.partition("\n")
        steps = [(outcome.steps[n], at) for n, at in trace.of_hunk(part).items()]
        for s, at in steps:
            told.setdefault((s.finding.cause, pick(s.fix.title), reason(s.fix, s.finding)), set()).update(at)
        causes = ", ".join(dict.fromkeys(s.finding.cause for s, _ in steps))
        parts[number] = f"{place} {causes}\n{rest}" if causes else part
    out = []  # above the header: between it and a hunk, `git apply` takes no words
    for (cause, title, text), lines in told.items():
        spans = _spans(sorted(lines))
        one = len(lines) == 1
        places = say(f"line{'' if one else 's'} {', '.join(spans)}", f"第 {'、'.join(spans)} 行")
        said = f"# {places}{say(': ', '：')}{cause}{say(': ', '：')}{title}{say('. ', '。')}{text}"
        out.append(paint(wrap(said, "# ").replace("# # ", "# ", 1), "dim"))
    out += [head, *parts]
    text = "\n".join(out)
    text = printable(redact(text)) if sys.stdout.isatty() else text
    return coloured(text)


def _spans(lines: Sequence[int]) -> list[str]:
    """Line numbers as spans: 12, 13, 14, 20 → `12-14`, `20`."""
    spans: list[list[int]] = []
    for n in lines:
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return [f"{a}-{b}" if b > a else str(a) for a, b in spans]


def _by_hand(hands: Sequence[Hand]) -> list[str]:
    from dstune.report.text import commands, paint, wrap

    if not hands:
        return []
    out = ["", paint(say("By hand:", "需手动处理："), "bold")]
    for hand in hands:
        out.append(wrap(f"- {_hand(hand)}", "  "))
        out += [f"      {hand.text}"] if hand.text else []
        out += [f"      {line}" for line in commands(hand.fix)]
    return out


def _hand(hand: Hand) -> str:
    from dstune.redact import redact

    why = f"; {hand.reason}" if hand.reason else ""
    return redact(f"{hand.place}: {pick(hand.fix.title)} ({hand.finding.cause}{why})")


def _git(made: Sequence[Artifact]) -> list[str]:
    paths = [a.path for a in made if uncommitted(a.path)]
    return [say(f"{p} has changes that are in no git commit.", f"{p} 有尚未提交到 git 的修改。") for p in paths]


def uncommitted(path: str) -> bool:
    """Whether a git work tree holds changes of this file that are in no commit. False where git or a work tree is missing."""
    import os
    import subprocess

    folder, name = os.path.split(os.path.realpath(path))
    try:
        done = subprocess.run(
            ["git", "-C", folder, "status", "--porcelain", "--", name], capture_output=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def _closing(made: Sequence[Artifact], outcome: Outcome, number: str) -> list[str]:
    names = ", ".join(a.path for a in made)
    if number:
        return [
            say(f"Written: {names}. Take it back with: dstune undo {number}", f"已写入：{names}。撤销：dstune undo {number}")
        ]
    if made:
        causes = len({s.finding.cause for s in outcome.steps})
        return [
            say(
                f"{causes} fix{'es' * (causes != 1)} for {names}, not written. --write writes {'it' if causes == 1 else 'them'}, --why explains.",
                f"{names} 有 {causes} 项修复，尚未写入。--write 写入，--why 解释。",
            )
        ]
    if outcome.hands:
        return [say("Nothing that dstune can change by itself.", "没有 dstune 能自行修改的内容。")]
    left = [f.cause for f in outcome.diagnosis.findings if f.confidence == "low" and any(map(automatic, f.fixes))]
    if left:
        return [
            say(
                f"Nothing that is sure enough. Possible: {', '.join(left)}; carry one out with --only {left[0]}.",
                f"没有足够确定的问题。可能的有：{'、'.join(left)}；用 --only {left[0]} 执行其中一项。",
            )
        ]
    if outcome.unread:
        return [say("Nothing to fix in what was read.", "已读取的部分无需修复。")]
    return [say("Nothing to fix in these files.", "这些文件无需修复。")]
