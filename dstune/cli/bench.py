"""`dstune bench`: how fast a server is, where the time goes, what breaks at which load, whether its text runs away."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import Any

import click

from dstune.cli.options import (
    Number,
    api_key_file_option,
    api_name_option,
    common,
    emit,
    empty,
    profile_option,
    report_option,
    save,
    served_option,
    timeout_option,
)
from dstune.errors import DstuneError, Exit
from dstune.lang import say
from dstune.load.paths import PATHS
from dstune.model import Report
from dstune.model.plan import Trial, Workload

SWEEP_STEP_S = 6.0
"""Seconds of one step of a sweep: eight steps stay under a minute."""


@click.command(
    help=say(
        "Load the server at URL for a short time and report latency, throughput and errors.\n\n"
        "\b\n  dstune bench http://127.0.0.1:8000\n  dstune bench --gradio http://127.0.0.1:7860\n  dstune bench --local ./model\n  dstune bench compare before.json after.json",
        "对 URL 上的服务做短时压测，报告延迟、吞吐和错误。\n\n"
        "\b\n  dstune bench http://127.0.0.1:8000\n  dstune bench --gradio http://127.0.0.1:7860\n  dstune bench --local ./model\n  dstune bench compare before.json after.json",
    )
)
@click.argument("url", nargs=-1, metavar="[URL | compare A B]")
@click.option("--gradio", metavar="URL", help=say("A Gradio app, by --gradio-path.", "Gradio 应用，方式见 --gradio-path。"))
@click.option(
    "--gradio-path",
    type=click.Choice(PATHS),
    default=PATHS[0],
    show_default=True,
    help=say(
        "Way into the Gradio app: queue as its page does, call (API, same queue), direct (bypasses the queue).",
        "进入 Gradio 应用的方式：queue（与网页相同）、call（call API，同一队列）、direct（绕过队列）。",
    ),
)
@click.option(
    "--local", metavar="DIR", help=say("A model directory, loaded bare by a child process.", "模型目录，由子进程直接加载。")
)
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 4096),
    default=8,
    show_default=True,
    help=say("Clients that ask again when answered.", "并发客户端数。"),
)
@click.option(
    "--rate",
    type=Number(0.01, 100_000),
    help=say("Requests per second (Poisson arrivals) instead.", "每秒请求数（泊松到达），代替并发数。"),
)
@click.option("--sweep", is_flag=True, help=say("Double the concurrency until it no longer pays.", "并发翻倍直到不再有收益。"))
@click.option(
    "--behaviour", is_flag=True, help=say("Ask what brings runaway text out, and count it.", "用易诱发异常的问题检查文本行为。")
)
@click.option("--duration", default=None, help=say("Length of the load: 30s (default), 2m.", "压测时长：30s（默认）、2m。"))
@click.option(
    "--requests",
    "-n",
    type=click.IntRange(min=1),
    help=say("Number of requests (the duration still bounds).", "请求数（时长仍为上限）。"),
)
@profile_option
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help=say("Output tokens asked for.", "请求的输出 token 数。"),
)
@served_option
@click.option(
    "--temperature",
    type=Number(0, 100),
    help=say("Sampling temperature (default: the server's).", "采样温度（默认用服务端的）。"),
)
@click.option(
    "--slo-ttft",
    type=Number(0, min_open=True),
    help=say("Objective for the first token in ms (goodput).", "首 token 目标，毫秒。"),
)
@click.option(
    "--slo-itl", type=Number(0, min_open=True), help=say("Objective per output token in ms (goodput).", "每 token 目标，毫秒。")
)
@timeout_option(0.01)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help=say("Requests before the measurement.", "预热请求数。"),
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 20),
    default=1,
    show_default=True,
    help=say("Runs, for the spread.", "重复次数，用于估计波动。"),
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    help=say("Client processes (default: one per 512 clients).", "客户端进程数（默认每 512 个客户端一个）。"),
)
@click.option(
    "--model-dir",
    type=click.Path(),
    help=say(
        "Count tokens by this tokenizer.json where the server does not.",
        "服务不报告 token 数时，用该目录的 tokenizer.json 统计。",
    ),
)
@api_name_option
@click.option("--python", help=say("Interpreter for --local.", "--local 使用的 Python。"))
@click.option(
    "--random-weights",
    is_flag=True,
    help=say("With --local: the shape of config.json, random weights.", "配合 --local：只用 config.json 的结构，随机权重。"),
)
@api_key_file_option
@click.option("--insecure", is_flag=True, help=say("Accept any TLS certificate.", "接受任何 TLS 证书。"))
@report_option
@common
def command(url: tuple[str, ...], gradio: str | None, local: str | None, out: str | None, as_json: bool, **options: Any) -> int:
    _agree()
    if out:
        _writable(out)
    if url[:1] == ("compare",):
        from dstune.cli.bench_compare import compare

        report = compare(url[1:])
    elif local:
        report = _local(local, options)
    else:
        where = [*url, *([gradio] if gradio else [])]
        if len(where) != 1:
            raise DstuneError(
                say("no server given", "没有给出服务") if not where else say("more than one server given", "给出了多个服务"),
                " ".join(where), "dstune bench http://127.0.0.1:8000",
            )  # fmt: skip
        report = _serve(where[0], options, bool(gradio))
    emit(report, as_json)  # before the file: a full disk must not cost the load
    if out:
        from dstune.report.json import dumps

        save(out, dumps(report) + "\n")
    if report.verdicts:
        return Exit.OK if all(v.met for v in report.verdicts) else Exit.FINDINGS
    return Exit.OK if any(t.outcome["requests"]["ok"] for t in report.trials) else Exit.UNOBSERVABLE


_ALONE = {
    "--gradio": ("max_tokens", "temperature", "model"),
    "--local": ("gradio", "sweep", "rate", "behaviour", "repeat", "requests", "profile", "workers"),
    "--behaviour": ("sweep", "rate", "repeat", "requests", "duration", "profile", "workers"),
    "--sweep": ("rate", "concurrency", "repeat"),
    "--rate": ("concurrency",),
}
"""Options beside which these say nothing."""


def _agree() -> None:
    """Raises `DstuneError` for options of which one would be dropped without a word."""
    context = click.get_current_context()

    def given(name: str) -> bool:
        return context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT

    if given("gradio_path") and not given("gradio"):
        raise DstuneError(
            say("--gradio-path needs --gradio URL", "--gradio-path 需要 --gradio URL"),
            say("no other server has these ways", "其他服务没有这些方式"),
            "dstune bench --gradio http://127.0.0.1:7860 --gradio-path call",
        )
    for flag, others in _ALONE.items():
        if given(flag[2:]) and (unheard := [f"--{o}".replace("_", "-") for o in others if given(o)]):
            raise DstuneError(
                say(f"{flag} takes no {', '.join(unheard)}", f"{flag} 不能与 {'、'.join(unheard)} 同用"),
                say(
                    "the app is asked as its page asks: with the values that its controls start with",
                    "对应用的请求与其网页相同：使用各控件的初始值",
                )
                if flag == "--gradio"
                else say("each says how to load, and only one can be done", "两者都规定了加载方式，只能取其一"),
                "dstune bench --help",
            )


def _serve(url: str, o: dict[str, Any], gradio: bool = False) -> Report:
    from dstune.load.detect import api_key, detect
    from dstune.load.run import Options

    length = SWEEP_STEP_S if o["sweep"] else 30.0
    if o["duration"] is not None:
        length = seconds(o["duration"])
    key = api_key(o["api_key_file"])
    headers = (("Authorization", f"Bearer {key}"),) if key else ()
    server = detect(url, dict(headers), gradio, not o["insecure"])
    work = Workload(
        output_tokens=o["max_tokens"],
        concurrency=o["concurrency"],
        rate=o["rate"],
        slo_ttft_ms=o["slo_ttft"],
        slo_itl_ms=o["slo_itl"],
    )
    extra: dict[str, Any] = {} if o["temperature"] is None else {"temperature": o["temperature"]}
    name = o["model"] or (server.models[0] if server.models else "default")
    if o["model_dir"]:
        from dstune.load.count import counter

        counter(o["model_dir"])
    options = Options(
        work, o["profile"], name, length, o["requests"], True, o["warmup"], o["timeout"], headers, extra, verify_tls=not o["insecure"],
        api_name=o["api_name"], gradio_path=o["gradio_path"], tokenizer=o["model_dir"] or "",
    )  # fmt: skip
    if o["behaviour"]:
        return _talk(server, options)
    workers = o["workers"]
    if o["sweep"]:
        trials = _sweep(server, options, workers)
    else:
        trials = []
        for i in range(o["repeat"]):
            label = f"{i + 1}/{o['repeat']}" if o["repeat"] > 1 else ""
            try:
                trials.append(_one(server, replace(options, seed=i + 1), workers, label))
            except KeyboardInterrupt:  # while this run warmed up: the runs so far are the report
                if not trials:
                    raise
                break
            if trials[-1].outcome.get("interrupted"):
                if len(trials) > 1 and not trials[-1].outcome["requests"]["ok"]:
                    trials.pop()
                    trials[-1].outcome["interrupted"] = True
                break
    return replace(empty("bench"), trials=tuple(trials))


def talk(url: str) -> Report:
    """What `--behaviour` finds at a URL with everything at its default; also asked by `dstune doctor`. Raises `DstuneError`."""
    from dstune.load.detect import api_key, detect
    from dstune.load.run import Options

    key = api_key(None)
    headers = (("Authorization", f"Bearer {key}"),) if key else ()
    server = detect(url, dict(headers))
    return _talk(
        server, Options(Workload(concurrency=8), model=server.models[0] if server.models else "default", headers=headers)
    )


def _talk(server: Any, options: Any) -> Report:
    if server.dialect == "gradio":
        raise DstuneError(
            say("--behaviour needs an OpenAI-compatible API", "--behaviour 需要 OpenAI 兼容接口"),
            say("a Gradio page takes no temperature and no system prompt", "Gradio 页面不接受温度和系统提示词"),
            "dstune bench http://127.0.0.1:8000 --behaviour",
        )
    from dstune.load.behave import behave

    trial, rows = behave(server, options, _progress(""))
    return replace(empty("bench"), trials=(trial,), behaviours=tuple(rows))


def _progress(label: str) -> Any:
    from dstune.load.stats import percentile

    def tick(live: Any) -> None:
        if not sys.stderr.isatty():
            return
        part = ""
        if live.warming:
            waited = time.perf_counter() - live.warming
            words = say(f"warming up: {waited:.0f} s", f"预热中：{waited:.0f} 秒")
            print(f"\r\x1b[K{label} {words}", end="", file=sys.stderr)
            return
        if live.first_bytes:
            p50, p95 = (1e3 * percentile(live.first_bytes, s) for s in (0.5, 0.95))
            part = say(f" first byte p50 {p50:.0f} p95 {p95:.0f} ms", f" 首字节 p50 {p50:.0f} p95 {p95:.0f} ms")
        print(
            f"\r\x1b[K{label} {live.done} {say('answers', '个回答')}, {live.failed} {say('failed', '失败')}{part}",
            end="",
            file=sys.stderr,
        )

    return tick


def _one(server: Any, options: Any, workers: int | None, label: str = "") -> Trial:
    from dstune.cli.bench_beside import Beside
    from dstune.load.run import Live, processes, trial

    workers = workers or (processes(options.workload.concurrency) if options.workload.rate is None else 1)
    beside = Beside(server.base, options.headers, server.metrics, options.verify_tls)
    live, tick = Live(), _progress(label)
    try:
        if workers > 1:
            from dstune.load.workers import trial as trial_of_many

            found = trial_of_many(server, options, workers, live, tick, beside.begin)
        else:
            found, _ = trial(server, options, live, tick, beside.begin)
    finally:
        seen = beside.end()
    if "server" in seen:
        seen["server"] = {**found.outcome.get("server", {}), **seen["server"]}
    found.outcome.update(seen)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return found


def _sweep(server: Any, options: Any, workers: int | None) -> list[Trial]:
    from dstune.load.sweep import sweep

    trials: list[Trial] = []

    def step(work: Workload) -> dict[str, Any]:
        # each client asks at least once, or the step would be one of fewer clients
        count = options.requests and max(options.requests, work.concurrency)
        found = _one(server, replace(options, workload=work, requests=count), workers, f"c={work.concurrency}")
        trials.append(found)
        return found.outcome

    for _ in sweep(options.workload, step, 512 * (workers or 1)):
        pass
    return trials


def _local(folder: str, o: dict[str, Any]) -> Report:
    from dstune.load.local import run

    def seen(event: dict[str, Any]) -> None:
        if sys.stderr.isatty() and event["event"] in ("loaded", "run"):
            what = (
                f"{event['device']}, {event['dtype']}"
                if event["event"] == "loaded"
                else f"batch {event['batch']}, pass {event['number'] + 1}"
            )
            print(f"{event['event']}: {what}", file=sys.stderr)

    asked = click.get_current_context().get_parameter_source("concurrency") is not click.core.ParameterSource.DEFAULT
    trials = run(
        folder, o["python"] or "", (o["concurrency"],) if asked else (1, 8, 32), tokens=o["max_tokens"], random=o["random_weights"],
        seconds=seconds(o["duration"]) if o["duration"] else 30.0, seen=seen,
    )  # fmt: skip
    return replace(empty("bench"), trials=tuple(trials))


def _writable(path: str) -> None:
    """Before half a minute of load: whether the report can be written there. Raises `DstuneError`."""
    folder = os.path.dirname(os.path.abspath(path))
    why = ""
    if os.path.isdir(path):
        why = say("this is a folder", "这是一个文件夹")
    elif not os.path.isdir(folder):
        why = say(f"there is no folder {folder}", f"文件夹 {folder} 不存在")
    elif not os.access(folder, os.W_OK) and not (os.path.exists(path) and not os.path.isfile(path)):
        why = say(f"{folder} cannot be written", f"{folder} 不可写")
    if why:
        raise DstuneError(say(f"no report can be written to {path}", f"无法把报告写入 {path}"), why, "-o run.json")


def seconds(text: str) -> float:
    """Seconds of `30s`, `2m`, `1h` or a bare number. Raises `DstuneError`."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:], 0.0)
    try:
        value = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise DstuneError(say(f"{text!r} is no duration up to an hour", f"{text!r} 不是一小时以内的时长"), "", "--duration 30s")
    return value
