"""The Plan screen: a card, a context, a concurrency, a precision; the budget and the launch line move with them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rich.text import Text

from dstune.errors import DstuneError
from dstune.lang import pick, say
from dstune.model import Plan, Workload
from dstune.tui.draw import parts

R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
CARDS = (
    "rtx-3060-12gb", "rtx-3090", "rtx-4060-ti-8gb", "rtx-4060-ti-16gb", "rtx-4070", "rtx-4090", "rtx-5090", "t4", "l4", "a10", "v100-pcie-16gb",
    "a100-sxm4-80gb", "h100-sxm", "h200", "gb10",
)  # fmt: skip
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
CONCURRENCY = (1, 2, 4, 8, 16, 32, 64, 128)
ENGINES = ("auto", "vllm", "transformers", "llama.cpp", "sglang")
GOALS = ("latency", "throughput", "memory")
_TONES = ("magenta", "blue", "cyan", "yellow", "green", "red")


@dataclass(frozen=True, slots=True)
class Knobs:
    """What the keys change."""

    gpu: str = "rtx-4090"
    gpus: int = 1
    context: int = 8192
    concurrency: int = 8
    engine: str = "auto"
    goal: str = "latency"
    model: str = R1

    def turned(self, key: str, step: int) -> Knobs:
        """The knobs after one step of one of them."""
        scale: dict[str, tuple[object, ...]] = {
            "gpu": (*cards(self.gpu),), "context": CONTEXTS, "concurrency": CONCURRENCY, "engine": ENGINES, "goal": GOALS, "gpus": (1, 2, 4, 8),
        }  # fmt: skip
        values = list(scale[key])
        at = values.index(getattr(self, key)) if getattr(self, key) in values else 0
        return replace(self, **{key: values[(at + step) % len(values)]})  # type: ignore[arg-type]


def cards(current: str) -> list[str]:
    """The cards that the keys walk through; the one in hand is always among them."""
    from dstune.catalog import gpus

    known = {g.id for g in gpus.rows()}
    found = [c for c in CARDS if c in known]
    return found if current in found else [current, *found]


def planned(knobs: Knobs) -> Plan | str:
    """The plan, or why there is none."""
    from dstune.catalog import gpus, models
    from dstune.plan.search import Wish, recommend

    try:
        work = Workload(512, min(1024, knobs.context // 2), knobs.concurrency, None, knobs.goal)  # type: ignore[arg-type]
        card, spec = gpus.find(knobs.gpu), models.get(knobs.model)
        wish = Wish(card, spec, knobs.gpus, knobs.engine, knobs.context, name=spec.id, asked_concurrency=True, workload=work)
        return recommend(wish)
    except DstuneError as error:
        return f"{error.what}\n{error.why}\n{error.next}"


def plan_screen(knobs: Knobs, plan: Plan | str, width: int, plain: bool = False) -> Text:
    """Knobs, budget bar with its parts, predictions, launch."""
    out = Text()
    for key, label, value in (
        ("g/G", say("GPU", "显卡"), f"{knobs.gpus} × {knobs.gpu}"), ("x/X", say("context", "上下文"), f"{knobs.context:,}"),
        ("c/C", say("requests at once", "并发"), str(knobs.concurrency)), ("e/E", say("engine", "引擎"), knobs.engine), ("o/O", say("goal", "目标"), knobs.goal),
        ("n/N", say("cards", "卡数"), str(knobs.gpus)),
    ):  # fmt: skip
        out.append(f" {key} ", "reverse").append(f" {label}: ").append(f"{value}   ", "bold")
        if len(out.plain.rpartition("\n")[2]) > width - 30:
            out.append("\n")
    out.append("\n\n")
    if isinstance(plan, str):
        return out.append(plan, "red")
    total = _total_mib(plan)
    used = sum(m.mib for m in plan.memory)
    groups = _groups(plan)
    shares = [(mib / total, _TONES[i % len(_TONES)]) for i, (_, mib) in enumerate(groups)]
    out.append_text(parts(shares, width - 24, plain)).append(f" {used / 1024:.1f} / {total / 1024:.1f} GiB\n")
    for i, (name, mib) in enumerate(groups):
        out.append(("#=+*o"[i % 5] if plain else "■") + " ", _TONES[i % len(_TONES)]).append(f"{name} {mib:,.0f} MiB   ")
        if len(out.plain.rpartition("\n")[2]) > width - 30:
            out.append("\n")
    out.append("\n\n" + f"{plan.engine} {plan.engine_version}\n", "bold")
    for key, p in plan.predictions.items():
        out.append(f"  {key:26} {p.value:>12,.1f}   ({p.low:,.1f} … {p.high:,.1f})\n")
    out.append("\n" + plan.launch + "\n", "green")
    for note in plan.rejected[:3]:
        out.append(f"\n{note.option}: {pick(note.why)}"[: 2 * width], "dim")
    return out


def _total_mib(plan: Plan) -> float:
    from dstune.catalog import gpus

    return float(gpus.find(plan.gpu).memory_mib)


def _groups(plan: Plan) -> list[tuple[str, float]]:
    """Memory lines by their first word (weights, KV…), largest first."""
    sums: dict[str, float] = {}
    for line in plan.memory:
        sums[line.part.partition(":")[0]] = sums.get(line.part.partition(":")[0], 0.0) + line.mib
    return sorted(sums.items(), key=lambda item: -item[1])
