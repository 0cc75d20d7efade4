"""The naive Gradio program against the program of `dstune generate app`, same prompts, on one GPU with the 1.5B shape and random weights.

python benchmarks/generated_app.py OUT.json      needs torch, transformers, accelerate, gradio 6, httpx, nvidia-ml-py; about 5 minutes

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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
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
found = {"record_s": round(d.warm_up(), 2), "graphs": len(d.graphs), "unrecorded": d.unrecorded}
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
    """Memory of the processes on the card and its utilisation, by NVML, five times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.rows: list[tuple[float, float, int]] = []
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
                self.rows.append((time.monotonic(), held / 1e9, self.nvml.nvmlDeviceGetUtilizationRates(self.card).gpu))

    def between(self, begin: float, end: float) -> dict[str, Any]:
        """Peak memory in GB and mean utilisation of a span."""
        rows = [r for r in self.rows if begin <= r[0] <= end]
        if not rows:
            return {}
        first = [r[1] for r in rows[: max(1, len(rows) // 10)]]
        return {
            "process_peak_gb": round(max(r[1] for r in rows), 3), "process_first_gb": round(max(first), 3), "process_last_gb": round(rows[-1][1], 3),
            "gpu_util_mean": round(statistics.mean(r[2] for r in rows), 1), "samples": len(rows),
        }  # fmt: skip


@contextmanager
def served(command: list[str], cwd: Path, port: int, path: str, log: Path, within_s: float = 120) -> Any:
    """A server until the block ends; its process."""
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


async def crowd(one: Any, port: int, work: list[tuple[int, int, int]], users: int, within_s: float) -> dict[str, Any]:
    """`users` clients that take the next request when answered; what was answered within the time."""
    import httpx

    results: list[dict[str, Any]] = []
    todo = list(reversed(work))
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=users + 4), trust_env=False) as client:

        async def user() -> None:
            while todo:
                number, length, count = todo.pop()
                results.append(await one(client, port, text(number, length), count))

        begin = time.monotonic()
        tasks = [asyncio.create_task(user()) for _ in range(users)]
        _, pending = await asyncio.wait(tasks, timeout=within_s)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        wall = time.monotonic() - begin
    good = [r for r in results if "error" not in r]
    ttfts = sorted(r["ttft"] for r in good)
    return {
        "users": users, "asked": len(work), "answered": len(good), "wall_s": round(wall, 2), "cut_after_s": within_s if pending else None,
        "errors": [r["error"] for r in results if "error" in r and "Cancelled" not in r["error"]][:5], "output_tokens": sum(r["tokens"] for r in good),
        "output_tok_s": round(sum(r["tokens"] for r in good) / wall, 1), "ttft_p50_ms": round(1e3 * statistics.median(ttfts), 1) if ttfts else None,
        "ttft_p95_ms": round(1e3 * ttfts[max(0, int(len(ttfts) * 0.95 + 0.999) - 1)], 1) if ttfts else None,
        "decode_tok_s_per_user_p50": round(statistics.median(r["tok_s"] for r in good), 1) if good else None,
    }  # fmt: skip


def generated(name: str, mode: str, slots: int, context: int) -> tuple[Path, dict[str, Any]]:
    """A folder of `dstune generate app`, its path, and what the sizing said. Limits are widened to what the bench asks."""
    import yaml

    sys.path.insert(0, str(ROOT))
    from dstune.catalog import gpus, models
    from dstune.render.size import size

    out = WORK / name
    words = ["--mode", mode, "--context", str(context), *(["--concurrency", str(slots)] if slots > 1 else [])]
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
    (out / "config.yaml").write_text(yaml.safe_dump(config))
    made = size(gpus.find("h200"), models.get("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"), mode, slots, context)
    return out, {"command": " ".join(["dstune", *command[3:-1]]), "estimated_gb": round(made.total_mib * 2**20 / 1e9, 3)}


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
        out.write_text(json.dumps(report, indent=1))
        print(name, json.dumps(report["phases"][name], indent=1)[:3500], flush=True)

    def single(one: Any, port: int, runs: int, answer: int = 256) -> list[dict[str, Any]]:
        return [measure(crowd(one, port, [(n, 512, answer)], 1, 60)) for n in range(runs)]

    def app(name: str, mode: str, slots: int, context: int, port: int, load: Any) -> dict[str, Any]:
        folder, said = generated(name, mode, slots, context)
        log = out.parent / f"{name}.log"
        with served([sys.executable, "app.py"], folder, port, "/health", log) as ready:
            found = load(port)
        lines = [line for line in log.read_text().splitlines() if "model loaded" in line or "CUDA graphs" in line]
        return {**said, "ready_s": ready, "server_said": lines, **found}

    def eight(port: int) -> dict[str, Any]:
        full = measure(crowd(ask, port, [(n, 1500, 540) for n in range(100, 108)], 8, 60))
        soak = [(5000 + n, *row[1:]) for n, row in enumerate(mixed(400))]
        soak[40] = (1, 6000, 64)  # one that is too long
        return {
            "full": full,
            "soak_with_one_oversized": measure(crowd(ask, port, soak, 8, float(os.environ.get("BENCH_SOAK", "40")))),
        }

    phase("latency", lambda: app("latency", "latency", 1, 4096, 7871, lambda port: {"single": single(ask, port, 4)}))
    phase(
        "users32",
        lambda: app(
            "users32", "throughput", 32, 2048, 7872,
            lambda port: {"single": single(ask, port, 3), "mixed": measure(crowd(ask, port, mixed(160), 32, 90))},
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

    def steps() -> dict[str, Any]:
        command = [sys.executable, "-c", STEPS, str(WORK / "users32")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=WORK)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return dict(json.loads(done.stdout.splitlines()[-1]))

    phase("steps", steps)
    sampler.ended.set()


if __name__ == "__main__":
    main()
