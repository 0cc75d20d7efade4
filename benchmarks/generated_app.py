"""The naive Gradio program against the program of `dstune generate app`, same prompts, on one GPU with the 1.5B shape and random weights.

    python benchmarks/generated_app.py OUT.json [PHASES]      phases, comma-separated: latency users32 naive users8 nf4 forms steps soak

Needs torch, transformers, accelerate, gradio 6, httpx, nvidia-ml-py (bitsandbytes for nf4 and forms). BENCH_SOAK: seconds of the soak.

Random weights: speed and memory only. No end token comes up, so answers have the length that is asked for. The tokenizer is made here:
a token for each byte, and a word for every other number of the vocabulary. Times are those of a client in another process.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MINUTE_S = 60.0
WORK = Path(os.environ.get("BENCH_DIR", "/tmp/generated-app"))
MODEL = WORK / "R1-1.5B-shape"
SHAPE = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 131072, "rope_theta": 10000,
    "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "hidden_act": "silu", "dtype": "bfloat16", "bos_token_id": 151643,
}  # fmt: skip
MAKE = """
import json, sys, torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from tokenizers import Tokenizer, models, pre_tokenizers, decoders
out, shape = sys.argv[1], json.loads(sys.argv[2])
device = "cuda" if torch.cuda.is_available() else "cpu"
config = AutoConfig.for_model(**shape)
torch.manual_seed(0)
with torch.device(device):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
model.save_pretrained(out)
vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
vocab |= {f"\\u0120w{i}": i for i in range(len(vocab), shape["vocab_size"])}
made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template).save_pretrained(out)
"""

STEPS = """
import json, sys, time, torch
sys.path.insert(0, sys.argv[1])
from chat import settings, model
from chat.decoder import Decoder
s = settings.load(sys.argv[1] + "/config.yaml")
d = Decoder(model.load(s), s.slots, s.cache.context, False)
free = lambda: torch.cuda.mem_get_info()[0] / 1e6
before = free()
found = {"weights_allocated_mb": round(torch.cuda.memory_allocated() / 1e6), "before_warm_up_reserved_mb": round(torch.cuda.memory_reserved() / 1e6)}
found |= {"record_s": round(d.warm_up(), 2), "graphs": len(d.graphs), "unrecorded": d.unrecorded}
found |= {"warm_up_took_mb": round(before - free()), "reserved_mb": round(torch.cuda.memory_reserved() / 1e6), "allocated_mb": round(torch.cuda.memory_allocated() / 1e6), "cache_mb": round(d.cache.bytes() / 1e6)}
def step(rows, length, runs):
    for _ in range(3): d.decode(rows, length)()
    begin = time.perf_counter()
    for _ in range(runs): d.decode(rows, length)()
    return round(1e3 * (time.perf_counter() - begin) / runs, 3)
for graphs in (True, False):
    kept = d.graphs
    if not graphs: d.graphs = {}
    found["graph_ms" if graphs else "eager_ms"] = {f"{r} x {n}": step(r, n, 30 if graphs else 8) for r in (1, 8, 32) for n in (512, 2048)}
d.graphs = kept
with torch.inference_mode():
    logits = torch.randn(32, 151936, device=d.ids.device, dtype=torch.bfloat16)
    from chat.decoder import sample
    for name, f in (("sample_32_ms", lambda: sample(logits, d.temperature + 0.6, d.top_p * 0.95, d.top_k)),
                    ("prefill_512_ms", lambda: d.prefill([(0, 0, list(range(512)))])), ("prefill_8x512_ms", lambda: d.prefill([(i, 0, list(range(512))) for i in range(8)]))):
        for _ in range(2): f()
        torch.cuda.synchronize(); begin = time.perf_counter()
        for _ in range(10): f()
        torch.cuda.synchronize(); found[name] = round(1e2 * (time.perf_counter() - begin), 3)
print(json.dumps(found))
"""


class Sampler(threading.Thread):
    """Memory of the processes on the card and its utilisation, by NVML, and host memory of `pid`, five times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.rows: list[tuple[float, float, int, float]] = []
        self.pid = 0
        self.ended = threading.Event()
        with suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            self.nvml, self.card = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)

    def run(self) -> None:
        """Until `ended`."""
        while hasattr(self, "card") and not self.ended.wait(0.2):
            with suppress(Exception):
                held = sum(p.usedGpuMemory or 0 for p in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.card))
                util = self.nvml.nvmlDeviceGetUtilizationRates(self.card).gpu
                self.rows.append((time.monotonic(), held / 1e9, util, resident_gb(self.pid)))

    def between(self, begin: float, end: float) -> dict[str, Any]:
        """Peak memory in GB and mean utilisation of a span."""
        rows = [r for r in self.rows if begin <= r[0] <= end]
        if not rows:
            return {}
        first = [r[1] for r in rows[: max(1, len(rows) // 10)]]
        return {
            "process_peak_gb": round(max(r[1] for r in rows), 3), "process_first_gb": round(max(first), 3), "process_last_gb": round(rows[-1][1], 3),
            "gpu_util_mean": round(statistics.mean(r[2] for r in rows), 1), "samples": len(rows),
            "host_first_gb": round(max(r[3] for r in rows[: max(1, len(rows) // 10)]), 3), "host_last_gb": round(rows[-1][3], 3),
        }  # fmt: skip

    def minutes(self, begin: float, end: float) -> list[dict[str, float]]:
        """Each minute's peaks and mean utilisation."""
        spans = [
            [r for r in self.rows if begin + 60 * n <= r[0] < min(end, begin + 60 * n + 60)]
            for n in range(int((end - begin) / 60) + 1)
        ]
        return [
            {"process_gb": round(max(r[1] for r in s), 3), "host_gb": round(max(r[3] for r in s), 3), "gpu_util": round(statistics.mean(r[2] for r in s), 1)}
            for s in spans if s
        ]  # fmt: skip


def resident_gb(pid: int) -> float:
    """Host memory of a process in GB; 0 without one."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9
    return 0.0


@contextmanager
def served(command: list[str], cwd: Path, port: int, path: str, log: Path, within_s: float = 120, sampler: Any = None) -> Any:
    """A server until the block ends; the seconds until it answered."""
    import httpx

    env = {**os.environ, "HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_SERVER_PORT": str(port)}
    begin = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}{path}", timeout=2).status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() - begin > within_s:
                raise RuntimeError(f"{command} did not come up:\n{log.read_text()[-4000:]}")
            time.sleep(0.25)
        if sampler:
            sampler.pid = process.pid
        yield round(time.monotonic() - begin, 1)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def text(number: int, tokens: int) -> str:
    """A prompt of so many tokens (bytes) that begins like no other."""
    letters = random.Random(number)
    return "".join(letters.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(tokens))


def mixed(count: int) -> list[tuple[int, int, int]]:
    """(number, prompt tokens, answer tokens): 64 to 1500 in, 64 to 512 out."""
    draw = random.Random(7)
    return [(1000 + n, draw.randint(64, 1500), draw.randint(64, 512)) for n in range(count)]


async def ask(client: Any, port: int, prompt: str, count: int) -> dict[str, Any]:
    """One streamed answer of the generated program."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": count, "stream": True, "ignore_eos": True}
    begin, first, last, usage = time.monotonic(), 0.0, 0.0, {}
    try:
        async with client.stream(
            "POST", f"http://127.0.0.1:{port}/v1/chat/completions", json={**body, "stream_options": {"include_usage": True}}
        ) as answer:
            if answer.status_code != 200:
                return {"error": f"http {answer.status_code}: {(await answer.aread()).decode()[:200]}"}
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        return {"error": str(event["error"])[:200]}
                    if event["choices"] and set(event["choices"][0]["delta"]) & {"content", "reasoning_content"}:
                        last = time.monotonic()
                        first = first or last
                    usage = event.get("usage") or usage
    except Exception as error:
        return {"error": repr(error)[:200]}
    done = usage.get("completion_tokens", 0)
    if done != count:
        return {"error": f"{done} tokens instead of {count}"}
    return {"ttft": first - begin, "total": last - begin, "tokens": done, "tok_s": (done - 1) / max(1e-9, last - first)}


async def ask_naive(client: Any, port: int, prompt: str, count: int) -> dict[str, Any]:
    """One answer of the naive program, through its queue. It streams nothing: its first text is its whole text."""
    base, begin = f"http://127.0.0.1:{port}/gradio_api/call/predict", time.monotonic()
    try:
        event = (await client.post(base, json={"data": [prompt, 0.6, count]})).json()["event_id"]
        async with client.stream("GET", f"{base}/{event}") as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event: error"):
                    return {"error": "error event"}
                if line.startswith("event: complete"):
                    total = time.monotonic() - begin
                    return {"ttft": total, "total": total, "tokens": count, "tok_s": count / total}
    except Exception as error:
        return {"error": repr(error)[:200]}
    return {"error": "no answer"}


async def crowd(
    one: Any,
    port: int,
    work: list[tuple[int, int, int]],
    users: int,
    within_s: float,
    drain_s: float = 0,
    so_far: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """`users` clients that take the next request when answered; what was answered within the time.

    With `drain_s` nobody asks anew after `within_s`, and what runs may finish in that time: what is missing then was lost.
    `so_far` gets the figures once a minute.
    """
    import httpx

    results: list[dict[str, Any]] = []
    todo = list(reversed(work))
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=users + 4), trust_env=False) as client:

        async def user() -> None:
            while todo and not (drain_s and time.monotonic() - begin > within_s):
                number, length, count = todo.pop()
                results.append(await one(client, port, text(number, length), count))

        begin = time.monotonic()
        pending = {asyncio.create_task(user()) for _ in range(users)}
        end = begin + within_s + drain_s
        while pending and (left := end - time.monotonic()) > 0:
            _, pending = await asyncio.wait(pending, timeout=min(left, MINUTE_S) if so_far else left)
            if pending and so_far:
                so_far(figures(results, users, len(work) - len(todo), time.monotonic() - begin, None))
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        wall = time.monotonic() - begin
    return figures(results, users, len(work) - len(todo), wall, within_s if pending else None)


def figures(results: list[dict[str, Any]], users: int, asked: int, wall: float, cut_s: float | None) -> dict[str, Any]:
    """What a crowd got: answers, errors, tokens a second, times to first text."""
    good = [r for r in results if "error" not in r]
    ttfts = sorted(r["ttft"] for r in good)
    return {
        "users": users, "asked": asked, "answered": len(good), "wall_s": round(wall, 2), "cut_after_s": cut_s,
        "errors": [r["error"] for r in results if "error" in r and "Cancelled" not in r["error"]][:5], "output_tokens": sum(r["tokens"] for r in good),
        "output_tok_s": round(sum(r["tokens"] for r in good) / wall, 1), "ttft_p50_ms": round(1e3 * statistics.median(ttfts), 1) if ttfts else None,
        "ttft_p95_ms": round(1e3 * ttfts[max(0, int(len(ttfts) * 0.95 + 0.999) - 1)], 1) if ttfts else None,
        "decode_tok_s_per_user_p50": round(statistics.median(r["tok_s"] for r in good), 1) if good else None,
    }  # fmt: skip


def generated(
    name: str, mode: str, slots: int, context: int, quantization: str = "none", **changes: Any
) -> tuple[Path, dict[str, Any]]:
    """A folder of `dstune generate app`, its path, and what the sizing said. Limits are widened to what the bench asks.

    `changes` are keys of the configuration by section: cache={"kv_compress_ratio": 0.5}.
    """
    import yaml

    sys.path.insert(0, str(ROOT))
    from dstune.catalog import gpus, models
    from dstune.render.size import size

    out = WORK / name
    words = ["--mode", mode, "--context", str(context), *(["--concurrency", str(slots)] if slots > 1 else [])]
    words += ["--quantization", quantization]
    command = [
        sys.executable,
        "-m",
        "dstune",
        "generate",
        "app",
        "--gpu",
        "h200",
        "--model",
        str(MODEL),
        *words,
        "-o",
        str(out),
        "--force",
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    config = yaml.safe_load((out / "config.yaml").read_text())
    config["generation"]["runaway_tokens"] = 0
    config["server"]["queue"] = 128
    config["cache"]["cpu_ram_limit_gb"] = 1
    for section, values in changes.items():
        config[section].update(values)
    (out / "config.yaml").write_text(yaml.safe_dump(config))
    model = models.get("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    made = size(gpus.find("h200"), model, mode, slots, context, quantization=quantization)
    return out, {"command": " ".join(["dstune", *command[3:-1]]), "estimated_gb": round(made.total_mib * 2**20 / 1e9, 3)}


def save(path: Path, report: dict[str, Any]) -> None:
    """Writes the report whole or not at all: a run may be cut at any moment."""
    new = path.with_suffix(".part")
    new.write_text(json.dumps(report, indent=1))
    new.replace(path)


def main() -> None:
    """All phases; the file is written after each, so that a broken one costs itself alone."""
    out = Path(sys.argv[1])
    wanted = sys.argv[2].split(",") if len(sys.argv) > 2 else ["latency", "users32", "users8", "naive", "steps"]
    WORK.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"phases": {}}
    if not (MODEL / "config.json").exists():
        subprocess.run(
            [sys.executable, "-c", MAKE, str(MODEL), os.environ.get("BENCH_SHAPE") or json.dumps(SHAPE)], check=True, cwd=WORK
        )
    sampler = Sampler()
    sampler.start()

    def measure(body: Any) -> dict[str, Any]:
        begin = time.monotonic()
        made = dict(asyncio.run(body))
        return {**made, **sampler.between(begin, time.monotonic())}

    def phase(name: str, run: Any) -> None:
        if name not in wanted:
            return
        begin = time.monotonic()
        try:
            report["phases"][name] = run()
        except Exception as error:
            report["phases"][name] = {"failed": repr(error)[-3000:]}
        report["phases"][name]["took_s"] = round(time.monotonic() - begin, 1)
        save(out, report)
        print(name, json.dumps(report["phases"][name], indent=1)[:3500], flush=True)

    def single(one: Any, port: int, runs: int, answer: int = 256) -> list[dict[str, Any]]:
        return [measure(crowd(one, port, [(n, 512, answer)], 1, 60)) for n in range(runs)]

    def app(name: str, mode: str, slots: int, context: int, port: int, load: Any, **changes: Any) -> dict[str, Any]:
        folder, said = generated(name, mode, slots, context, **changes)
        log = out.parent / f"{name}.log"
        with served([sys.executable, "app.py"], folder, port, "/health", log, sampler=sampler) as ready:
            found = load(port)
        lines = [line for line in log.read_text().splitlines() if "model loaded" in line or "CUDA graphs" in line]
        return {**said, "ready_s": ready, "server_said": lines, **found}

    def eight(port: int) -> dict[str, Any]:
        return {"full": measure(crowd(ask, port, [(n, 1500, 540) for n in range(100, 108)], 8, 60))}

    def soak(port: int) -> dict[str, Any]:
        """Eight users with one request among them that is too long; the first half minute apart, when caches fill.

        Each minute's figures are in the file at once: a run that is cut keeps them, marked `"unfinished": true`.
        """
        seconds = float(os.environ.get("BENCH_SOAK", "60"))
        work = [(5000 + n, *row[1:]) for n, row in enumerate(mixed(int(20 * seconds) + 100))]
        work[len(work) // 40] = (1, 6000, 64)
        warm = measure(crowd(ask, port, mixed(60), 8, 60))
        begin = time.monotonic()

        def so_far(found: dict[str, Any]) -> None:
            now = time.monotonic()
            part = {**found, **sampler.between(begin, now)}
            report["phases"]["soak"] = {
                "unfinished": True, "warm": warm, "soak_with_one_oversized": part, "minutes": sampler.minutes(begin, now)
            }  # fmt: skip
            save(out, report)

        found = measure(crowd(ask, port, work, 8, seconds, 60, so_far))
        return {"warm": warm, "soak_with_one_oversized": found, "minutes": sampler.minutes(begin, time.monotonic())}

    def timeline(port: int) -> dict[str, Any]:
        """`dstune bench` against the same server: the card's curve beside the load."""
        url, kept = f"http://127.0.0.1:{port}/v1", out.parent / "bench-beside-gpu.json"
        words = ["bench", url, "-c", "32", "--duration", "12s", "--max-tokens", "256", "-o", str(kept)]
        done = subprocess.run(
            [sys.executable, "-m", "dstune", *words], cwd=ROOT, capture_output=True, text=True, timeout=90, env={**os.environ, "NO_COLOR": "1"}
        )  # fmt: skip
        (out.parent / "bench-beside-gpu.txt").write_text(done.stdout + done.stderr)
        return {"bench": " ".join(["dstune", *words[:-2]]), "rc": done.returncode}

    def forms() -> dict[str, Any]:
        """Other forms of weights, cache and place: that they answer, how fast, in what memory."""
        half = {"layer_map": {"cuda:0": ["0-13"], "cpu": ["14-27"]}}
        few = [(700 + n, 512, 64) for n in range(4)]
        made = {}
        for n, (name, changes) in enumerate(
            {"int8": {"quantization": "int8"}, "float8_cache": {"cache": {"kv_compress_ratio": 0.5}}, "half_on_cpu": {"model": half}}.items()
        ):  # fmt: skip
            try:
                made[name] = app(
                    name, "throughput", 4, 2048, 7880 + n, lambda port: measure(crowd(ask, port, few, 4, 60)), **changes
                )
            except Exception as error:
                made[name] = {"failed": repr(error)[-1500:]}
        return made

    phase("latency", lambda: app("latency", "latency", 1, 4096, 7871, lambda port: {"single": single(ask, port, 4)}))
    phase(
        "users32",
        lambda: app(
            "users32", "throughput", 32, 2048, 7872,
            lambda port: {"single": single(ask, port, 3), "mixed": measure(crowd(ask, port, mixed(160), 32, 90)), **timeline(port)},
        ),
    )  # fmt: skip

    def naive() -> dict[str, Any]:
        source = (ROOT / "examples/gradio-naive-interface/app.py").read_text()
        swapped = source.replace("/root/.cache/huggingface/deepseek-ai/DeepSeek-R1-Distill-Qwen-1___5B", str(MODEL))
        (WORK / "naive.py").write_text(swapped)
        with served([sys.executable, "naive.py"], WORK, 7860, "/config", out.parent / "naive.log") as ready:
            alone = single(ask_naive, 7860, 2, 128)
            many = measure(crowd(ask_naive, 7860, mixed(160), 32, float(os.environ.get("BENCH_NAIVE", "45"))))
        return {"ready_s": ready, "single": alone, "mixed": many}

    phase("naive", naive)
    phase("users8", lambda: app("users8", "throughput", 8, 2048, 7873, eight))
    phase("nf4", lambda: app("nf4", "throughput", 8, 2048, 7874, eight, quantization="nf4"))
    phase("forms", forms)

    def steps() -> dict[str, Any]:
        command = [sys.executable, "-c", STEPS, str(WORK / "users32")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=WORK)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return dict(json.loads(done.stdout.splitlines()[-1]))

    phase("steps", steps)
    phase("soak", lambda: app("soak", "throughput", 8, 2048, 7875, soak))
    sampler.ended.set()


if __name__ == "__main__":
    main()
