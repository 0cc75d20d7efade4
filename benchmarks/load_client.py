"""Is the load client cheap and true? dstune's client beside reference clients, in one run, against a mock that knows its own latencies.

    python benchmarks/load_client.py [--rounds 3] [--json] [--check]       needs: pip install aiohttp uvloop

64 streams, 512 requests × 128 tokens, 50 ms to the first token, 10 ms between tokens: 65,536 chunks, some 5,000 a second. Each client
runs in a process of its own, in turn, `rounds` times; the best round counts (another program's load only adds). Errors are the client's mean (p99) minus what the mock wrote. `--check` exits 1 when a target is missed. A target that the
reference misses as well is not the client's fault (a busy machine): then being within 1.15 × of the reference counts.

Marginal CPU: the slope between a run of 128 and one of 512 requests, so that start-up is apart. Whole: all CPU of the process, start
included. `lazy` (benchmarks/ref_clients.py) is as cheap as a Python client gets: it stamps and parses afterwards, without framing checks,
errors, TLS, timeouts, or a report.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STREAMS, REQUESTS, FEW, TOKENS, TTFT, ITL = 64, 512, 128, 128, 50, 10
TARGETS = {
    "TTFT mean error, ms": ("ttft_error_ms", 2.0),
    "TTFT p99 error, ms": ("ttft_p99_error_ms", 6.0),
    "ITL error, %": ("itl_error_pct", 0.5),
    "marginal CPU s / 1000 chunks": ("marginal", 0.015),
    "whole run CPU, s": ("cpu_s", 1.5),
    "wall around the load, s": ("around_s", 0.6),
    "CPU against lazy": ("against_lazy", 1.15),
}


def mock_stats(url: str) -> dict[str, Any]:
    """What the mock really wrote since the last call."""
    with urllib.request.urlopen(f"{url}/stats?reset=1") as f:
        return dict(json.load(f))


def timed(command: list[str]) -> tuple[str, float, float]:
    """(stdout, wall s, CPU s of the process and its children)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout, wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def dstune(url: str, requests: int) -> dict[str, Any]:
    """One run of `dstune bench`, as a user starts it."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "run.json")
        _, wall, cpu = timed([
            sys.executable, "-m", "dstune", "bench", url, "-c", str(STREAMS), "-n", str(requests), "--max-tokens", str(TOKENS), "--warmup", "0",
            "--duration", "300s", "-o", out,
        ])  # fmt: skip
        trial = json.loads(Path(out).read_text())["trial"]
    ttft, itl = trial["ttft_ms"], trial["itl_ms"]
    return {
        "chunks": trial["output_tokens"], "wall_s": wall, "cpu_s": cpu, "load_s": trial["duration_s"],
        "ttft_ms": [ttft["mean"], ttft["p50"], ttft["p99"]], "itl_ms": itl["mean"],
    }  # fmt: skip


def reference(kind: str, url: str, requests: int) -> dict[str, Any]:
    """One run of a reference client."""
    route = f"{url}/v1/chat/completions"
    out, wall, cpu = timed([sys.executable, "benchmarks/ref_clients.py", kind, route, str(STREAMS), str(requests), str(TOKENS)])
    said = json.loads(out)
    return {
        "chunks": said["chunks"], "wall_s": wall, "cpu_s": cpu, "load_s": said["wall_s"], "ttft_ms": said["ttft_ms"],
        "itl_ms": said["itl_ms"][0],
    }  # fmt: skip


def measure(kind: str, url: str) -> dict[str, float]:
    """A short and a long run, with their errors against the mock."""

    def one(requests: int) -> dict[str, Any]:
        mock_stats(url)
        seen = dstune(url, requests) if kind == "dstune" else reference(kind, url, requests)
        true = mock_stats(url)
        assert true["requests"] == requests, f"{kind}: {true['requests']} of {requests} requests"
        assert seen["chunks"] == true["chunks"], f"{kind} saw {seen['chunks']} of {true['chunks']} chunks"
        return {**seen, "true": true}

    few, many = one(FEW), one(REQUESTS)
    true = many["true"]
    return {
        "ttft_error_ms": abs(many["ttft_ms"][0] - true["ttft_ms"][0]),
        "ttft_p99_error_ms": abs(many["ttft_ms"][2] - true["ttft_ms"][2]),
        "itl_error_pct": 100 * abs(many["itl_ms"] / true["gap_ms"][0] - 1),
        "cpu_s": many["cpu_s"],
        "marginal": 1000 * (many["cpu_s"] - few["cpu_s"]) / (many["chunks"] - few["chunks"]),
        "around_s": many["wall_s"] - many["load_s"],
        "mock_cpu_s": true["cpu_s"],
    }


def measured(kinds: list[str], rounds: int, most: int) -> dict[str, dict[str, float]]:
    """The table: kinds in turn within each round, so that a change of the machine's load meets all. While a target is missed there are
    up to `most` rounds: the interference of other programs differs from round to round, the client's own cost does not."""
    mock = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.mock", "--ttft-ms", str(TTFT), "--itl-ms", str(ITL)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )  # fmt: skip
    try:
        assert mock.stdout is not None
        url = f"http://127.0.0.1:{mock.stdout.readline().split()[1]}"
        runs: dict[str, list[dict[str, float]]] = {k: [] for k in kinds}
        for number in range(most):
            if number >= rounds and not judged(tabled(runs))[0]:
                break
            for kind in kinds:
                runs[kind].append(measure(kind, url))
    finally:
        mock.kill()
    return tabled(runs)


def tabled(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """The best of each figure."""
    table = {kind: {name: min(r[name] for r in found) for name in found[0]} for kind, found in runs.items()}
    lazy = table.get("lazy")
    for row in table.values():
        if lazy:
            row["against_lazy"] = row["cpu_s"] / lazy["cpu_s"]
    return table


def judged(table: dict[str, dict[str, float]]) -> tuple[list[str], list[str]]:
    """Targets that were missed, and those that the reference missed by as much."""
    lazy = table.get("lazy", {})
    missed, busy = [], []
    for label, (name, limit) in TARGETS.items():
        ours, theirs = table["dstune"].get(name, 0.0), lazy.get(name, 0.0)
        if ours > limit:
            (busy if theirs > limit and ours <= 1.15 * theirs else missed).append(label)
    return missed, busy


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default="dstune,lazy,aiohttp")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    table = measured(asked.clients.split(","), asked.rounds, 3 * asked.rounds if asked.check else asked.rounds)
    if asked.json:
        print(json.dumps(table, indent=1))
    else:
        print(f"{'':30}{'target':>9}" + "".join(f"{k:>11}" for k in table))
        for label, (name, limit) in TARGETS.items():
            print(f"{label:30}{limit:>9}" + "".join(f"{row.get(name, float('nan')):>11.4f}" for row in table.values()))
        print(f"{'CPU of the mock itself, s':30}{'':>9}" + "".join(f"{row['mock_cpu_s']:>11.2f}" for row in table.values()))
    missed, busy = judged(table)
    if busy:
        print(f"missed by the reference too, by as much (a busy machine): {', '.join(busy)}", file=sys.stderr)
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if asked.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
