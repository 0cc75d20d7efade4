"""`dstune bench`: how fast a server is, where the time goes, what breaks at which load."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click

from dstune.cli.options import common, emit, empty, save
from dstune.errors import DstuneError, Exit
from dstune.lang import say
from dstune.model import Trial, Workload


@click.command(
    help=say(
        "Load the server at URL for a short time and report latency, throughput and errors.",
        "对 URL 上的服务做短时压测，报告延迟、吞吐和错误。",
    )
)
@click.argument("url")
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
    type=click.FloatRange(min=0.01),
    help=say("Requests per second (Poisson arrivals) instead of a concurrency.", "每秒请求数（泊松到达），代替并发数。"),
)
@click.option("--sweep", is_flag=True, help=say("Double the concurrency until it no longer pays.", "并发翻倍直到不再有收益。"))
@click.option("--duration", default="30s", show_default=True, help=say("Length of the load: 30s, 2m.", "压测时长：30s、2m。"))
@click.option(
    "--requests",
    "-n",
    type=click.IntRange(min=1),
    help=say("Number of requests (the duration still bounds).", "请求数（时长仍为上限）。"),
)
@click.option(
    "--profile",
    default="chat",
    show_default=True,
    help=say(
        "chat, math, code, zh, long, or a file with one prompt a line.", "chat、math、code、zh、long，或每行一个提示词的文件。"
    ),
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help=say("Output tokens asked for.", "请求的输出 token 数。"),
)
@click.option(
    "--model", default="", help=say("Model name to ask for (default: the first one served).", "请求的模型名（默认取第一个）。")
)
@click.option(
    "--temperature", type=float, help=say("Sampling temperature (default: the server's).", "采样温度（默认用服务端的）。")
)
@click.option("--slo-ttft", type=float, help=say("Objective for the first token in ms (goodput).", "首 token 目标，毫秒。"))
@click.option("--slo-itl", type=float, help=say("Objective per output token in ms (goodput).", "每 token 目标，毫秒。"))
@click.option(
    "--timeout",
    type=float,
    default=120.0,
    show_default=True,
    help=say("Seconds until a request counts as failed.", "请求超时秒数。"),
)
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
    "--api-key-file",
    type=click.Path(),
    help=say("File with the API key (else OPENAI_API_KEY).", "含 API key 的文件（否则用 OPENAI_API_KEY）。"),
)
@click.option("--insecure", is_flag=True, help=say("Accept any TLS certificate.", "接受任何 TLS 证书。"))
@click.option("-o", "out", type=click.Path(), help=say("Write the report as JSON to a file.", "把 JSON 报告写入文件。"))
@common
def command(
    url: str, concurrency: int, rate: float | None, sweep: bool, duration: str, requests: int | None, profile: str, max_tokens: int, model: str,
    temperature: float | None, slo_ttft: float | None, slo_itl: float | None, timeout: float, warmup: int, repeat: int, api_key_file: str | None,
    insecure: bool, out: str | None, as_json: bool,
) -> int:  # fmt: skip
    from dstune.load.detect import api_key, detect
    from dstune.load.run import Options

    key = api_key(api_key_file)
    headers = (("Authorization", f"Bearer {key}"),) if key else ()
    server = detect(url, dict(headers))
    name = model or (server.models[0] if server.models else "default")
    work = Workload(output_tokens=max_tokens, concurrency=concurrency, rate=rate, slo_ttft_ms=slo_ttft, slo_itl_ms=slo_itl)
    extra: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
    options = Options(
        work, profile, name, seconds(duration), requests, True, warmup, timeout, headers, extra, verify_tls=not insecure
    )  # fmt: skip
    trials = (
        _sweep(server, options)
        if sweep
        else [_one(server, replace(options, seed=i + 1), f"{i + 1}/{repeat}") for i in range(repeat)]
    )
    report = replace(empty("bench"), trials=tuple(trials))
    if out:
        from dstune.report.json import dumps

        save(out, dumps(report) + "\n")
    emit(report, as_json)
    return Exit.OK if any(t.outcome["requests"]["ok"] for t in trials) else Exit.UNOBSERVABLE


def _one(server: Any, options: Any, label: str = "") -> Trial:
    from dstune.load.run import Live, trial
    from dstune.load.stats import percentile

    def tick(live: Live) -> None:
        if not sys.stderr.isatty():
            return
        part = ""
        if live.first_bytes:
            p50, p95 = (1e3 * percentile(live.first_bytes, s) for s in (0.5, 0.95))
            part = say(f" first byte p50 {p50:.0f} p95 {p95:.0f} ms", f" 首字节 p50 {p50:.0f} p95 {p95:.0f} ms")
        print(
            f"\r\x1b[K{label} {live.done} {say('answers', '个回答')}, {live.failed} {say('failed', '失败')}{part}",
            end="",
            file=sys.stderr,
        )

    found, _ = trial(server, options, tick=tick)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return found


def _sweep(server: Any, options: Any) -> list[Trial]:
    from dstune.load.run import sweep

    trials: list[Trial] = []

    def step(work: Workload) -> dict[str, Any]:
        found = _one(server, replace(options, workload=work), f"c={work.concurrency}")
        trials.append(found)
        return found.outcome

    for _ in sweep(options.workload, step):
        pass
    return trials


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
