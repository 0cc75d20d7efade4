"""`dstune recommend`: engine and settings for a card, with predicted memory and speed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from dstune.cli.listing import list_options
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
from dstune.cli.recommend_rate import rate_options
from dstune.errors import DstuneError, UnobservableError
from dstune.lang import say
from dstune.model import Evidence
from dstune.model.plan import Workload

if TYPE_CHECKING:
    from dstune.catalog.gpus import Gpu

R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"


@click.command(
    help=say(
        "Choose engine and settings for a GPU, with predicted memory and speed. Without --gpu: this host's cards and their free memory.",
        "为显卡选择引擎与参数，并预测显存和速度。不给 --gpu 时用本机的显卡及其空闲显存。",
    )
)
@click.option("--gpu", help=say("Card, as people or NVML name it: 4090, “4060 ti 16g”.", "显卡名，如 4090、“4060 ti 16g”。"))
@gpus_option
@click.option(
    "--model",
    default=R1,
    show_default=True,
    help=say("Catalogue id, or a folder with config.json.", "目录里的模型名，或含 config.json 的文件夹。"),
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "vllm", "llama.cpp", "transformers", "sglang"]),
    default="auto",
    show_default=True,
    help=say("Engine.", "引擎。"),
)
@engine_version_option
@context_option
@click.option(
    "--prompt",
    "--input-tokens",
    "prompt",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help=say("Typical prompt in tokens.", "典型输入长度。"),
)
@click.option(
    "--output", "--output-tokens", "output", type=click.IntRange(1), help=say("Typical answer in tokens.", "典型输出长度。")
)
@concurrency_option
@goal_option
@vram_limit_option
@click.option(
    "--slo-ttft", type=click.FloatRange(1), help=say("Limit of the time to the first token in ms.", "首 token 时延上限（ms）。")
)
@click.option(
    "--slo-itl", type=click.FloatRange(0.1), help=say("Limit of the time between tokens in ms.", "token 间时延上限（ms）。")
)
@rate_options
@evidence_option
@list_options
@common
def command(
    gpu: str | None,
    gpus: int | None,
    model: str,
    engine: str,
    engine_version: str,
    context: int | None,
    prompt: int,
    output: int | None,
    concurrency: int | None,
    goal: str,
    vram_limit: float | None,
    slo_ttft: float | None,
    slo_itl: float | None,
    rate: float | None,
    lengths: str,
    workload: str | None,
    seed: int,
    evidence: tuple[str, ...],
    as_json: bool,
) -> int:
    from dstune.catalog import models
    from dstune.plan.search import Wish, recommend

    spec = models.get(model)
    if context and context > spec.context:
        raise DstuneError(
            say(f"{spec.short} reads at most {spec.context:,} tokens", f"{spec.short} 最多支持 {spec.context:,} token"),
            "max_position_embeddings",
            f"--context {spec.context}",
        )
    answer = output or (1024 if spec.reasoning else 512)
    drawn = None
    if rate is not None or workload:
        from dstune.cli.recommend_rate import lengths as lengths_of
        from dstune.cli.recommend_rate import rate_of

        rate = rate_of(rate)
        drawn = lengths_of(lengths, prompt, answer, workload)
        prompt, answer = round(drawn.prompt), round(drawn.output)
    work = Workload(prompt, answer, concurrency or 1, None, goal, slo_ttft, slo_itl)  # type: ignore[arg-type]
    count, others, cuda = gpus or 1, 0.0, ""
    if gpu:
        from dstune.catalog import gpus as boards

        card = boards.find(gpu)
    else:
        card, found, others, cuda = host_card(load_evidence(evidence) if evidence else None)
        count = min(gpus, found) if gpus else found
    wish = Wish(
        card, spec, count, engine, context or 0, (vram_limit or 0) * 1024, others, engine_version,
        name=model if spec.quant or _is_path(model) else spec.id,
        driver_cuda=cuda, asked_concurrency=concurrency is not None, workload=work,
    )  # fmt: skip
    if rate is not None and drawn is not None:
        from dstune.plan.replicas import Demand, sized

        plan = sized(wish, Demand(rate, drawn, seed))
    else:
        plan = recommend(wish)
    emit(replace(empty("recommend"), plan=plan), as_json)
    return 0


def _is_path(model: str) -> bool:
    import os

    return os.path.exists(model)


def host_card(evidence: Evidence | None = None, command: str = "recommend") -> tuple[Gpu, int, float, str]:
    """This host's card (or the evidence's), how many of its kind, the MiB taken on the fullest of them, the driver's CUDA.

    Raises `UnobservableError` where there is none.
    """
    from dstune.catalog import gpus

    if evidence is None:
        from dstune.probes import collect

        evidence = collect(["nvidia"])
    names = list(evidence.find("gpu", "name"))
    if not names:
        gap = next((g for g in evidence.gaps if g.subject.startswith("gpu")), None)
        raise UnobservableError(
            say("no GPU seen here", "本机没有看到显卡"),
            gap.reason if gap else say("NVML lists none", "NVML 未列出任何显卡"),
            f"dstune {command} --gpu 4090",
        )
    facts = {(f.subject, f.name): f.value for f in evidence.facts}
    subject, name = names[0].subject, str(names[0].value)
    total = facts.get((subject, "memory_total_mib"))
    board = gpus.find(name, float(total) if isinstance(total, int | float) else None)
    same = [f.subject for f in names if f.value == names[0].value]
    from dstune.plan.ask import visible_mib

    taken = 0.0
    for s in same:
        free = facts.get((s, "memory_free_mib"))
        if isinstance(free, int | float):
            taken = max(taken, visible_mib(board) - float(free))
    return board, len(same), max(0.0, taken), str(evidence.first("driver", "cuda", "") or "")
