"""The Plan screen: card, context, concurrency, precision, engine, goal; budget, predictions and launch line move with the keys. Pure."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from rich.text import Text

from dstune.errors import DstuneError
from dstune.lang import pick, say
from dstune.model.plan import Plan, Workload
from dstune.plan.words import part_name
from dstune.report.plan import metric_name
from dstune.tui.draw import Lines, click, fit, flow, left, parts, sign, wrapped
from dstune.tui.palette import plan_part
from dstune.tui.state import State

R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
CARDS = (
    "rtx-3060-12gb", "rtx-3090", "rtx-4060-ti-8gb", "rtx-4060-ti-16gb", "rtx-4070", "rtx-4090", "rtx-5090", "t4", "l4", "a10", "v100-pcie-16gb",
    "a100-sxm4-80gb", "h100-sxm", "h200-sxm", "gb10-dgx-spark",
)  # fmt: skip
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
CONCURRENCY = (1, 2, 4, 8, 16, 32, 64, 128)
ENGINES = ("auto", "vllm", "transformers", "llama.cpp", "sglang")
PRECISIONS = ("auto", "16 bit", "8 bit", "4 bit")
GOALS = ("latency", "throughput", "memory")


@dataclass(frozen=True, slots=True)
class Knobs:
    """What the keys change."""

    gpu: str = "rtx-4090"
    gpus: int = 1
    context: int = 8192
    concurrency: int = 8
    precision: str = "auto"
    engine: str = "auto"
    goal: str = "latency"
    model: str = R1
    assumed: frozenset[str] = frozenset(("gpu", "model"))
    """Which of `gpu` and `model` nobody chose and nothing here showed."""

    def turned(self, key: str, step: int) -> Knobs:
        """The knobs after one step of one of them."""
        scale: dict[str, tuple[object, ...]] = {
            "gpu": (*cards(self.gpu),), "context": CONTEXTS, "concurrency": CONCURRENCY, "precision": PRECISIONS, "engine": ENGINES, "goal": GOALS,
            "gpus": (1, 2, 4, 8),
        }  # fmt: skip
        values = list(scale[key])
        at = values.index(getattr(self, key)) if getattr(self, key) in values else 0
        return replace(self, **{key: values[(at + step) % len(values)], "assumed": self.assumed - {key}})  # type: ignore[arg-type]


def cards(current: str) -> list[str]:
    """The cards that the keys walk through; the one in hand is always among them."""
    from dstune.catalog import gpus

    known = {g.id for g in gpus.rows()}
    found = [c for c in CARDS if c in known]
    return found if current in found else [current, *found]


def here(state: State, knobs: Knobs) -> Knobs:
    """The knobs set to the first card that the feed shows, how many there are of it, and the model that is served."""
    from dstune.catalog import gpus, models

    name, total = state.value("gpu0", "name"), state.number("gpu0", "memory_total_mib")
    with contextlib.suppress(DstuneError):
        if name:
            same = sum(state.value(s, "name") == name for s in state.subjects("gpu"))
            knobs = replace(
                knobs,
                gpu=gpus.find(str(name), total).id,
                gpus=max(n for n in (1, 2, 4, 8) if n <= max(1, same)),
                assumed=knobs.assumed - {"gpu"},
            )
    served = state.first("server", "models")
    for model in [state.first("server", "model_root"), *(served if isinstance(served, list) else [])]:
        with contextlib.suppress(DstuneError):
            if model:
                found = models.get(str(model)).id
                said = found.rpartition("/")[2].lower() in str(model).lower()  # `smollm2` may be any of its sizes
                return replace(knobs, model=found, assumed=knobs.assumed - {"model"} if said else knobs.assumed)
    return knobs


def planned(knobs: Knobs) -> Plan | str:
    """The plan, or why there is none."""
    from dstune.catalog import gpus, models
    from dstune.plan.search import Wish, recommend

    try:
        work = Workload(512, min(1024, knobs.context // 2), knobs.concurrency, None, knobs.goal)  # type: ignore[arg-type]
        card, spec = gpus.find(knobs.gpu), models.get(knobs.model)
        tiers = (PRECISIONS.index(knobs.precision) - 1,) if knobs.precision != "auto" else (0, 1, 2)
        wish = Wish(
            card, spec, knobs.gpus, knobs.engine, min(knobs.context, spec.context), name=spec.id, asked_concurrency=True, workload=work, tiers=tiers
        )  # fmt: skip
        return recommend(wish)
    except DstuneError as error:
        if knobs.precision != "auto" and not isinstance(planned(replace(knobs, precision="auto")), str):
            return say(
                f"no {knobs.precision} format of this model is known that fits and runs under {knobs.engine} on {knobs.gpu}\np: another precision, e: another engine",
                f"没有已知的 {_word(knobs.precision)}格式能在 {knobs.gpu} 上用 {_word(knobs.engine)} 引擎运行该模型\np：换精度，e：换引擎",
            )
        return "\n".join(filter(None, (error.what, error.why, error.next)))


def plan_screen(knobs: Knobs, plan: Plan | str | None, width: int, plain: bool = False, total_mib: float = 0.0) -> Lines:
    """Knobs, budget bar with its parts, predictions, launch. `plan` None: it is being computed."""
    items = []
    for key, name, label, value in (
        ("g", "gpu", say("GPU", "显卡"), f"{knobs.gpus} × {knobs.gpu}"), ("x", "context", say("context", "上下文"), f"{knobs.context:,}"),
        ("c", "concurrency", say("at once", "并发"), str(knobs.concurrency)), ("p", "precision", say("precision", "精度"), _word(knobs.precision)),
        ("e", "engine", say("engine", "引擎"), _word(knobs.engine)), ("o", "goal", say("goal", "目标"), _word(knobs.goal)),
        ("n", "gpus", say("cards", "卡数"), str(knobs.gpus)),
    ):  # fmt: skip
        action = f"app.turn('{name}',1)"
        items.append(
            Text().append(f" {key} ", click(action, "reverse")).append(f" {label} ").append(value, click(action, "bold"))
        )
    model = knobs.model + say(" (assumed: no known model is served)", "（假定：没有服务提供已知的模型）") * (
        "model" in knobs.assumed
    )
    out = [*flow(items, width, 2), Text(fit(model, width), "dim", no_wrap=True)]
    if "gpu" in knobs.assumed:
        words = say(
            f"no known card is seen here: {knobs.gpu} is assumed; g takes another",
            f"这里没有已知的显卡：假定为 {knobs.gpu}，按 g 更换",
        )
        out.append(Text(fit(words, width), "yellow", no_wrap=True))
    out.append(Text())
    if plan is None:
        return [*out, Text(say("computing…", "计算中…"), "dim")]
    if isinstance(plan, str):
        return [*out, *(line for part in plan.splitlines() for line in wrapped(part, width, "red"))]
    out += _budget(plan, width, plain, total_mib)
    out += [Text(), Text(f"{plan.engine} {plan.engine_version}".strip(), "bold")]
    for key, p in plan.predictions.items():
        name, unit = metric_name(key)
        figures = f"{_figure(p.value):>12} {left(unit, 7)} ({_figure(p.low)} … {_figure(p.high)})"
        out.append(Text(fit(left(f"  {name}", 28) + figures, width), no_wrap=True))
    out += [Text(), *(line for part in plan.launch.splitlines() for line in wrapped(part, width, "green"))]
    out.append(Text().append(" w ", click("app.write", "reverse")).append(say(" write it as launch.sh", " 写入 launch.sh")))
    for note in plan.rejected[:3]:
        lines = wrapped(f"{note.option}: {pick(note.why)}", width, "dim")
        if len(lines) > 2:
            lines[1].plain = fit(f"{lines[1].plain} {lines[2].plain}", max(10, width))
        out += lines[:2]
    return out


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:,.3g}"


def _word(value: str) -> str:
    words = {
        "auto": ("auto", "自动"), "16 bit": ("16 bit", "16 位"), "8 bit": ("8 bit", "8 位"), "4 bit": ("4 bit", "4 位"), "latency": ("latency", "延迟"),
        "throughput": ("throughput", "吞吐"), "memory": ("memory", "显存"),
    }  # fmt: skip
    return say(*words.get(value, (value, value)))


def _budget(plan: Plan, width: int, plain: bool, total_mib: float) -> Lines:
    total = total_mib or card_mib(plan)
    used = sum(m.mib for m in plan.memory)
    groups = grouped(plan)
    shares = [(mib / total, *plan_part(name)) for name, mib in groups]
    figures = f" {used / 1024:.1f} / {total / 1024:.1f} GiB"
    out = [parts(shares, width - len(figures), plain).append(figures, "bold red" if used > total else "bold")]
    marks = [
        Text().append(sign(letter, plain) + " ", style).append(f"{_part(name)} {mib:,.0f} MiB")
        for name, mib, (style, letter) in ((name, mib, plan_part(name)) for name, mib in groups)
    ]
    return out + flow(marks, width)


def _part(name: str) -> str:
    return say("weights", "权重") if name == "weights" else part_name(name)


def card_mib(plan: Plan) -> float:
    """Memory of the plan's card."""
    from dstune.catalog import gpus

    return float(gpus.find(plan.gpu).memory_mib)


def grouped(plan: Plan) -> list[tuple[str, float]]:
    """Memory lines by their first word (weights, KV…), largest first."""
    sums: dict[str, float] = {}
    for line in plan.memory:
        name = line.part.partition(":")[0]
        sums[name] = sums.get(name, 0.0) + line.mib
    return sorted(sums.items(), key=lambda item: -item[1])
