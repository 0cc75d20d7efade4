"""`dstune probe`: what this machine says, as text, JSON, or a file that every other command can start from."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import click

from dstune.cli.options import common, emit, empty, python_option
from dstune.errors import DstuneError, Exit
from dstune.lang import say


@click.command(
    help=say(
        "Record what this machine says: GPU, driver, CUDA, Python stack, container, model directories, running servers. Needs no root.",
        "记录本机信息：显卡、驱动、CUDA、Python 软件栈、容器、模型目录、正在运行的服务。不需要 root。",
    )
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help=say("Write the evidence to this file.", "把证据写入该文件。")
)
@python_option
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Path(),
    help=say("A model directory to read as well.", "同时读取该模型目录。"),
)
@click.option("--endpoint", help=say("URL of a running server to read.", "要读取的服务的 URL。"))
@click.option("--seconds", type=float, default=0.0, help=say("Watch the endpoint for so long.", "观察端点的秒数。"))
@click.option("--only", help=say("Only these probes, with commas.", "只运行这些探针，以逗号分隔。"))
@click.option("--no-cache", is_flag=True, help=say("Leave out the models in the hub caches.", "不读取缓存中的模型。"))
@common
def command(
    output: str | None,
    python: str | None,
    models: tuple[str, ...],
    endpoint: str | None,
    seconds: float,
    only: str | None,
    no_cache: bool,
    as_json: bool,
) -> int:
    from dstune.probes import PROBES, collect

    folder = os.path.dirname(os.path.abspath(output)) if output else ""
    if folder and not os.access(folder, os.W_OK):
        raise DstuneError(
            say(f"{folder} cannot be written to", f"无法写入 {folder}"), "", say("choose another folder", "请换一个目录")
        )
    names = [n.strip() for n in only.split(",") if n.strip()] if only else None
    for name in names or ():
        if name not in PROBES:
            raise DstuneError(
                say(f"no probe is called {name!r}", f"没有名为 {name!r} 的探针"), "", f"--only {','.join(list(PROBES)[:2])}"
            )
    evidence = collect(names, python=python, model_dirs=models, cache=not no_cache)
    from dstune.serving import known

    evidence = evidence.plus(known(evidence))
    reached = True
    if endpoint:
        from dstune.probes.server import read_endpoint, subject_of

        found = read_endpoint(endpoint, seconds, subject_of(evidence, endpoint))
        reached = any(f.name == "reachable" and f.value for f in found.facts)
        evidence = evidence.merged(found)
    if output:
        from dstune.probes.recording import save

        save(output, evidence)
    if as_json or not output:
        emit(replace(empty("probe"), evidence=evidence), as_json)
    if output:
        count = len(evidence.facts), len(evidence.gaps)
        text = say(f"{output}: {count[0]} facts, {count[1]} gaps", f"{output}：{count[0]} 项，{count[1]} 项未能读取")
        print(text, file=sys.stderr)
    return Exit.OK if reached else Exit.UNOBSERVABLE
