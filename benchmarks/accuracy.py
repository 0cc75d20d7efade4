"""Scores predictions against measurements and prints the tables of docs/accuracy.md.

    python benchmarks/accuracy.py [MEASUREMENTS.json|.yaml …] [--worst N]

Without a file: our own (recipes/measurements/*.json). A file of others holds rows in the form of `dstune estimate --jsonl` with a
`value` and a `confidence`; "low" ones are left out. Printed per engine and metric: rows, median and 90th percentile and largest of
|predicted / measured - 1|, the median with its sign, and how many measurements lie inside their band.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import statistics
from pathlib import Path
from typing import Any

from dstune.catalog import root
from dstune.errors import DstuneError
from dstune.model import Prediction
from dstune.plan.estimate import answer, predictions
from dstune.plan.rows import ask_of

ENGINES = ("transformers", "vllm", "llama.cpp", "sglang")


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    if path.suffix == ".json":
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    else:
        from ruamel.yaml import YAML

        data = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    rows = data["measurements"] if isinstance(data, dict) else data
    return [r for r in rows if r.get("confidence") != "low" and r["engine"] in ENGINES and r["value"]]


def guess(row: dict[str, Any], ours: bool) -> Prediction | str:
    """The prediction for a row, or why there is none. Others' rows go through the reading of `--jsonl`."""
    try:
        found = predictions(ask_of(row)) if ours else answer(row)
    except DstuneError as error:
        return error.what
    return found.get(row["metric"]) or f"no {row['metric']} for {row['engine']}"


def score(path: Path, ours: bool, worst: int) -> None:
    """Prints one file's table."""
    groups: dict[tuple[str, str], list[tuple[float, bool, dict[str, Any], float]]] = collections.defaultdict(list)
    refused, inside, total = [], 0, 0
    for row in read(path):
        total += 1
        p = guess(row, ours)
        if isinstance(p, str):
            refused.append((row["id"], p))
            continue
        hit = p.low <= row["value"] <= p.high
        inside += hit
        groups[row["engine"], row["metric"]].append((p.value / row["value"] - 1, hit, row, p.value))
    print(
        f"{path.name}: {total} rows, {total - len(refused)} answered, {inside / max(1, total - len(refused)):.0%} inside their band"
    )
    print(f"  {'engine':14}{'metric':26}{'rows':>5}{'median':>9}{'p90':>8}{'worst':>8}{'bias':>8}{'in band':>9}")
    for (engine, metric), found in sorted(groups.items()):
        errors = sorted(abs(e) for e, *_ in found)
        p90 = errors[max(0, math.ceil(0.9 * len(errors)) - 1)]
        bias = statistics.median(e for e, *_ in found)
        hits = sum(h for _, h, *_ in found) / len(found)
        print(
            f"  {engine:14}{metric:26}{len(found):5}{statistics.median(errors):9.1%}{p90:8.1%}{errors[-1]:8.1%}{bias:+8.1%}{hits:9.0%}"
        )
    for ident, why in refused[:worst]:
        print(f"  refused {ident}: {why}")
    everything = sorted((x for found in groups.values() for x in found), key=lambda x: -abs(x[0]))
    for error, _, row, value in everything[:worst]:
        print(f"  {error:+6.0%}  {row['id']}  {row['metric']}: measured {row['value']:g}, predicted {value:g}")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--worst", type=int, default=0)
    args = parser.parse_args()
    for path in sorted((root() / "measurements").glob("*.json")):
        if not args.files and "measurements" in json.loads(
            path.read_text(encoding="utf-8")
        ):  # others record runs of another kind
            score(path, True, args.worst)
    for path in args.files:
        score(path, False, args.worst)


if __name__ == "__main__":
    main()
