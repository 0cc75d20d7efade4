"""Scores predictions against measurements and prints the tables of docs/accuracy.md.

    python benchmarks/accuracy.py [MEASUREMENTS.json|.yaml …] [--worst N]

Without a file: our own (recipes/measurements/*.json). A file of others holds rows in the form of `dstune estimate --jsonl` with a
`value` and a `confidence`; "low" ones are left out. Printed per engine and metric: rows, median and 90th percentile and largest of
|predicted / measured - 1|, the median with its sign, and how many measurements lie inside their band.

An eager loop goes as fast as its host launches. Our own files are scored three times: with the launch cost of published loops; "host": with
that of one row, the first eager decode step of the session (it is left out), as `dstune bench --local` and `--calibrate` give it; and
"before": with that of the eager step that was measured right before the row. "drift" says how far the costs of one session lie apart.
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
from dstune.model.plan import Prediction
from dstune.plan.estimate import answer, predictions
from dstune.plan.rows import ask_of
from dstune.plan.speed import host_launches

DECODE = "decode_tok_s_per_stream"
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


def eager(row: dict[str, Any]) -> bool:
    """Whether a row is a decode step that the host's launches pace: no static or offloaded cache, no quantised layers, all on the card."""
    flags, plain = row.get("flags") or {}, not row["dtype_or_quant"].startswith("bnb")
    return (
        row["metric"] == DECODE and row["engine"] == "transformers" and plain and not ({"cache", "layers_on_cpu"} & set(flags))
    )


def cost(row: dict[str, Any]) -> float:
    """Microseconds of a launch that an eager decode row implies."""
    ask = ask_of(row)
    return 1e6 / float(row["value"]) / host_launches(ask.model, ask.attention)


def calibrated(path: Path, worst: int) -> None:
    """Prints how the speeds of one of our files are met once the launch cost of its host is known."""
    rows = read(path)
    if any((r.get("flags") or {}).get("host_launch_us") for r in rows):
        return
    once: dict[str, list[tuple[float, str]]] = collections.defaultdict(list)
    before: dict[str, list[tuple[float, str]]] = collections.defaultdict(list)
    known: dict[int, float] = {}
    latest: dict[int, float] = {}
    costs: dict[int, list[float]] = collections.defaultdict(list)
    for row in rows:
        if eager(row):
            known.setdefault(row.get("session", 1), cost(row))
            costs[row.get("session", 1)].append(cost(row))
    first = set()
    for row in rows:
        session = row.get("session", 1)
        if row["metric"] in (DECODE, "ttft_ms") and session in known:
            for us, scores in ((known[session], once), (latest.get(session), before)):
                if us and not (scores is once and eager(row) and session not in first):
                    p = guess({**row, "flags": {**(row.get("flags") or {}), "host_launch_us": us}}, True)
                    if not isinstance(p, str):
                        scores[row["metric"]].append((p.value / row["value"] - 1, row["id"]))
        if eager(row):
            first.add(session)
            latest[session] = cost(row)
    for name, found in (("host", once), ("before", before)):
        for metric, errors in sorted(found.items()):
            sizes, bias = sorted(abs(e) for e, _ in errors), statistics.median(e for e, _ in errors)
            p90 = sizes[max(0, math.ceil(0.9 * len(sizes)) - 1)]
            print(f"  {name:14}{metric:26}{len(sizes):5}{statistics.median(sizes):9.1%}{p90:8.1%}{sizes[-1]:8.1%}{bias:+8.1%}")
            for error, ident in sorted(errors, key=lambda x: -abs(x[0]))[:worst]:
                print(f"     {error:+6.0%}  {ident}")
    for session, each in costs.items():
        low, high = min(each), max(each)
        print(
            f"  drift: session {session}, {len(each)} eager steps, {low:.1f} to {high:.1f} us a launch: one number for all is"
            f" {(high - low) / (high + low):.0%} off at best"
        )


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
    if ours:
        calibrated(path, worst)
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
