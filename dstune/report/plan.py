"""A Plan → text of 80 columns, and the `plan` object of `dstune.report/1`."""

from __future__ import annotations

from typing import Any

from dstune.lang import pick, say
from dstune.model.plan import Alternative, Plan, Prediction
from dstune.plan.pareto import zh_label
from dstune.plan.words import part_name, stated, worked
from dstune.report.text import WIDTH, cells, paint, wrap

_METRICS = {
    "decode_tok_s_per_stream": (("decode, one stream", "单路解码"), "tok/s"),
    "total_tok_s": (("output, all streams", "总输出"), "tok/s"),
    "prefill_tok_s": (("prefill", "预填充"), "tok/s"),
    "ttft_ms": (("first token", "首 token"), "ms"),
    "max_concurrency": (("whole contexts at once", "可并存的满长上下文"), ""),
    "kv_cache_tokens": (("KV pool", "KV 缓存池"), "tokens"),
    "gpu_blocks": (("KV blocks", "KV 块"), ""),
    "peak_vram_gib": (("memory of the process", "进程显存"), "GiB"),
    "peak_allocated_gib": (("allocated by torch", "torch 已分配"), "GiB"),
    "weights_gib": (("weights", "权重"), "GiB"),
}
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "llama.cpp": "llama.cpp", "transformers": "transformers"}


def metric_name(metric: str) -> tuple[str, str]:
    """(name, unit) of a prediction for a person."""
    words, unit = _METRICS.get(metric, ((metric, metric), ""))
    return say(*words), unit


def plan_json(plan: Plan) -> dict[str, Any]:
    """The `plan` object. Its memory parts sum to the total."""
    from dstune.report.capacity import capacity_json

    return {
        "engine": plan.engine,
        "engine_version": plan.engine_version,
        "model": plan.model,
        "gpu": plan.gpu,
        "gpus": plan.gpus,
        "workload": {
            "prompt_tokens": plan.workload.prompt_tokens,
            "output_tokens": plan.workload.output_tokens,
            "concurrency": plan.workload.concurrency,
            "goal": plan.workload.goal,
        },
        "settings": [{"key": s.key, "value": s.value, "why": pick(s.why), "source": s.source} for s in plan.settings],
        "memory": [{"part": m.part, "mib": round(m.mib, 1), "formula": m.formula, "source": m.source} for m in plan.memory],
        "predictions": {
            k: {"value": _short(p.value), "low": _short(p.low), "high": _short(p.high)} for k, p in plan.predictions.items()
        },
        "pareto": [_alternative_json(a) for a in plan.pareto],
        "rejected": [{"option": r.option, "why": pick(r.why)} for r in plan.rejected],
        "launch": plan.launch,
        "notes": [pick(n) for n in plan.notes],
        **({"capacity": capacity_json(plan.capacity)} if plan.capacity is not None else {}),
    }


def _alternative_json(a: Alternative) -> dict[str, Any]:
    return {
        "name": a.name,
        "chosen": a.chosen,
        "engine": a.engine,
        "engine_version": a.engine_version,
        "gpus": a.gpus,
        "settings": [{"key": s.key, "value": s.value} for s in a.settings],
        "numbers": {k: {"value": _short(p.value), "low": _short(p.low), "high": _short(p.high)} for k, p in a.numbers.items()},
        "quality_loss_pct": a.quality_loss_pct,
        "quality_source": a.source,
        "why": pick(a.why),
    }


def _short(value: float) -> float:
    """Four significant digits: more would be a promise."""
    return float(f"{value:.4g}")


def plan_text(plan: Plan, explain: bool = False) -> str:
    """The plan for a person; `explain` adds the formula and source of each memory part."""
    w = plan.workload
    version = f" {plan.engine_version}" if plan.engine_version else ""
    count = f"{plan.gpus} x " if plan.gpus > 1 else ""
    head = say(f"{_ENGINES[plan.engine]}{version} on {count}{plan.gpu}", f"{_ENGINES[plan.engine]}{version}，{count}{plan.gpu}")
    load = say(
        f"{plan.model}; {w.prompt_tokens:,} tokens in, {w.output_tokens:,} out, {w.concurrency} at once",
        f"{plan.model}；输入 {w.prompt_tokens:,}、输出 {w.output_tokens:,} token，并发 {w.concurrency}",
    )
    parts = [paint(head, "bold") + "\n" + wrap(load), _memory(plan, explain), _predictions(plan)]
    if plan.capacity is not None:
        from dstune.report.capacity import capacity_text

        parts.append(capacity_text(plan.capacity, plan.gpus))
    if plan.settings:
        lines = [paint(say("Settings", "设置"), "bold")]
        for s in plan.settings:
            lines += [f"  {s.key} = {s.value}", wrap(pick(s.why), "      ")]
        parts.append("\n".join(lines))
    if len(plan.pareto) > 1:
        parts.append(_alternatives(plan))
    if plan.rejected:
        lines = [paint(say("Not taken", "未采用"), "bold")]
        for r in plan.rejected:
            lines += [f"  {say(r.option, zh_label(r.option))}", wrap(pick(r.why), "      ")]
        parts.append("\n".join(lines))
    if plan.launch:
        parts.append(paint(say("Launch", "启动"), "bold") + "\n" + _command(plan.launch))
    parts += [wrap(pick(n)) for n in plan.notes]
    return "\n\n".join(parts)


SHOWN = 5
"""Rows of the table of alternatives, the chosen one among them; --json has all."""


def _alternatives(plan: Plan) -> str:
    """The chosen configuration beside those that beat it in some respect."""
    many = plan.workload.concurrency
    head = (
        say("memory", "显存"), say("each stream", "每路") if many > 1 else say("one stream", "单路"), say("all streams", "总输出"), say("first token", "首 token"), say("quality", "质量"),
    )  # fmt: skip
    title = say("Alternatives (each better in some respect)", "备选（各有所长）")
    if many > 1:
        title = say(f"Alternatives at {many} at once (each better in some respect)", f"并发 {many} 时的备选（各有所长）")
    lines = [paint(title, "bold")]
    widths = (10, 12, 12, 12, 8)
    lines.append(" " * 26 + "".join(_right(h, w) for h, w in zip(head, widths, strict=True)))
    for a in plan.pareto[:SHOWN]:
        memory, decode, total, ttft = (
            a.numbers[k].value for k in ("peak_vram_gib", "decode_tok_s_per_stream", "total_tok_s", "ttft_ms")
        )
        cell = (
            f"{a.gpus} x {_number(memory)}" if a.gpus > 1 else f"{_number(memory)} GiB", f"{_number(decode)} tok/s", f"{_number(total)} tok/s", f"{_number(ttft)} ms",
            say("nearly", "近无损") if a.quality_loss_pct is None else f"-{a.quality_loss_pct:g} %" if a.quality_loss_pct else say("full", "无损"),
        )  # fmt: skip
        name = ("* " if a.chosen else "  ") + say(a.name, zh_label(a.name))
        if cells(name) > 26:
            lines.append(name)
            name = ""
        lines.append(name + " " * (26 - cells(name)) + "".join(_right(c, w) for c, w in zip(cell, widths, strict=True)))
        lines.append(wrap(pick(a.why), "      "))
    if len(plan.pareto) > SHOWN:
        lines.append(say(f"  {len(plan.pareto) - SHOWN} more in --json", f"  另有 {len(plan.pareto) - SHOWN} 种见 --json"))
    return "\n".join(lines)


def _right(text: str, width: int) -> str:
    return " " * max(1, width - cells(text)) + text


def _row(label: str, value: str, after: str = "", width: int = 46) -> str:
    return f"  {label}{' ' * max(1, width - 2 - cells(label) - cells(value))}{value}{after}"


def _memory(plan: Plan, explain: bool) -> str:
    each = say(" on each card", "（每张卡）") if plan.gpus > 1 and plan.engine != "transformers" else ""
    lines = [paint(say("Memory", "显存") + each, "bold")]
    for m in plan.memory:
        label = part_name(m.part)
        lines.append(_row(label, f"{m.mib:,.0f} MiB" if m.mib >= 10 else f"{m.mib:.1f} MiB"))
        if explain:
            lines.append(wrap(f"= {worked(m.formula)}", "      "))
            lines.append(wrap(f"{say('source: ', '来源：')}{stated(m.source)}", "      "))
    lines.append(_row(say("total", "合计"), f"{sum(m.mib for m in plan.memory):,.0f} MiB"))
    return "\n".join(lines)


def _predictions(plan: Plan) -> str:
    lines = [paint(say("Predictions (in about 9 of 10 cases within the band)", "预测（约九成情况落在区间内）"), "bold")]
    for metric, (label, unit) in _METRICS.items():
        p = plan.predictions.get(metric)
        if p is None or metric in ("gpu_blocks", "weights_gib"):
            continue
        name = say(*label)
        if metric == "decode_tok_s_per_stream" and plan.workload.concurrency > 1:
            name = say(
                f"decode, each of {plan.workload.concurrency} streams", f"解码，{plan.workload.concurrency} 路中的每一路"
            )
        lines.append(_row(name, f"{_number(p.value)} {unit}".strip(), f"  ({_band(p)})"))
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _band(p: Prediction) -> str:
    return f"{_number(p.low)} … {_number(p.high)}"


def _command(text: str) -> str:
    """A command broken at its flags, so that it can be pasted."""
    if "\n" in text:
        return "\n".join(_call(line) for line in text.split("\n"))
    if cells(text) <= WIDTH - 2:
        return "  " + text
    out, line = [], ""
    for word in text.replace(" --", "\n--").replace(" -hf ", "\n-hf ").split("\n"):
        if line and cells(line) + cells(word) > WIDTH - 6:
            out.append(line)
            line = ""
        line = f"{line} {word}".strip()
    out.append(line)
    return "  " + " \\\n    ".join(out)


def _call(text: str) -> str:
    """A Python call broken after its commas."""
    out, line = [], " "
    head, bracket, rest = text.partition("(")
    if bracket and cells(text.split(", ")[0]) > WIDTH - 4:
        out, line, text = [f"  {head}("], "     ", rest
    for word in text.split(", "):
        if cells(line) + cells(word) > WIDTH - 4 and line.strip():
            out.append(line)
            line = "     "
        line += f" {word},"
    return "\n".join([*out, line]).rstrip(",")
