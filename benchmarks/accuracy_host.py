"""Measures what an eager decode step costs on this host, and whether a tiny model tells it: python benchmarks/accuracy_host.py OUT.json

Before every decode measurement a model of 28 layers and 64 hidden units (no work for the GPU) takes the same steps: its step time over 28 x 42
+ 60 launches is the host's launch cost at that moment (`host_launch_us` in the row's flags, as `dstune estimate --host-launch-us`). Random
weights; needs a GPU, torch and transformers.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time

from accuracy_measure import SHAPES, build

LAYERS, LAUNCHES = 28, 28 * 42 + 60
POINTS = ((1, 300), (6, 400), (1, 7000), (24, 600))
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "vocab_size": 1024,
}  # fmt: skip


def step(model, batch: int, prompt: int) -> float:
    """Seconds of one decode step: the difference of two runs, the median of three."""
    import torch

    x = torch.randint(0, 1000, (batch, prompt), device="cuda")

    def run(new: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=new, min_new_tokens=new, do_sample=False)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    run(4)
    return statistics.median((run(28) - run(4)) / 24 for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--seconds", type=float, default=200)
    args = parser.parse_args()
    import torch
    import transformers

    end, rows = time.monotonic() + args.seconds, []
    torch.backends.cuda.enable_cudnn_sdp(False)
    SHAPES["tiny"] = ("tiny", "Qwen2", TINY)
    tiny = build("tiny", "bfloat16", "sdpa")
    with torch.inference_mode():
        for round_ in range(2):
            for key in ("qwen2.5-1.5b", "qwen3-0.6b", "llama-3.2-3b", "llama-3.1-8b"):
                if time.monotonic() > end:
                    break
                model = build(key, "bfloat16", "sdpa")
                for batch, prompt in POINTS:
                    if time.monotonic() > end:
                        break
                    launch = step(tiny, 1, 64) / LAUNCHES
                    seconds = step(model, batch, prompt)
                    rows.append({
                        "id": f"host-{round_}-{key}-{batch}x{prompt}", "engine": "transformers", "engine_version": transformers.__version__,
                        "gpu": torch.cuda.get_device_name(), "n_gpus": 1, "model": SHAPES[key][0], "dtype_or_quant": "bfloat16",
                        "batch_or_concurrency": batch, "input_tokens": prompt, "output_tokens": 24, "metric": "decode_tok_s_per_stream",
                        "value": 1 / seconds, "flags": {"attn_implementation": "sdpa", "host_launch_us": round(launch * 1e6, 3)},
                    })  # fmt: skip
                    print(rows[-1]["id"], f"{seconds * 1e3:.2f} ms, launch {launch * 1e6:.2f} us", flush=True)
                del model
                gc.collect()
                torch.cuda.empty_cache()
    on = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "weights": "random",
    }
    with open(args.out, "w", encoding="utf-8") as f:
        json.dump({"on": on, "measurements": rows}, f, indent=0)


if __name__ == "__main__":
    main()
