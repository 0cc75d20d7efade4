"""`dstune verify BEFORE AFTER`: both under the same load, one after the other, and whether anything got better or worse."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import click

from dstune.cli.options import (
    api_key_file_option,
    api_name_option,
    common,
    empty,
    profile_option,
    report_option,
    served_option,
    timeout_option,
)
from dstune.cli.verify_sides import Measured, Side, command_side, like, measure, saved, side_of, talk
from dstune.errors import DstuneError, Exit, UnobservableError
from dstune.lang import say
from dstune.load.launch import Workspace
from dstune.load.verify import Bench
from dstune.model import Report
from dstune.model.plan import Verdict
from dstune.verify import compare

_EXAMPLES = (
    "\b\n  dstune verify app.py fixed/app.py\n  dstune verify launch.sh my-chat/\n"
    '  dstune verify http://127.0.0.1:8000 --after-cmd "vllm serve MODEL"\n  dstune verify before.json http://127.0.0.1:8000'
)


@click.command(
    help=say(
        "Ask BEFORE and AFTER the same, one after the other, and say what got better or worse.\n\n"
        "A side is a program that is started for it (app.py, a shell script, a folder of `generate`), a running server's URL, or a run saved by "
        "`dstune bench -o`. Programs run on this machine as you, with sampling off and the length of answers capped "
        "(--as-is: as they are), on a free port of 127.0.0.1, and are ended afterwards. Exit 0: nothing got worse; 1: something did.\n\n"
        + _EXAMPLES,
        "对 BEFORE 和 AFTER 依次施加同样的负载，说明哪些变好、哪些变差。\n\n"
        "每一侧可以是为此启动的程序（app.py、shell 脚本、`generate` 生成的文件夹）、正在运行的服务 URL，或 `dstune bench -o` 保存的结果。"
        "程序以你的身份在本机运行：关闭采样并限制回答长度（--as-is 则保持原样），只监听 127.0.0.1 的空闲端口，结束后全部停止。"
        "退出码 0：没有变差；1：有变差。\n\n" + _EXAMPLES,
    )
)
@click.argument("sides", nargs=-1, metavar="[BEFORE] [AFTER]", type=click.Path())
@click.option("--before-cmd", metavar="LINE", help=say("A command line as BEFORE.", "以命令行作为 BEFORE。"))
@click.option("--after-cmd", metavar="LINE", help=say("A command line as AFTER.", "以命令行作为 AFTER。"))
@click.option(
    "--clients", "-c", type=click.IntRange(1, 512), default=4, show_default=True, help=say("Users at once.", "并发用户数。")
)
@click.option(
    "--requests",
    "-n",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help=say("Questions of theirs a pass.", "每轮由他们提出的问题数。"),
)
@profile_option
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help=say("Most tokens of an answer.", "每个回答的最多 token 数。"),
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help=say("Passes over each side, for the spread.", "每侧的轮数，用于估计波动。"),
)
@click.option(
    "--warmup",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help=say("Answers that nobody counts.", "不计入的预热回答数。"),
)
@timeout_option(1)
@click.option(
    "--patience",
    type=click.FloatRange(0.05),
    default=10.0,
    show_default=True,
    help=say("Seconds that a user looks at an empty page.", "用户面对空白页面的耐心秒数。"),
)
@click.option(
    "--start-timeout",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    help=say("Seconds until a program must serve.", "程序须在多少秒内开始服务。"),
)
@click.option("--as-is", is_flag=True, help=say("Leave sampling and length to the programs.", "不干预程序的采样与长度。"))
@served_option
@api_name_option
@click.option(
    "--python",
    default="",
    help=say(
        "Interpreter of the programs (default: a venv beside each, else python on PATH).",
        "程序使用的 Python（默认取其旁边的 venv，否则取 PATH 中的）。",
    ),
)
@api_key_file_option
@report_option
@common
def command(
    sides: tuple[str, ...], before_cmd: str | None, after_cmd: str | None, out: str | None, as_json: bool, **options: Any
) -> int:
    before, after = _sides(sides, before_cmd, after_cmd, options["python"])
    report, data = verified(before, after, bench_of(options), options["start_timeout"])
    if out:
        from dstune.cli.options import save

        save(out, json.dumps(data, ensure_ascii=False, indent=1) + "\n")
    if as_json:
        click.echo(json.dumps(data, ensure_ascii=False, indent=1))
    else:
        from dstune.redact import printable
        from dstune.report import FORMATS

        click.echo(printable(data["load"] + "\n\n" + FORMATS["text"](report)))
    return Exit.FINDINGS if data["worse"] else Exit.OK


def _sides(words: tuple[str, ...], before_cmd: str | None, after_cmd: str | None, python: str) -> tuple[Side, Side]:
    given = list(words)
    if len(given) + (before_cmd is not None) + (after_cmd is not None) != 2:
        raise DstuneError(
            say("verify compares two: BEFORE and AFTER", "verify 需要两侧：BEFORE 与 AFTER"),
            "",
            "dstune verify app.py fixed/app.py",
        )
    before = command_side("before", before_cmd) if before_cmd is not None else side_of("before", given.pop(0), python)
    after = command_side("after", after_cmd) if after_cmd is not None else side_of("after", given.pop(0), python)
    return before, after


def bench_of(o: dict[str, Any]) -> Bench:
    """The bench of the options. Raises `DstuneError` for an unknown profile before anything is started."""
    from dstune.load.detect import api_key

    key = api_key(o["api_key_file"])
    bench = Bench(
        o["clients"], o["requests"], o["max_tokens"], o["profile"], o["repeat"], o["warmup"], o["timeout"], o["patience"], not o["as_is"],
        o["api_name"], (("Authorization", f"Bearer {key}"),) if key else (), o["model"],
    )  # fmt: skip
    assert bench.questions
    return bench


def verified(before: Side, after: Side, bench: Bench, within_s: float) -> tuple[Report, dict[str, Any]]:
    """Measures both and compares: the report for people, and its JSON object with `worse`, `conclusion`, `texts` and both `sides`.

    A server that runs already is looked at first, so that nothing is started in vain; a page of Gradio that runs already cannot be held
    to greedy decoding, and then nothing is.
    """
    from dstune.report.verify import busy, conclusion, head, lines
    from dstune.verify import answers

    given = {s.name: saved(s) for s in (before, after) if s.path}
    for found in given.values():
        if len(given) == 1:
            bench = like(found.outcomes, bench)
    bench = _held(bench, [s for s in (before, after) if s.url])
    with Workspace() as room:
        a, b = (given.get(s.name) or measure(s, bench, room.folder, within_s) for s in (before, after))
        room.keep = bool(a.failed or b.failed)
        _observed(a, b, room)
    verdicts = _verdicts(a, b)
    if not verdicts:
        raise DstuneError(say("the two have no figure in common", "两侧没有可比较的数字"), "", "dstune bench URL -o run.json")
    texts = answers(bench.questions, a.answers, b.answers, a.held and b.held)
    told = head(
        _facts(a), _facts(b), bench.clients, bench.requests, len(a.trials or b.trials), bench.tokens if bench.held else 0
    )
    last = conclusion(verdicts, texts)
    report = replace(
        empty("verify"),
        trials=(*a.trials, *b.trials),
        verdicts=verdicts,
        notes=(*lines(texts), *busy(_facts(a), _facts(b)), last),
    )
    return report, _json(report, a, b, texts, told, last)


def _observed(a: Measured, b: Measured, room: Workspace) -> None:
    """Raises where neither side answered anything: there is nothing to compare then."""
    if (a.talks or b.talks) if a.failed or b.failed else (a.answered or b.answered):
        return
    room.keep = bool(b.side.program or a.side.program)
    whys = [f"{m.side.name}: {m.failed.why}" for m in (a, b) if m.failed]
    logged = b.side.name if b.side.program else a.side.name
    raise UnobservableError(
        say("neither side answered a single request", "两侧都没有回答任何请求"),
        "; ".join(whys) if whys else a.words or b.words or "; ".join(_facts(b)["errors"]),
        f"dstune doctor --log {os.path.join(room.folder, logged)}.log" if room.keep else "",
    )


def _verdicts(a: Measured, b: Measured) -> tuple[Verdict, ...]:
    """Figure by figure; where one side does not serve at all or answers nothing, that alone."""
    if a.failed or b.failed:
        name = "answers" if a.silent or b.silent else "serves"
        sides = ([{name: float(not m.failed), "requests": {"failed": 0}}] for m in (a, b))
        return tuple(compare(*sides)[:1])
    return tuple(compare(a.outcomes, b.outcomes))


def _held(bench: Bench, running: list[Side]) -> Bench:
    from dstune.load.detect import detect
    from dstune.load.verify import door

    for side in running:
        server = door(detect(side.url, dict(bench.headers)), dict(bench.headers))
        if server.dialect == "gradio" and bench.held:
            talk(
                say(
                    f"{side.name}: a page that runs already decodes as it was written; so does the other side now (as --as-is)",
                    f"{side.name}：已在运行的页面按自身设置解码，另一侧也同样处理（等同 --as-is）",
                )
            )
            bench = replace(bench, held=False)
    return bench


def _facts(m: Measured) -> dict[str, Any]:
    """What is told about a side."""
    server = m.server
    busy = [
        max(c["utilization_pct"]["mean"] for c in o["gpu"])
        for o in m.outcomes
        if o.get("gpu") and "utilization_pct" in o["gpu"][0]
    ]
    errors = sorted({f"{k}: {o.get('error_words', {}).get(k, '')}"[:200].rstrip(": ") for o in m.outcomes for k in _kinds(o)})
    return {
        "side": m.side.name, "given": m.side.shown, "server": server.kind if server else None, "version": server.version if server else None,
        "door": server.dialect if server else None, "up_s": m.up_s, "held": m.held, "passes": len(m.outcomes),
        "others_cores": _mean([o["others_cores"] for o in m.outcomes if "others_cores" in o]), "gpu_busy_pct": _mean(busy), "gpu_memory_by": "process" if m.per_process else "card",
        "tokens_counted_by": (m.outcomes[-1].get("tokens_counted_by") if m.outcomes else None) or None,
        "silent": m.silent, "failed": f"{m.failed.what}: {m.failed.why}" if m.failed else None,
        "errors": errors + ([m.words] if m.words and errors else []) + ([m.failed.why, f"→ {m.failed.next}"] if m.failed else []),
    }  # fmt: skip


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 2) if values else None


def _kinds(o: dict[str, Any]) -> list[str]:
    return [k for part in (o, o.get("alone") or {}, o.get("pair") or {}) for k in (part.get("errors") or {})]


def _json(report: Report, a: Measured, b: Measured, texts: Any, told: str, last: str) -> dict[str, Any]:
    from dstune.model import to_json
    from dstune.report import FORMATS
    from dstune.verify import word

    data: dict[str, Any] = json.loads(FORMATS["json"](report))
    for row, verdict in zip(data["verdicts"], report.verdicts, strict=True):
        row["verdict"] = word(verdict)
    data["sides"] = [_facts(m) | {"answers": m.answers[:1]} for m in (a, b)]
    data["texts"] = to_json(texts)
    data["worse"] = texts.worse or any(word(v) == "worse" for v in report.verdicts)
    data["conclusion"] = last
    data["load"] = told
    return data
