"""One fixed configuration → memory lines and predictions with bands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dstune.model.plan import Prediction
from dstune.plan import physics
from dstune.plan.ask import Ask
from dstune.plan.memory import Memory, memory
from dstune.plan.speed import Speed, speed


def band(ask: Ask, metric: str, bound: str = "") -> tuple[float, float]:
    """Factors of the 90 % band: measured errors of this engine and metric (engines/physics/bands.toml), and of the regime `bound`."""
    rows = physics.table("bands")
    own = rows.get(ask.engine, {})
    row = own.get(f"{metric}_{bound}") or own.get(metric) or rows["default"][metric]
    low, high = row["low"], row["high"]
    return float(low), float(high)


def _regime(ask: Ask) -> str:
    """What decides how certain the memory of a process is."""
    return "quantised" if ask.scheme and ask.engine == "transformers" else "eager" if ask.attention == "eager" else ""


def predictions(ask: Ask, mem: Memory | None = None, spd: Speed | None = None) -> dict[str, Prediction]:
    """Every metric of a configuration."""
    mem, spd = mem or memory(ask), spd or speed(ask)
    values: dict[str, float] = {
        "weights_gib": mem.weights_gib,
        "peak_vram_gib": mem.total_mib / 1024,
        "decode_tok_s_per_stream": spd.decode,
        "total_tok_s": spd.total,
        "prefill_tok_s": spd.prefill,
        "ttft_ms": spd.ttft_ms,
    }
    if ask.engine == "transformers":
        values["peak_allocated_gib"] = mem.allocated_mib / 1024
    if mem.kv_tokens is not None:
        values["kv_cache_tokens"] = mem.kv_tokens
        if mem.blocks is not None:
            values["gpu_blocks"] = mem.blocks
        values["max_concurrency"] = mem.kv_tokens / (ask.max_len or ask.model.context)
    out = {}
    bound = spd.step.bound + ("_measured" if spd.step.bound == "launch" and ask.host_launch_us else "")
    for metric, number in values.items():
        low, high = band(ask, metric, _regime(ask) if metric == "peak_vram_gib" else bound)
        out[metric] = Prediction(number, number * low, number * high)
    return out


def answer(row: Mapping[str, Any]) -> dict[str, Prediction]:
    """Predictions for a row of `--jsonl`, as its report counts them (docs/accuracy.md, "How reports are read").

    Total throughput follows `flags.counts` (input+output tokens, or the output alone). One llama.cpp stream that counts both is a
    llama-bench run that generates both: such reports show one rate whatever the lengths, that of decoding. A burst of chat requests
    without `ignore_eos` ends its answers early. A transformers row that names its attention comes from a script inside the process: it
    reads torch's peak, and Qwen's reports from 4.51 on what torch holds after the run.
    """
    from dstune.plan.rows import ask_of

    ask = ask_of(row)
    flags = row.get("flags") or {}
    out = predictions(ask)
    counts = str(
        flags.get("counts")
        or ("input+output" if ask.engine in ("transformers", "sglang") and not flags.get("batching") else "")
    )
    if "input" in counts and ask.engine == "llama.cpp" and ask.batch == 1:
        low, high = band(ask, "total_tok_s")
        rate = out["decode_tok_s_per_stream"].value
        out["total_tok_s"] = Prediction(rate, rate * low, rate * high)
        return out
    written = 1.0
    if ask.arrival.startswith("all") and ask.model.chat and not flags.get("ignore_eos"):
        written = physics.value("common", "early_stop")
    if ask.output:
        factor = (ask.prompt * ("input" in counts) + ask.output * written) / ask.output
        p = out["total_tok_s"]
        out["total_tok_s"] = Prediction(p.value * factor, p.low * factor, p.high * factor)
    if ask.engine == "transformers" and ask.attention:
        out["peak_vram_gib"] = _inside(ask, out["peak_allocated_gib"])
    return out


def _inside(ask: Ask, peak: Prediction) -> Prediction:
    """What a script inside the process reports as its memory. The band holds both readings where the report may be either."""
    if not ask.at_least("4.51"):
        return peak
    low, _ = band(ask, "peak_allocated_gib")
    held = memory(ask).held_mib / 1024
    return Prediction(held, held * low, max(held * 1.035, peak.high))
