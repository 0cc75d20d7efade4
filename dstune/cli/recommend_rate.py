"""The options of `dstune recommend --rate`, and the lengths they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dstune.errors import DstuneError
from dstune.lang import say

if TYPE_CHECKING:
    from dstune.plan.simulate_load import Lengths


def rate_options(function: Any) -> Any:
    """Adds `--rate --lengths --workload --seed`."""
    for option in (
        click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help=say("Of the simulated load.", "模拟负载的随机种子。")),
        click.option(
            "--workload", type=click.Path(), help=say("Lengths of a run that dstune bench -o saved.", "使用 dstune bench -o 保存的压测中的长度。")
        ),
        click.option(
            "--lengths", type=click.Choice(["lognormal", "fixed"]), default="lognormal", show_default=True,
            help=say("How lengths spread around --prompt and --output.", "长度围绕 --prompt 与 --output 的分布。"),
        ),
        click.option(
            "--rate", type=click.FloatRange(0, min_open=True),
            help=say(
                "Requests per second to serve: simulates the load, gives the knee and the replicas.",
                "要服务的每秒请求数：模拟负载，给出拐点与所需副本数。",
            ),
        ),
    ):  # fmt: skip
        function = option(function)
    return function


MOST = 1e6


def rate_of(rate: float | None) -> float | None:
    """The rate, if it is one. Raises `DstuneError` for what no comparison catches (nan) and for more than a million a second."""
    if rate is None or 0 < rate <= MOST:
        return rate
    raise DstuneError(
        say(f"{rate:g} is no number of requests per second", f"{rate:g} 不是每秒请求数"),
        say("above 0, at most a million", "应大于 0，至多一百万"),
        "--rate 20",
    )


def lengths(kind: str, prompt: float, output: float, workload: str | None) -> Lengths:
    """The lengths to simulate. Raises `DstuneError` for a file without any."""
    from dstune.plan.simulate_load import OUTPUT_CV, PROMPT_CV, Lengths

    if workload is None:
        spread = (PROMPT_CV, OUTPUT_CV) if kind == "lognormal" else (0.0, 0.0)
        return Lengths(prompt, output, *spread)
    from dstune.cli.bench_compare import outcomes

    pairs: list[tuple[int, int]] = []
    trials = outcomes(workload)
    for trial in trials:
        told = trial.get("lengths")
        if isinstance(told, dict):
            try:
                pairs += [
                    (int(p), int(o)) for p, o in zip(told["prompt"], told["output"], strict=True) if int(p) > 0 and int(o) > 0
                ]
            except (KeyError, TypeError, ValueError):
                pairs = []
                break
    if pairs:
        count = len(pairs)
        return Lengths(sum(p for p, _ in pairs) / count, sum(o for _, o in pairs) / count, pairs=tuple(pairs))
    try:  # a run of before lengths were kept: its means
        answered = sum(int(t["requests"]["ok"]) for t in trials)
        told_in, told_out = (sum(int(t[k] or 0) for t in trials) for k in ("prompt_tokens", "output_tokens"))
        if answered > 0 and told_in > 0 and told_out > 0:
            return Lengths(told_in / answered, told_out / answered)
    except (KeyError, TypeError, ValueError):
        pass
    raise DstuneError(
        say(f"{workload} does not say how long its requests were", f"{workload} 没有记录请求的长度"),
        say("no answer, or a server that counts no tokens", "没有得到回答，或服务端不统计 token"),
        "dstune bench URL --model-dir DIR -o run.json",
    )
