"""`dstune doctor`: the cause, from whatever the person has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from dstune.cli.options import (
    common,
    emit,
    empty,
    evidence_option,
    facts_option,
    load_evidence,
    log_option,
    no_host_option,
    progress,
    python_option,
    waits,
)
from dstune.errors import DstuneError, Exit, UnobservableError
from dstune.lang import say
from dstune.model import Diagnosis, Document, Evidence, Fact, Report, family_of, parse_json, to_json
from dstune.redact import redact

_LEVEL = {"error": 3, "warning": 2, "never": 9}
_SEVERITY = {"error": 3, "warning": 2, "info": 1}


@click.command(
    help=say(
        "Find the root cause in FILES (logs, app.py, launch scripts, Dockerfile, compose; - is standard input) and on this host.",
        "从 FILES（日志、app.py、启动脚本、Dockerfile、compose；- 为标准输入）和本机找出根因。",
    )
)
@click.argument("files", nargs=-1, type=click.Path())
@log_option
@click.option(
    "--endpoint", help=say("URL of a running server to read (/health, /v1/models, /metrics).", "正在运行的服务的 URL。")
)
@click.option(
    "--behaviour", is_flag=True,
    help=say("Ask the server at --endpoint what brings runaway text out (two minutes at most).", "向 --endpoint 的服务提问，检查文本是否失控（至多两分钟）。"),
)  # fmt: skip
@click.option("--metrics", type=click.Path(), help=say("A saved /metrics scrape.", "保存下来的 /metrics。"))
@click.option(
    "--run",
    "runs",
    multiple=True,
    type=click.Path(),
    help=say("A saved load test (dstune bench -o).", "保存下来的压测报告（dstune bench -o）。"),
)
@facts_option
@click.option(
    "--model", "models", multiple=True, type=click.Path(), help=say("A model directory to check.", "要检查的模型目录。")
)
@python_option
@no_host_option
@click.option("--only", multiple=True, help=say("Judge only these causes.", "只判断这些病因。"))
@click.option(
    "--fail-on", type=click.Choice(["error", "warning", "never"]), default="warning", show_default=True,
    help=say("Exit 1 from this severity on.", "从该级别起退出码为 1。"),
)  # fmt: skip
@evidence_option
@common
def command(
    files: tuple[str, ...],
    logs: tuple[str, ...],
    endpoint: str | None,
    behaviour: bool,
    metrics: str | None,
    runs: tuple[str, ...],
    said_facts: str | None,
    models: tuple[str, ...],
    python: str | None,
    no_host: bool,
    only: tuple[str, ...],
    fail_on: str,
    evidence: tuple[str, ...],
    as_json: bool,
) -> int:
    from dstune.catalog.rules import find
    from dstune.derive import derive
    from dstune.diagnose import diagnose
    from dstune.readers.quoted import describes

    look = not (no_host or evidence or said_facts)
    seen = gather(files, logs, said_facts, evidence, metrics, endpoint, look, python, models, runs)
    report, told = _behaviour(endpoint) if behaviour else (empty("doctor"), "")
    if report.trials:
        t = report.trials[0]
        trial = {**t.outcome, "settings": t.settings, "workload": to_json(t.workload)}
        seen = seen.merged(of_report({"trials": [trial], "behaviours": report.behaviours}, str(endpoint)))
    if not (seen.facts or seen.gaps or seen.hits or files or logs):
        raise DstuneError(say("nothing to look at", "没有可看的东西"), "", "dstune doctor app.py server.log")
    diagnosis = diagnose(derive(seen), [find(c) for c in only] if only else None)
    unread, about = left_out(seen, ("<stdin>", *files, *logs)), [f for f in files if describes(f)]
    notes = (*([told] if told else []), *unread, *_passed_over(about), *contradictions(seen), *_next(diagnosis, files))
    if look and not (files or logs or diagnosis.findings):
        notes = (*notes, _machine(seen))
    emit(replace(report, evidence=seen, diagnosis=diagnosis, notes=notes), as_json)
    worst = max((_SEVERITY[f.severity] for f in diagnosis.findings), default=0)
    if (unread or about == [*files, *logs] != []) and not diagnosis.findings:
        return Exit.UNOBSERVABLE if fail_on != "never" else Exit.OK  # silence about a file that was not read is no "fine"
    return Exit.FINDINGS if worst >= _LEVEL[fail_on] else Exit.OK


def _behaviour(endpoint: str | None) -> tuple[Report, str]:
    """The texts of a running server, judged; or why they were not asked for. Raises `DstuneError` without an address."""
    from dstune.cli.bench import talk

    if not endpoint:
        raise DstuneError(
            say("--behaviour needs a running server", "--behaviour 需要正在运行的服务"), "",
            "dstune doctor --endpoint http://127.0.0.1:8000 --behaviour",
        )  # fmt: skip
    try:
        return replace(talk(endpoint), command="doctor"), ""
    except DstuneError as error:
        why = f" ({error.why})" if error.why else ""
        return empty("doctor"), say(f"Behaviour not asked for: {error.what}{why}", f"未检查文本行为：{error.what}{why}")


def left_out(seen: Evidence, paths: Sequence[str]) -> tuple[str, ...]:
    """What of the named files could not be read: silence about a file would mean that it is fine. Also told by `fix`."""
    named = "|".join(re.escape(p) for p in paths if p != "-") or "$."  # standard input is called <stdin>
    whole = re.compile(rf"(?<![\w./-])(?:{named})(?![\w/-])", re.ASCII)
    reasons = list(dict.fromkeys(g.reason for g in seen.gaps if g.name == "*" and whole.search(g.reason)))
    notes = [say(f"Not read: {redact(r)}", f"未读取：{redact(r)}") for r in reasons[:5]]
    more = len(reasons) - len(notes)
    return (*notes, *([say(f"… and {more} more places", f"… 另有 {more} 处")] if more else ()))


def _passed_over(about: Sequence[str]) -> tuple[str, ...]:
    """The named files that were not searched, since by their names they only tell of errors."""
    if not about:
        return ()
    names = redact(", ".join(about[:5]) + ", …" * (len(about) > 5))
    return (
        say(
            f"Not searched, since its name says that it only tells of errors: {names}; --log FILE reads it as a log",
            f"未检查（从文件名看只是说明文档）：{names}；可用 --log 文件 按日志读取",
        ),
    )


def contradictions(seen: Evidence) -> tuple[str, ...]:
    """Which of the files are about different servers. Also told by `fix`."""
    from dstune.derive import disagreements

    pairs: dict[tuple[str, str], list[tuple[Fact, Fact]]] = {}
    for a, b in disagreements(seen):
        pairs.setdefault((a.source, b.source), []).append((a, b))
    return tuple(
        redact(
            say(
                f"{one} and {two} describe different servers: {_differ(both)}. What stands in one is not held against the other; "
                "if they are meant to be the same, one of them is out of date.",
                f"{one} 与 {two} 描述的不是同一个服务：{_differ(both)}。两者的内容互不套用；若本应是同一个，则其中一份已过期。",
            )
        )
        for (one, two), both in pairs.items()
    )


def _differ(pairs: list[tuple[Fact, Fact]]) -> str:
    return say("; ", "；").join(f"{a.name} {_short(a)} / {_short(b)}" for a, b in pairs)


def _short(fact: Fact) -> str:
    return f"{fact.value:.0f}" if isinstance(fact.value, float) else str(fact.value)


def _next(diagnosis: Diagnosis, files: tuple[str, ...]) -> tuple[str, ...]:
    """The command that shows the changes, where a cause stands in a file that `fix` can change."""
    import shlex

    from dstune.readers import recognise

    causes = [f for f in diagnosis.findings if any(x.edit or x.set for x in f.fixes)]
    cited = {cite.source for f in causes for cite in f.evidence}
    if not any(p in cited and recognise(p, "") != "log" for p in files):
        return ()
    command = " ".join(["dstune fix", *(shlex.quote(p) for p in files if p != "-")])
    return (
        say(
            f"next: {command} shows as a diff what dstune can change itself", f"下一步：{command} 以 diff 显示可自动修改的部分"
        ),
    )


def _machine(seen: Evidence) -> str:
    """What was looked at: "no fault" about a machine whose card was never seen would read as "all is well"."""
    value = {f"{f.subject}.{f.name}": f.value for f in reversed(seen.facts)}
    cards, servers = value.get("gpu.count", 0), value.get("server.count", 0)
    whose = f" ({redact(str(value['python.executable']))})" if "python.executable" in value else ""
    unread = next((g.reason for g in seen.gaps if g.subject == "gpu" and g.name in ("*", "count")), "")
    said = [
        say(f"NVIDIA GPUs not read: {redact(unread)}", f"NVIDIA 显卡未读取：{redact(unread)}")
        if not cards and unread and "driver.version" in value
        else say(f"{cards} NVIDIA GPU{'s' * (cards != 1)}", f"NVIDIA 显卡 {cards} 块"),
        say("driver ", "驱动") + str(value.get("driver.version") or say("not found", "未找到")),
        *(
            f"{name} {value[key]}{own}"
            for name, key, own in (("Python", "python.version", ""), ("torch", "torch.build", whose))
            if key in value
        ),
        *([say("in a container", "在容器内")] if value.get("container.inside") else []),
        say(f"{servers} model server{'s' * (servers != 1)} running", f"运行中的模型服务 {servers} 个"),
    ]
    return say("This machine: ", "本机：") + " · ".join(said) + say(" (all of it: dstune probe)", "（全部内容：dstune probe）")


def gather(
    files: tuple[str, ...] = (),
    logs: tuple[str, ...] = (),
    said_facts: str | None = None,
    evidence: tuple[str, ...] = (),
    metrics: str | None = None,
    endpoint: str | None = None,
    look: bool = False,
    python: str | None = None,
    models: tuple[str, ...] = (),
    runs: tuple[str, ...] = (),
) -> Evidence:
    """All evidence that the options name. Also used by `fix`."""
    elsewhere: frozenset[str] = frozenset()
    programs: list[str] = []
    seen = load_evidence(evidence)
    if said_facts:
        seen = seen.merged(_said(said_facts))
    if files or logs:
        from dstune.readers import read_files

        waits((*files, *logs))
        found, documents = read_files([*files, *logs], dict.fromkeys(logs, "log"), progress=progress)
        seen = found.merged(seen)
        elsewhere = _environments(documents)
        programs = [d.path for d in documents if d.kind == "app"]
    if metrics:
        from dstune.probes.server import read_metrics

        try:
            with open(metrics, encoding="utf-8", errors="replace") as f:
                seen = seen.plus(read_metrics(f.read(), metrics))
        except OSError as error:
            raise UnobservableError(f"{metrics}: {error.strerror}", "", say("check the path", "检查路径")) from None
    for path in runs:
        seen = seen.merged(of_run(path))
    host = Evidence()
    if look or python or models:
        from dstune.probes import collect

        host = collect(
            None if look else (["software"] if python else []) + (["models"] if models else []),
            python=python,
            model_dirs=models,
        )
        host = host if python else _not_of_others(_same_environment(_same_machine(host, seen), elsewhere), programs)
    if endpoint:
        from dstune.probes.server import read_endpoint, subject_of

        seen = seen.merged(read_endpoint(endpoint, subject=subject_of(seen.merged(host), endpoint)))
    seen = seen.merged(host)
    return _served(seen, look, models)


def _served(seen: Evidence, look: bool, models: tuple[str, ...]) -> Evidence:
    """With what the processes on the cards serve: of this machine, read here; of evidence, the model that `--model` names."""
    if next(seen.find("process", "gpu"), None) is None:
        return seen
    from dstune.serving import assumed, known

    seen = seen.plus(known(seen)) if look else seen
    return seen.plus(assumed(seen, models[0])) if models else seen


_SITE = re.compile(r"""["'\s(](/[^\s"'<>|:]+?)/(?:local/)?lib(?:64)?/python3[^/\s]*/(?:site|dist)-packages/""")


def _environments(documents: Sequence[Document]) -> frozenset[str]:
    """Python environments whose files stand in the tracebacks of the logs."""
    return frozenset(m[1] for d in documents if d.kind == "log" for m in _SITE.finditer(" " + d.text))


def _same_environment(host: Evidence, named: frozenset[str]) -> Evidence:
    """The host's evidence without the packages of environments that the log does not name: another venv's transformers proves
    nothing about the program that failed. Without tracebacks everything stays.
    """
    if not named:
        return host
    apart = {
        f.subject.removeprefix("python") for f in host.facts
        if f.name == "executable" and family_of(f.subject) == "python" and not any(str(f.value).startswith(n + "/") for n in named)
    }  # fmt: skip
    return replace(host, facts=tuple(f for f in host.facts if not _of_environment(f.subject, apart)))


def _same_machine(host: Evidence, seen: Evidence) -> Evidence:
    """The host's evidence without its packages, where the files show a card and this machine has none: the program ran elsewhere."""
    here = {f"{f.subject}.{f.name}": f.value for f in host.facts}
    if here.get("gpu.count") != 0 or not any(family_of(f.subject) == "gpu" and f.name == "name" for f in seen.facts):
        return host
    every = {f.subject.removeprefix("python") for f in host.facts if family_of(f.subject) == "python"}
    return replace(host, facts=tuple(f for f in host.facts if not _of_environment(f.subject, every)))


def _not_of_others(host: Evidence, programs: Sequence[str]) -> Evidence:
    """The host's evidence without the environments of servers that run none of these programs: what another server has installed
    says nothing about a program, and would come and go with it.
    """
    import os

    mine = {os.path.realpath(p) for p in programs}
    for command in host.find("server", "command"):
        folder = next((str(f.value) for f in host.facts if (f.subject, f.name) == (command.subject, "working_directory")), "")
        if any(os.path.realpath(os.path.join(folder, word)) in mine for word in str(command.value).split()):
            return host
    if not mine:
        return host
    apart = {
        f.subject.removeprefix("python") for f in host.facts
        if f.name == "role" and family_of(f.subject) == "python" and f.value == "server"
    }  # fmt: skip
    return replace(host, facts=tuple(f for f in host.facts if not _of_environment(f.subject, apart)))


def _of_environment(subject: str, numbers: set[str]) -> bool:
    return any(subject.removeprefix(family) in numbers for family in ("python", "torch") if family_of(subject) == family)


def of_run(path: str) -> Evidence:
    """Evidence of a saved load test: its figures as facts, the server's words and odd texts as a log. Raises `DstuneError`."""
    try:
        with open(path, encoding="utf-8") as f:
            data: Any = parse_json(f.read())
        found = of_report(data, path)
    except OSError as error:
        raise UnobservableError(f"{path}: {error.strerror}", "", say("check the path", "检查路径")) from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError):
        raise DstuneError(
            say(f"{path} is no report of dstune bench", f"{path} 不是 dstune bench 的报告"), "", "dstune bench URL -o run.json"
        ) from None
    if not found.facts:
        raise DstuneError(say(f"{path} holds no load test", f"{path} 中没有压测结果"), "", "dstune bench URL -o run.json")
    return found


def of_report(data: dict[str, Any], source: str) -> Evidence:
    """The same of a report at hand."""
    from dstune.load.evidence import facts, words
    from dstune.model import Document
    from dstune.readers import read_document

    found, text = Evidence(tuple(facts(data, source))), words(data)
    return found.merged(read_document(Document(source, "log", text))) if text and found.facts else found


def _said(path: str) -> Evidence:
    from dstune.catalog.vocabulary import said

    try:
        with open(path, encoding="utf-8") as f:
            data: Any = parse_json(f.read())
    except (OSError, ValueError) as error:
        raise DstuneError(
            f"{path}: {say('no readable JSON', '不是可读的 JSON')}", str(error), '{"gpu.name": "Tesla T4"}'
        ) from None
    if not isinstance(data, dict):
        raise DstuneError(f"{path}: {say('not an object', '不是对象')}", "", '{"gpu.name": "Tesla T4"}')
    items = said(data, path)
    return Evidence(tuple(i for i in items if isinstance(i, Fact)), tuple(i for i in items if not isinstance(i, Fact)))
