"""`dstune generate`: Dockerfile, compose file, launch script or configuration, sized for a card."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from dstune.cli.options import (
    common,
    concurrency_option,
    context_option,
    emit,
    empty,
    engine_version_option,
    evidence_option,
    goal_option,
    gpus_option,
    load_evidence,
    vram_limit_option,
)
from dstune.errors import DstuneError, Exit
from dstune.lang import say
from dstune.model import Evidence
from dstune.model.plan import Artifact, Plan, Setting, Workload

if TYPE_CHECKING:
    from dstune.catalog.gpus import Gpu
    from dstune.plan.search import Wish

KINDS = ("app", "dockerfile", "compose", "launch", "config")
ENGINES = ("auto", "vllm", "transformers", "llama.cpp", "sglang", "hf-serve")
CONTAINERS = {"dockerfile", "compose"}


@click.command(
    help=say(
        "Write WHAT for a card: app (a chat server of your own, into a folder), or dockerfile, compose, launch, config (several together; without -o to standard output).",
        "为显卡生成 WHAT：app（自己的聊天服务，写入文件夹），或 dockerfile、compose、launch、config（可同时给多个，不给 -o 时打印到标准输出）。",
    )
)
@click.argument("what", nargs=-1, required=True, type=click.Choice(KINDS))
@click.option("--gpu", help=say("Card, as people or NVML name it; else this host's.", "显卡名；不给则用本机显卡。"))
@gpus_option
@click.option(
    "--model",
    help=say("Catalogue id or a model folder.  [default: DeepSeek-R1-Distill-Qwen-1.5B]", "目录里的模型名或模型文件夹。"),
)
@click.option("--engine", type=click.Choice(ENGINES), default="auto", show_default=True, help=say("Engine.", "引擎。"))
@engine_version_option
@click.option(
    "--driver", default="", help=say("NVIDIA driver of the machine (535 or 535.183.01).", "目标机器的 NVIDIA 驱动版本。")
)
@context_option
@concurrency_option
@goal_option
@vram_limit_option
@click.option(
    "--mode",
    type=click.Choice(["latency", "throughput"]),
    help=say("Of app: one user fastest (default), or many together.", "app 的模式：单用户最快（默认）或多用户合批。"),
)
@click.option(
    "--quantization",
    type=click.Choice(["none", "nf4", "int8"]),
    help=say("Of app: form of the weights; else as the card needs.", "app 的权重格式；不给则按显卡决定。"),
)
@click.option("--port", type=click.IntRange(1, 65535), default=None, help=say("Port on the host.", "主机端口。"))
@click.option(
    "--public",
    is_flag=True,
    help=say("Open the port to the network, not to this machine alone.", "端口对网络开放，而不只是本机。"),
)
@click.option(
    "--app", default="app.py", show_default=True, help=say("Program of a transformers image.", "transformers 镜像运行的程序。")
)
@click.option("-o", "--out", type=click.Path(file_okay=False), help=say("Folder to write into.", "写入的文件夹。"))
@click.option(
    "--force",
    is_flag=True,
    help=say("Replace files that are there (dstune undo takes it back).", "覆盖已有文件（可用 dstune undo 撤销）。"),
)
@evidence_option
@common
def command(
    what: tuple[str, ...],
    gpu: str | None,
    gpus: int | None,
    model: str | None,
    engine: str,
    engine_version: str,
    driver: str,
    context: int | None,
    concurrency: int | None,
    goal: str,
    vram_limit: float | None,
    mode: str | None,
    quantization: str | None,
    port: int | None,
    public: bool,
    app: str,
    out: str | None,
    force: bool,
    evidence: tuple[str, ...],
    as_json: bool,
) -> int:
    from dstune.catalog import models
    from dstune.cli.recommend import R1, host_card
    from dstune.expr import Version
    from dstune.plan.search import Wish
    from dstune.render import Context, render
    from dstune.render.stack import cuda_of

    if driver and not Version(driver).parts:
        raise DstuneError(say(f"{driver!r} is no driver version", f"{driver!r} 不是驱动版本"), "", "--driver 550.54.15")
    program = "app" in what
    if program and (len(what) > 1 or engine not in ("auto", "transformers")):
        raise DstuneError(
            say("app is a whole folder around transformers", "app 是基于 transformers 的完整文件夹"),
            say("it brings its own Dockerfile, compose file and configuration", "它自带 Dockerfile、compose 与配置"),
            "dstune generate app -o my-chat",
        )
    if not program and (mode or quantization):
        raise DstuneError(
            say("--mode and --quantization are options of app", "--mode 与 --quantization 只用于 app"),
            "",
            "dstune generate app",
        )
    if mode == "latency" and concurrency and concurrency > 1:
        raise DstuneError(
            say("latency mode answers one request at a time", "latency 模式一次只回答一个请求"), "", f"--mode throughput --concurrency {concurrency}"
        )  # fmt: skip
    name = model or R1
    spec, count, others, cuda = models.get(name), gpus or 1, 0.0, ""
    if gpu:
        from dstune.catalog import gpus as boards

        card = boards.find(gpu)
    else:
        seen = load_evidence(evidence) if evidence else _here()
        card, found, others, cuda = host_card(seen, "generate app")
        count = min(gpus, found) if gpus else found
        driver = driver or str(seen.first("driver", "version", "") or "")
    cuda = cuda_of(driver) if driver else cuda
    if context and context > spec.context:
        raise DstuneError(
            say(f"{spec.short} reads at most {spec.context:,} tokens", f"{spec.short} 最多支持 {spec.context:,} token"), "", f"--context {spec.context}"
        )  # fmt: skip
    folder = name if os.path.isdir(name) else ""
    if program:
        engine = "transformers"
    work = Workload(512, 1024 if spec.reasoning else 512, concurrency or 1, None, goal)  # type: ignore[arg-type]
    wish = Wish(
        card, spec, count, engine, context or 0, (vram_limit or 0) * 1024, others, engine_version,
        name=name if spec.quant or folder else spec.id, driver_cuda=cuda, asked_concurrency=concurrency is not None, workload=work,
    )  # fmt: skip
    if program:
        from dstune.render import app as chat
        from dstune.render.size import size

        style = mode or ("throughput" if goal == "throughput" or (concurrency or 1) > 1 else "latency")
        fitting = size(
            card, spec, style, 1 if style == "latency" else concurrency or 0, context or 0, (vram_limit or 0) * 1024, others, quantization or ""
        )  # fmt: skip
        wish = replace(wish, context=fitting.context, limit_mib=0.0, tiers=(0, 1, 2), workload=replace(work, concurrency=1))
        # Layers on the CPU are no plan of `recommend`: what it says beside memory (versions, sampling) holds for a roomier card of the kind.
        roomy = replace(card, memory_mib=10**6) if fitting.layer_map else card
        plan, version = planned(replace(wish, gpu=roomy, others_mib=0.0), card, driver, strict=True)
        made = chat.render(plan, Context(card, spec, driver, version, folder, public, port or 0), fitting, vram_limit)
        return _deliver(made, plan, out or "my-chat", force, as_json)
    plan, version = planned(wish, card, driver, strict=bool(driver) or bool(CONTAINERS.intersection(what)))
    made = render(what, plan, Context(card, spec, driver, version, folder, public, port or 0, app=app))
    return _deliver(made, plan, out, force, as_json)


def planned(wish: Wish, card: Gpu, driver: str, strict: bool) -> tuple[Plan, str]:
    """The plan, and the engine version that starts on the driver; the plan is made for that version.

    `strict`: a combination that cannot start is refused; otherwise (a launch script for what is installed) it is left alone.
    """
    from dstune.plan.search import recommend
    from dstune.render.stack import choose

    asked = wish.engine
    inner = replace(wish, engine="transformers" if asked == "hf-serve" else asked)
    if asked == "auto":
        inner = replace(inner, engine=recommend(inner).engine)
    engine = "hf-serve" if asked == "hf-serve" else inner.engine
    try:
        version = choose(engine, card, driver, wish.version).version
    except DstuneError:
        if strict:
            raise
        version = wish.version
    plan = recommend(replace(inner, version=version if engine == "vllm" else wish.version))
    return (served_by_transformers(plan) if asked == "hf-serve" else plan), version or plan.engine_version


def served_by_transformers(plan: Plan) -> Plan:
    """A plan for a transformers program as one for `transformers serve`."""
    names = {"transformers.dtype": "hfserve.dtype", "transformers.attn_implementation": "hfserve.attn_implementation"}
    why = {"en": "requests are batched while they run, not one after the other", "zh": "请求在运行中合批，而不是逐个处理"}
    kept = [replace(s, key=names[s.key]) for s in plan.settings if s.key in names]
    four = [
        Setting("hfserve.quantization", "bnb-4bit", s.why, s.source)
        for s in plan.settings
        if s.key == "transformers.load_in_4bit" and s.value
    ]
    sampled = [s for s in plan.settings if s.key.startswith("generate.")]
    batching = Setting("hfserve.continuous_batching", True, why, "transformers 5.24.0 cli/serve.py")
    return replace(plan, engine="hf-serve", settings=(*kept, *four, batching, *sampled))


def _here() -> Evidence:
    from dstune.probes import collect

    return collect(["nvidia"])


def _folders(wanted: set[str]) -> list[str]:
    """Makes these folders; the ones that were not there, outer ones first."""
    made: list[str] = []
    for folder in sorted(wanted):
        parts: list[str] = []
        here = folder or "."
        while here and not os.path.isdir(here):
            parts.append(here)
            here = os.path.dirname(here)
        os.makedirs(folder or ".", exist_ok=True)
        made += reversed(parts)
    return made


def _deliver(made: tuple[Artifact, ...], plan: Plan, out: str | None, force: bool, as_json: bool) -> int:
    """To standard output, or into the folder: new files at once, others only with --force."""
    from dstune import patch

    if out is None:
        if as_json:
            emit(replace(empty("generate"), artifacts=made, plan=plan), True)
            return Exit.OK
        for artifact in made:
            if len(made) > 1:
                click.echo(f"# ---- {artifact.path} ----")
            click.echo(artifact.text, nl=False)
        return Exit.OK
    changes, shown, blocked = [], [], []
    for artifact in made:
        path = os.path.join(out, artifact.path)
        there = os.path.lexists(path)
        source = patch.read(path) if there else patch.Source(path, os.path.realpath(path), None, "")
        difference = patch.diff(path, source.text, artifact.text) if there else ""
        shown.append(Artifact(path, artifact.text, difference))
        if there and not difference:
            continue
        if there and not force:
            blocked.append(path)
        changes.append(patch.Change(source, source.encoded(artifact.text)))
    if not blocked:
        fresh = _folders({os.path.dirname(c.source.path) for c in changes} | {out})
        try:
            if changes:
                patch.write(changes, {"command": "generate"})
        except BaseException:
            for folder in reversed(fresh):
                with suppress(OSError):  # not empty: somebody else's file
                    os.rmdir(folder)
            raise
        for artifact in shown:
            if artifact.path.endswith(".sh"):
                os.chmod(artifact.path, os.stat(artifact.path).st_mode | 0o111)
    if as_json:
        emit(replace(empty("generate"), artifacts=tuple(shown), plan=plan), True)
    else:
        for artifact in shown:
            if artifact.diff and (blocked or force):
                click.echo(artifact.diff)
    for artifact in shown if not blocked else ():
        click.echo(say(f"wrote {artifact.path}", f"已写入 {artifact.path}"), err=True)
    if blocked:
        names = ", ".join(blocked)
        click.echo(
            say(
                f"already there and different, nothing was written: {names} (--force replaces)",
                f"已存在且内容不同，未写入任何文件：{names}（--force 覆盖）",
            ),
            err=True,
        )
        return Exit.FINDINGS
    return Exit.OK
