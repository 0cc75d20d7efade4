"""Where a serving process's memory goes, told by `dstune doctor` beside it on a real GPU: is the unexplained rest small?

python benchmarks/memory_holders.py OUT.json [SECONDS]      needs torch and transformers there; about a minute a shape

Random weights. Each server is a program of its own (transformers behind http.server, as people write it), started from a file; doctor knows
nothing but the process table, the program's text, the model folder and NVML. States: loaded, after a short request, after a long one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WORK = Path(os.environ.get("BENCH_DIR", "/tmp/memory-holders"))
SHAPES: dict[str, dict[str, Any]] = {
    "R1-1.5B": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    },
    "Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
RUNS = (
    ("R1-1.5B", "torch.bfloat16", "sdpa"), ("R1-1.5B", "torch.float32", "sdpa"), ("R1-1.5B", "torch.bfloat16", "eager"),
    ("Qwen3-0.6B", "torch.bfloat16", "sdpa"),
)  # fmt: skip
STATES = (("loaded", 0, 0), ("512 + 128 tokens", 512, 128), ("4096 + 64 tokens", 4096, 64))
PROGRAM = """
import http.server, sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
MODEL = {folder!r}
if not __import__("os").path.exists(MODEL + "/model.safetensors"):
    with torch.device("cuda"):
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL), dtype=torch.bfloat16).save_pretrained(MODEL)
    sys.exit(3)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype={dtype}, attn_implementation={attention!r}, device_map="cuda")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        prompt, answer = map(int, self.path.strip("/").split("-"))
        if prompt:
            ids = torch.randint(1000, (1, prompt), device="cuda")
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=128, min_new_tokens=answer, do_sample=False)
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""


def doctor(folder: Path) -> dict[str, Any]:
    """The process as doctor tells it, and the evidence kept for tests."""
    done = subprocess.run(
        [sys.executable, "-m", "dstune", "doctor", "--json"], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    block = json.loads(done.stdout).get("memory")
    if not block:
        raise SystemExit(f"doctor saw no process on the card\n{done.stdout[-2000:]}\n{done.stderr}")
    return next(p for p in block[0]["processes"] if str(folder) in p["command"] or p["model"])


def one(shape: str, dtype: str, attention: str, port: int) -> list[dict[str, Any]]:
    """A server in its states."""
    folder = WORK / shape
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SHAPES[shape], "dtype": "bfloat16"}))
    program = WORK / f"serve-{port}.py"
    program.write_text(PROGRAM.format(folder=str(folder), dtype=dtype, attention=attention, port=port))
    if not (folder / "model.safetensors").exists():
        subprocess.run([sys.executable, program], check=False, timeout=300)
    child = subprocess.Popen([sys.executable, str(program)])
    found = []
    try:
        for name, prompt, answer in STATES:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/{prompt}-{answer}", timeout=300).read()
                    break
                except OSError:
                    if child.poll() is not None:
                        raise SystemExit(f"the server ended with {child.returncode}") from None
                    time.sleep(0.2)
            time.sleep(0.5)
            process = doctor(folder)
            rest = float(process.get("rest_mib") or 0.0)
            print(
                f"{shape} {dtype} {attention}, {name}: {process['mib']:,.0f} MiB, rest {rest} ({100 * rest / process['mib']:+.1f} %)",
                flush=True,
            )
            found.append({"shape": shape, "dtype": dtype, "attention": attention, "state": name, "process": process})
    finally:
        child.kill()
        child.wait()
    return found


def main() -> None:
    """All runs, for as long as SECONDS allow; the file is written after each."""
    out, seconds = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1e9
    started, found = time.monotonic(), []
    for number, run in enumerate(RUNS):
        if time.monotonic() - started > seconds:
            break
        found += one(*run, 8900 + number)
        out.write_text(json.dumps({"made_by": "benchmarks/memory_holders.py", "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
