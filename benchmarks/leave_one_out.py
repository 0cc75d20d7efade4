"""How well speed is predicted for a report that the coefficients have not seen: every source left out once, the rest fitted again.

    python benchmarks/leave_one_out.py [MEASUREMENTS.json|.yaml …] [--engines vllm,sglang]

Files as for accuracy.py with a `source` in every row; without one benchmarks/published.json. For each source the coefficients below start 20 %
off (up or down, drawn from --seed), so that what only the left out source could tell stays wrong, and go down coordinate by coordinate to the
least mean |log(predicted / measured)| of all other rows (a row counts at most 1). Printed per engine and metric: rows, median, 90th
percentile, worst of |predicted / measured - 1| of the left out rows, beside that of the coefficients as they are. The form of the physics,
its version steps and what is read off a datasheet stay. Some minutes.
"""

from __future__ import annotations

import argparse
import collections
import math
import random
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from accuracy import ENGINES, read

from dstune.errors import DstuneError
from dstune.plan import physics
from dstune.plan.ask import Ask
from dstune.plan.estimate import answer
from dstune.plan.rows import ask_of
from dstune.plan.speed import speed

METRICS = {"decode_tok_s_per_stream": "decode", "total_tok_s": "total", "prefill_tok_s": "prefill", "ttft_ms": "ttft_ms"}
FITTED = {
    "vllm": ("bandwidth", "sm_bytes", "layer_us", "step_us", "sequence_us", "prefill_rate", "eager_layer_us", "allreduce_us", "mix", "awq_sm"),
    "sglang": ("bandwidth", "sm_bytes", "layer_us", "step_us", "sequence_us", "prefill_rate"),
    "llama.cpp": ("bandwidth", "sm_bytes", "sm_arch", "layer_us", "step_us", "prefill_rate", "prefill_gguf", "pipeline", "tflops_per_watt"),
    "transformers": (
        "bandwidth", "sm_bytes", "layer_us", "step_us", "host_launch_us", "quant_layer_us", "quant_gpu_layer_us", "prefill_rate", "expert_us",
        "expert_fp8_us", "cache_copies", "repeat_kv", "unsplit_attention",
    ),
}  # fmt: skip
PASSES = (1.15, 1.15, 1.15, 1.05, 1.05)
Point = tuple[dict[str, Any], Ask, str, float]


def points(path: Path, engines: list[str]) -> list[Point]:
    """Speed rows of a file: row, configuration, the rate that answers it, and the factor by which the report counts it."""
    found = []
    for row in read(path):
        if row["metric"] not in METRICS or row["engine"] not in engines:
            continue
        try:
            ask, value = ask_of(row), answer(row)[row["metric"]].value
        except (DstuneError, KeyError):
            continue
        rates, name = speed(ask), METRICS[row["metric"]]
        if math.isclose(value, rates.decode, rel_tol=1e-9):
            name = "decode"
        found.append((row, ask, name, value / getattr(rates, name)))
    return found


def source(row: dict[str, Any]) -> str:
    """What is left out at once: a page with all rows that were taken from it, or an author's pages of one kind."""
    named = row.get("source") or row["id"].rsplit("-", 1)[0]
    key = str(named["key"] if isinstance(named, dict) else named)
    folded = key.lower().replace("qwenlm/qwen3 docs", "qwen3-docs")
    return next((k for k in ("qwen3-docs", "databasemart", "dmatora") if k in folded), key)


def errors(rows: list[Point]) -> list[float]:
    """log(predicted / measured) of each row."""
    return [math.log(getattr(speed(ask), name) * factor / row["value"]) for row, ask, name, factor in rows]


def cells(engine: str) -> list[tuple[dict[str, Any], str]]:
    """(table, key) of each fitted number."""
    found = []
    for name in FITTED[engine]:
        entry = physics.table(engine)[name]
        for table in entry if isinstance(entry, list) else [entry]:
            found += [(table, k) for k, v in table.items() if isinstance(v, float) and v > 0]
    return found


def fit(rows: list[Point], coefficients: list[tuple[dict[str, Any], str]]) -> None:
    """Moves the coefficients to the least error of `rows`, one after the other."""

    def loss() -> float:
        return sum(min(1.0, abs(e)) for e in errors(rows))

    best = loss()
    for factor in PASSES:
        for table, key in coefficients:
            for step in (factor, 1 / factor):
                before = table[key]
                while True:
                    table[key] *= step
                    now = loss()
                    if now >= best - 1e-9:
                        table[key] = before
                        break
                    best, before = now, table[key]


def show(name: str, found: list[float]) -> str:
    sizes = sorted(abs(math.exp(e) - 1) for e in found)
    p90 = sizes[max(0, math.ceil(0.9 * len(sizes)) - 1)]
    return f"{name}: median {statistics.median(sizes):.1%}, p90 {p90:.1%}, worst {sizes[-1]:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=[Path(__file__).with_name("published.json")])
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    engines = args.engines.split(",")
    rows = [p for path in args.files for p in points(path, engines)]
    draw = random.Random(args.seed)
    for engine in engines:
        own = [p for p in rows if p[0]["engine"] == engine]
        coefficients = cells(engine)
        as_is = [table[key] for table, key in coefficients]
        held: dict[str, list[float]] = collections.defaultdict(list)
        seen: dict[str, list[float]] = collections.defaultdict(list)
        for row, e in zip((p[0] for p in own), errors(own), strict=True):
            seen[row["metric"]].append(e)
        names = sorted({source(p[0]) for p in own})
        if len(names) < 2:
            print(f"{engine}: {len(own)} rows of one source, {show('as is', errors(own))}", flush=True)
            continue
        for name in names:
            out = [p for p in own if source(p[0]) == name]
            for (table, key), value in zip(coefficients, as_is, strict=True):
                table[key] = value * draw.choice((1.2, 1 / 1.2))
            fit([p for p in own if source(p[0]) != name], coefficients)
            missed = errors(out)
            for (row, *_), e in zip(out, missed, strict=True):
                held[row["metric"]].append(e)
            print(f"  {engine}, without {name}: {len(out)} rows, {show('they', missed)}", file=sys.stderr, flush=True)
        for (table, key), value in zip(coefficients, as_is, strict=True):
            table[key] = value
        for metric in held:
            print(
                f"{engine} {metric}: {len(held[metric])} rows of {len(names)} sources; {show('left out', held[metric])}; {show('as is', seen[metric])}",
                flush=True,
            )


if __name__ == "__main__":
    main()
