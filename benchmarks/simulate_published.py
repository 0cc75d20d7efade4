"""Loads on a GPU that somebody else measured, predicted from model, card and settings alone: 40 open-loop runs of `vllm bench serve` on a GB10.

    python benchmarks/simulate_published.py [FILE] [--seeds 5]

FILE holds a row for each run (recipes/measurements/published-loads-gb10.json: five models at 0.1 to 1.0 requests/s, from light to past the knee).
Arrivals are a gamma renewal process with the run's burstiness and lengths are uniform, as `--dataset-name random --random-range-ratio` draws
them; the draws themselves are not published, so that a prediction is the median over some seeds. Nothing is fitted to these rows.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from dstune.catalog import gpus, models
from dstune.plan.ask import Ask
from dstune.plan.simulate import simulate
from dstune.plan.simulate_load import percentile
from dstune.plan.simulate_steps import limits, step_cost

ROOT = Path(__file__).parents[1]
FIGURES = ("output_tok_s", "p50_ttft_ms", "p95_ttft_ms", "p50_tpot_ms", "p95_tpot_ms", "p50_itl_ms")


def asked(row: dict[str, Any], card: str) -> Ask:
    """The configuration of a row."""
    return Ask(
        "vllm", gpus.find(card), models.get(row["model"]), version=row["version"], prompt=row["input_len"], output=row["output_len"], batch=8,
        max_len=row["max_model_len"], utilization=row["utilization"], kv_dtype="fp8" if row["kv"].startswith("fp8") else "",
    )  # fmt: skip


def predict(row: dict[str, Any], card: str, seed: int) -> dict[str, float]:
    """Figures of one draw of the load."""
    source = random.Random(seed)
    spread, shape = row["range"], row["burstiness"]
    now, at, prompt, output = 0.0, [], [], []
    for _ in range(row["prompts"]):
        at.append(now)
        now += source.gammavariate(shape, 1 / (row["rate"] * shape))
        prompt.append(source.randint(int(row["input_len"] * (1 - spread)), int(row["input_len"] * (1 + spread))))
        output.append(source.randint(int(row["output_len"] * (1 - spread)), int(row["output_len"] * (1 + spread))))
    ask = asked(row, card)
    run = simulate(step_cost(ask), limits(ask), at, prompt, output, row["input_len"] + row["output_len"] / 2)
    first = sorted(1e3 * (f - a) for f, a in zip(run.first, at, strict=True))
    each = sorted(1e3 * (d - f) / (o - 1) for f, d, o in zip(run.first, run.done, output, strict=True) if o > 1)
    return {
        "output_tok_s": run.tokens / run.end,
        "p50_ttft_ms": percentile(first, 0.5),
        "p95_ttft_ms": percentile(first, 0.95),
        "p50_tpot_ms": percentile(each, 0.5),
        "p95_tpot_ms": percentile(each, 0.95),
        "p50_itl_ms": 1e3 * (run.gap(0.5) or 0.0),
    }


def capacity(rates: dict[float, float], limit_ms: float) -> float:
    """The highest rate of a sweep up to which the p95 of the first token stays under a limit; 0 for none."""
    held = 0.0
    for rate in sorted(rates):
        if rates[rate] > limit_ms:
            break
        held = rate
    return held


def main() -> int:
    """Prints every row and the errors by figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=str(ROOT / "recipes/measurements/published-loads-gb10.json"))
    parser.add_argument("--seeds", type=int, default=5)
    o = parser.parse_args()
    data = json.loads(Path(o.file).read_text(encoding="utf-8"))
    errors: dict[str, list[float]] = {k: [] for k in FIGURES}
    sweeps: dict[str, tuple[dict[float, float], dict[float, float]]] = {}
    print("| model | test | requests/s | " + " | ".join(FIGURES) + " |\n|---|---|---|" + "---|" * len(FIGURES))
    for row in data["rows"]:
        drawn = [predict(row, data["card"], seed) for seed in range(1, o.seeds + 1)]
        said = {k: statistics.median(d[k] for d in drawn) for k in FIGURES}
        for k in FIGURES:
            errors[k].append(abs(said[k] / row[k] - 1))
        if "rate-sweep" in row["test"]:
            ours, theirs = sweeps.setdefault(row["model"], ({}, {}))
            ours[row["rate"]], theirs[row["rate"]] = said["p95_ttft_ms"], row["p95_ttft_ms"]
        cells = " | ".join(f"{said[k]:.4g} for {row[k]:.4g}" for k in FIGURES)
        print(f"| {row['model'].split('/')[-1]} | {row['test']} | {row['rate']:g} | {cells} |")
    print("\n| figure | rows | median | p90 | worst |\n|---|---|---|---|---|")
    for k in FIGURES:
        ordered = sorted(errors[k])
        print(
            f"| {k} | {len(ordered)} | {100 * percentile(ordered, 0.5):.0f} % | {100 * percentile(ordered, 0.9):.0f} % | {100 * ordered[-1]:.0f} % |"
        )
    print("\nrequests/s that hold, by the limit of the p95 of the first token (steps of the sweep; predicted for measured):")
    print("| model | 2 s | 5 s | 10 s |\n|---|---|---|---|")
    for model, (ours, theirs) in sweeps.items():
        cells = " | ".join(f"{capacity(ours, limit):g} for {capacity(theirs, limit):g}" for limit in (2000, 5000, 10000))
        print(f"| {model.split('/')[-1]} | {cells} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
