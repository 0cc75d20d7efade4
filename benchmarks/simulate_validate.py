"""Does the simulation of continuous batching say what a real server does? vLLM on a CPU with a small model, predicted and measured at three loads.

    python benchmarks/simulate_validate.py [-o FILE.json] [--rounds 3] [--seconds 45] [--url URL] [--only overload]       needs .ci/real.sh

A round goes calibrate, load, calibrate, load, calibrate, load, calibrate. Each load (Poisson arrivals, prompts of 24 lengths, 48 tokens out) is
predicted with the step times of the calibrations right before and after it, since a shared machine changes by the minute; nothing of the
load's own times goes into its prediction, only when its requests were due and how many tokens they had. The rates are fixed by the first
calibration: 0.35, 0.65, 0.9 and 1.6 of the predicted knee (below it, throughput is what arrives; only an overload tests it). The model runs on one core, so that the client and the API server have the other.

Exit 1 when the median over the rounds of throughput or p95 of the first token is off by more than 20 % at some load.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from dstune.load.answers import Reply  # noqa: E402
from dstune.load.detect import Server, detect  # noqa: E402
from dstune.load.run import Options, collect  # noqa: E402
from dstune.load.stats import percentile, tpot  # noqa: E402
from dstune.model.plan import Workload  # noqa: E402
from dstune.plan.simulate import Limits, simulate  # noqa: E402
from dstune.plan.simulate_load import Lengths, Objective, knee, load, saturated  # noqa: E402
from dstune.plan.simulate_steps import Measured, fitted, needed  # noqa: E402

SEQS, BUDGET, OUTPUT = 16, 2048, 48
OBJECTIVE = Objective(2000.0, 150.0)
PARTS = {"low": 0.35, "medium": 0.65, "near the knee": 0.9, "overload": 1.6}
FLAGS = ("--max-num-seqs", str(SEQS), "--max-num-batched-tokens", str(BUDGET), "--no-enable-prefix-caching")
WORDS = [
    "harbour",
    "time",
    "wind",
    "name",
    "ship",
    "fog",
    "bay",
    "bell",
    "rope",
    "sail",
    "tide",
    "crew",
    "deck",
    "mast",
    "oar",
    "net",
    "salt",
]
PROMPT_WORDS = (16, 96, 256, 768)
DECODE_TOKENS, CONTEXT_TOKENS = 48, 32


def raised(pid: int, nice: int) -> None:
    """Gives the server's processes and this one another priority: on a busy machine step times else say what the neighbours do."""
    if nice:
        import psutil

        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            for thread in process.threads():  # each thread has its own
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, thread.id, nice)
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        for number in (
            pid,
            os.getpid(),
        ):  # sessions share the cores first (sched_autogroup), and only then the processes of each
            with contextlib.suppress(OSError):
                Path(f"/proc/{number}/autogroup").write_text(f"{nice}", encoding="ascii")


@contextlib.contextmanager
def server(url: str, folder: Path, nice: int) -> Iterator[tuple[Server, Limits, str]]:
    """The server, what its scheduler may do, and its version."""
    if url:
        found = detect(url)
        yield found, Limits(SEQS, BUDGET), found.version
        return
    from tests.real import servers

    port = servers.free_port()
    env = {**servers.VLLM_ENV, "VLLM_CPU_OMP_THREADS_BIND": "0"}
    with servers.serve(servers.vllm(port, *FLAGS), port, "/health", folder / "vllm.log", env) as running:
        raised(running.process.pid, nice)
        log = running.log.read_text(errors="replace")
        size = re.search(r"KV cache size: ([\d,]+) tokens", log)
        tokens = int(size[1].replace(",", "")) if size else 0
        found = detect(running.url)
        yield found, Limits(SEQS, BUDGET, tokens // 128 or None, 128), found.version


def ask(
    where: Server, folder: Path, words: list[int], output: int, at_once: int, count: int | None, rate: float | None = None,
    seconds: float | None = None, seed: int = 1,
) -> list[Reply]:  # fmt: skip
    """Answers in the order in which they were due. Prompts have so many words in turn; every answer has `output` tokens."""
    name = folder / f"prompts-{hash(tuple(words)) & 0xFFFFFF:x}.txt"
    name.write_text("\n".join(" ".join(WORDS[i % len(WORDS)] for i in range(n)) for n in words), encoding="utf-8")
    options = Options(
        Workload(output_tokens=output, concurrency=at_once, rate=rate), str(name), where.models[0], seconds, count, True, 0, 300.0, (),
        {"ignore_eos": True, "temperature": 0}, seed=seed,
    )  # fmt: skip
    replies = collect(where, options).replies
    bad = [r for r in replies if not r.ok]
    if bad:
        raise RuntimeError(f"{len(bad)} of {len(replies)} requests failed: {bad[0].error} {bad[0].detail}")
    return sorted(replies, key=lambda r: r.due)


def calibrate(where: Server, folder: Path) -> Measured:
    """Some 20 s of short runs: first tokens of lone requests, decode steps at each batch size, and a step with a long context."""
    prompts, steps, context = [], {}, []
    for words in PROMPT_WORDS:
        for r in ask(where, folder, [words], 2, 1, 3):
            prompts.append((int(r.prompt_tokens or 0), float(r.ttft or 0)))
    short = 0
    for n in needed(SEQS):
        wave = ask(where, folder, [PROMPT_WORDS[0]], DECODE_TOKENS, n, n)
        short = int(wave[0].prompt_tokens or 0)
        begin, end = max(r.stamps[0] for r in wave), min(r.stamps[-1] for r in wave)
        steps[n] = [b - a for r in wave for a, b in zip(r.stamps, r.stamps[1:], strict=False) if a >= begin and b <= end]
    for words in (PROMPT_WORDS[0], PROMPT_WORDS[-1]):
        r = ask(where, folder, [words], CONTEXT_TOKENS, 1, 1)[0]
        gaps = [b - a for a, b in zip(r.stamps, r.stamps[1:], strict=False)]
        context.append((int(r.prompt_tokens or 0) + CONTEXT_TOKENS // 2, statistics.median(gaps)))
    return Measured(steps, context, prompts, short + DECODE_TOKENS / 2)


def joined(a: Measured, b: Measured) -> Measured:
    """Both calibrations as one."""
    return Measured(
        {n: [*a.steps[n], *b.steps[n]] for n in a.steps},
        [*a.context, *b.context],
        [*a.prompts, *b.prompts],
        (a.tokens + b.tokens) / 2,
    )


def figures(due: list[float], first: list[float], ended: list[float], each: list[float], tokens: int) -> dict[str, float]:
    """What is compared. Times in ms."""
    waits = [f - d for f, d in zip(first, due, strict=True)]
    return {
        "output_tok_s": tokens / (max(ended) - due[0]),
        "ttft_p50_ms": 1e3 * percentile(waits, 0.5),
        "ttft_p95_ms": 1e3 * percentile(waits, 0.95),
        "tpot_p50_ms": 1e3 * percentile(each, 0.5),
        "tpot_p95_ms": 1e3 * percentile(each, 0.95),
    }


def cpu() -> tuple[float, float]:
    """(busy seconds of all cores since boot, wall)."""
    with open("/proc/stat", encoding="ascii") as f:
        fields = [int(x) for x in f.readline().split()[1:]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK"), time.monotonic()


def measure(where: Server, folder: Path, words: list[int], rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """One load: its figures, and what a prediction may know of it."""
    before, begin = cpu()
    replies = ask(where, folder, words, OUTPUT, 1, None, rate, seconds, seed)
    after, end = cpu()
    due = [r.due for r in replies]
    seen = figures(
        due, [r.due + float(r.ttft or 0) for r in replies], [r.ended for r in replies], [t for r in replies if (t := tpot(r)) is not None],
        sum(int(r.output_tokens or 0) for r in replies),
    )  # fmt: skip
    return {
        "measured": seen, "at": [d - due[0] for d in due], "prompt": [int(r.prompt_tokens or 0) for r in replies],
        "output": [int(r.output_tokens or 0) for r in replies], "cores_busy": (after - before) / (end - begin),
    }  # fmt: skip


def predict(seen: dict[str, Any], around: Measured, limits: Limits) -> dict[str, float]:
    """The same requests, simulated."""
    at, output = seen["at"], seen["output"]
    run = simulate(fitted(around), limits, at, seen["prompt"], output)
    each = [(d - f) / (o - 1) for f, d, o in zip(run.first, run.done, output, strict=True)]
    return figures(at, list(run.first), list(run.done), each, run.tokens)


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {k: _round(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_round(v) for v in value]
    return value


def main() -> int:
    """Runs all of it and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--url", default="", help="a running server with the flags of FLAGS")
    parser.add_argument("--nice", type=int, default=0, help="priority of server and client (negative needs root)")
    parser.add_argument("--only", default=",".join(PARTS), help="loads, with commas; -o adds to a file that is there")
    o = parser.parse_args()
    parts = {name: PARTS[name] for name in o.only.split(",")}
    source = random.Random(7)
    words = [max(12, min(320, round(source.lognormvariate(4.2, 0.7)))) for _ in range(24)]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, server(o.url, Path(name), o.nice) as (where, limits, version):
        folder = Path(name)
        ask(where, folder, [PROMPT_WORDS[0]], 8, 4, 8)  # first calls are slow
        calibrations = [calibrate(where, folder)]
        lengths = [int(r.prompt_tokens or 0) for r in ask(where, folder, words, 1, 4, len(words))]
        drawn = load(
            fitted(calibrations[0]), limits,
            Lengths(statistics.mean(lengths), OUTPUT, pairs=tuple((p, OUTPUT) for p in lengths)), OBJECTIVE,
        )  # fmt: skip
        holds, most = knee(drawn), saturated(drawn)
        rates = {name: round(part * holds, 3) for name, part in parts.items()}
        print(f"predicted: knee {holds:.3f} requests/s, ceiling {most:.3f}; loads {rates}", flush=True)
        for number in range(o.rounds):
            order = list(parts)
            random.Random(number).shuffle(order)
            for label in order:
                seen = measure(where, folder, words, rates[label], o.seconds, number + 1)
                calibrations.append(calibrate(where, folder))
                said = predict(seen, joined(*calibrations[-2:]), limits)
                row = {"round": number + 1, "load": label, "rate": rates[label], "predicted": said, **seen}
                rows.append(row)
                print(
                    f"round {number + 1} {label:14} {len(seen['at']):4} requests, {seen['cores_busy']:.2f} cores busy: "
                    + ", ".join(
                        f"{k} {said[k]:.4g}/{seen['measured'][k]:.4g} ({100 * (said[k] / seen['measured'][k] - 1):+.0f} %)"
                        for k in said
                    ),
                    flush=True,
                )
    worst = 0.0
    summary = []
    print("\n| load | figure | predicted | measured | error | errors of the rounds |\n|---|---|---|---|---|---|")
    for label in parts:
        for key in ("output_tok_s", "ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms"):
            mine = [r for r in rows if r["load"] == label]
            said, seen = (statistics.median(r[side][key] for r in mine) for side in ("predicted", "measured"))
            errors = [r["predicted"][key] / r["measured"][key] - 1 for r in mine]
            error = statistics.median(errors)
            summary.append(
                {
                    "load": label,
                    "rate": rates[label],
                    "figure": key,
                    "predicted": said,
                    "measured": seen,
                    "error": error,
                    "errors": errors,
                }
            )
            print(f"| {label}, {rates[label]:.2f}/s | {key} | {said:.4g} | {seen:.4g} | {100 * error:+.0f} % | {', '.join(f'{100 * e:+.0f}' for e in errors)} |")  # fmt: skip
            if key in ("output_tok_s", "ttft_p95_ms"):
                worst = max(worst, abs(error))
    if o.out:
        record = {
            "what": "vLLM on one CPU core, SmolLM2-135M-Instruct bf16, eager, no prefix cache: loads predicted by dstune.plan.simulate and measured",
            "made_by": "benchmarks/simulate_validate.py", "date": time.strftime("%Y-%m-%d"), "vllm": version, "flags": list(FLAGS), "nice": o.nice, "limits": asdict(limits),
            "knee_request_s": holds, "ceiling_request_s": most, "objective": asdict(OBJECTIVE), "summary": summary, "rows": rows,
            "calibrations": [asdict(fitted(c)) for c in calibrations],
            "calibration_medians_ms": [
                {"steps": {n: 1e3 * statistics.median(v) for n, v in c.steps.items()}, "prompts": [(p, 1e3 * t) for p, t in c.prompts]}
                for c in calibrations
            ],
        }  # fmt: skip
        out = Path(o.out)
        sessions = json.loads(out.read_text(encoding="utf-8"))["sessions"] if out.exists() else []
        rows_of = json.dumps({"sessions": [*sessions, _round(record)]}, separators=(",", ":"))
        out.write_text(rows_of + "\n", encoding="utf-8")
    print(f"\nworst median error of throughput and p95 first token: {100 * worst:.0f} % (target 20 %)")
    return int(worst > 0.2)


if __name__ == "__main__":
    raise SystemExit(main())
