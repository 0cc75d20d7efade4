"""Measures memory and speed of random-weight models with transformers on the card of this machine.

    python benchmarks/accuracy_measure.py OUT.json [--seconds 420] [--models qwen3-0.6b,llama-3.2-3b]

Needs torch, transformers and a CUDA card; no network and no checkpoint. Rows have the form of `dstune estimate --jsonl` with a
`value`; `accuracy.py` scores them. Random weights: sizes and speeds only.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time

SHAPES = {
    "qwen3-0.6b": ("Qwen/Qwen3-0.6B", "Qwen3", {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True}),
    "llama-3.2-3b": ("meta-llama/Llama-3.2-3B-Instruct", "Llama", {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": True}),
    "qwen2.5-1.5b": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "Qwen2", {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": False}),
    "llama-3.1-8b": ("meta-llama/Llama-3.1-8B-Instruct", "Llama", {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": False}),
    "qwen2.5-14b": ("Qwen/Qwen2.5-14B-Instruct", "Qwen2", {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064, "tie_word_embeddings": False}),
}  # fmt: skip
PREFILLS = ((1, 700), (3, 1500), (1, 6000), (2, 12000), (16, 900))
DECODES = ((1, 300), (1, 7000), (1, 28000), (6, 400), (24, 600), (4, 6000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--models", default=",".join(SHAPES))
    args = parser.parse_args()
    import torch
    import transformers

    end = time.monotonic() + args.seconds
    torch.backends.cuda.enable_cudnn_sdp(False)
    on = {
        "gpu": torch.cuda.get_device_name(),
        "total_mib": torch.cuda.get_device_properties(0).total_memory / 2**20,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cudnn_sdp": False,
        "weights": "random",
    }
    rows: list[dict] = []
    for key in args.models.split(","):
        for dtype, attn in (("bfloat16", "sdpa"), ("bfloat16", "eager"), ("float32", "sdpa")):
            if time.monotonic() > end or (dtype == "float32" and "14b" in key):
                continue
            try:
                one_model(key, dtype, attn, rows, end)
            except torch.cuda.OutOfMemoryError as error:
                print("out of memory", key, dtype, attn, str(error)[:80], flush=True)
            gc.collect()
            torch.cuda.empty_cache()
            with open(args.out, "w", encoding="utf-8") as f:
                json.dump({"on": on, "measurements": rows}, f, indent=0)
    for key in ("qwen3-0.6b", "llama-3.1-8b"):
        if time.monotonic() < end + 60 and key in args.models:
            static(key, rows)
    with open(args.out, "w", encoding="utf-8") as f:
        json.dump({"on": on, "measurements": rows}, f, indent=0)
    print(len(rows), "rows", flush=True)


def build(key: str, dtype: str, attn: str):
    """A model with random weights, on the card from the start."""
    import torch
    import transformers

    _, family, shape = SHAPES[key]
    config = getattr(transformers, family + "Config")(max_position_embeddings=65536, **shape)
    config._attn_implementation = attn
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with (
            torch.device("cuda"),
            transformers.initialization.no_init_weights() if hasattr(transformers, "initialization") else torch.no_grad(),
        ):
            model = getattr(transformers, family + "ForCausalLM")(config)
    finally:
        torch.set_default_dtype(before)
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def used_mib() -> float:
    """What this process holds on the card (alone there), torch's cache and the CUDA context included."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def one_model(key: str, dtype: str, attn: str, rows: list[dict], end: float) -> None:
    import torch

    model = build(key, dtype, attn)
    ident, _, shape = SHAPES[key]

    def row(metric: str, value: float, batch: int, prompt: int, output: int, **flags) -> None:
        rows.append({
            "id": f"{key}-{dtype}-{attn}-{batch}x{prompt}+{output}-{metric}", "engine": "transformers", "engine_version": "5.17.0",
            "gpu": torch.cuda.get_device_name(), "n_gpus": 1, "model": ident, "dtype_or_quant": dtype, "batch_or_concurrency": batch,
            "input_tokens": prompt, "output_tokens": output, "metric": metric, "value": value,
            "flags": {"attn_implementation": attn, **flags},
        })  # fmt: skip

    def ids(batch: int, prompt: int):
        return torch.randint(0, 1000, (batch, prompt), device="cuda")

    def timed(call) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def generate(x, new: int):
        return model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=new, min_new_tokens=new, do_sample=False)

    with torch.inference_mode():
        generate(ids(1, 32), 4)
        print(key, dtype, attn, f"{torch.cuda.memory_allocated() / 2**30:.2f} GiB", flush=True)
        for batch, prompt in PREFILLS:
            if (
                time.monotonic() > end
                or (attn == "eager" and batch * prompt**2 * shape["num_attention_heads"] > 2.2e9)
                or (dtype == "float32" and batch * prompt > 12000)
            ):
                continue
            x = ids(batch, prompt)
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            generate(x, 1)
            row("peak_allocated_gib", torch.cuda.max_memory_allocated() / 2**30, batch, prompt, 1)
            row("peak_vram_gib", used_mib() / 1024, batch, prompt, 1)
            row("ttft_ms", statistics.median(timed(lambda: generate(x, 1)) for _ in range(3)) * 1e3, batch, prompt, 1)  # noqa: B023
        if attn == "eager":
            return
        for batch, prompt in DECODES:
            if time.monotonic() > end or (dtype == "float32" and batch * prompt > 12000):
                continue
            x = ids(batch, prompt)
            steps = []
            for _ in range(3):
                short, long = timed(lambda: generate(x, 4)), timed(lambda: generate(x, 28))  # noqa: B023
                steps.append((long - short) / 24)
            row("decode_tok_s_per_stream", 1 / statistics.median(steps), batch, prompt, 24)


def static(key: str, rows: list[dict]) -> None:
    """Static cache with the compile that transformers does for it."""
    import torch

    model = build(key, "bfloat16", "sdpa")
    ident = SHAPES[key][0]
    with torch.inference_mode():
        for batch in (1, 16):
            x = torch.randint(0, 1000, (batch, 300), device="cuda")

            def generate(new: int, x=x):
                return model.generate(
                    x,
                    attention_mask=torch.ones_like(x),
                    max_new_tokens=new,
                    min_new_tokens=new,
                    do_sample=False,
                    cache_implementation="static",
                    max_cache_len=512,
                )

            for _ in range(3):
                generate(40)
            steps = []
            for _ in range(3):
                times = []
                for new in (10, 110):
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    generate(new)
                    torch.cuda.synchronize()
                    times.append(time.perf_counter() - start)
                steps.append((times[1] - times[0]) / 100)
            rows.append({
                "id": f"{key}-static-{batch}x300-decode", "engine": "transformers", "engine_version": "5.17.0", "gpu": torch.cuda.get_device_name(),
                "n_gpus": 1, "model": ident, "dtype_or_quant": "bfloat16", "batch_or_concurrency": batch, "input_tokens": 300, "output_tokens": 100,
                "metric": "decode_tok_s_per_stream", "value": 1 / statistics.median(steps), "flags": {"attn_implementation": "sdpa", "cache": "static", "max_model_len": 512},
            })  # fmt: skip
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
