"""One fixed configuration: parts that sum, shapes that are exact, predictions held against our own measurements."""

import json
import statistics
from dataclasses import replace

import pytest
from click.testing import CliRunner

from dstune.catalog import gpus, models, root
from dstune.cli.estimate import command
from dstune.plan import physics, quant
from dstune.plan.ask import ENGINES, GIB, MIB, Ask
from dstune.plan.estimate import answer, predictions
from dstune.plan.memory import kv_bytes, memory
from dstune.plan.rows import ask_of
from dstune.plan.speed import decode_step, host_launches, prefill_seconds, speed

R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"


def ask(engine="transformers", card="rtx-4090", model=R1, **more):
    return Ask(engine, gpus.find(card), models.find(model), **more)


def measured(name):
    return json.loads((root() / "measurements" / name).read_text())["measurements"]


def errors(name, metric, keep=lambda r: True):
    rows = [r for r in measured(name) if r["metric"] == metric and keep(r)]
    assert len(rows) > 10
    return [predictions(ask_of(r))[metric].value / r["value"] - 1 for r in rows]


def test_peak_memory_on_the_h200():
    """The part that torch counts: 1.5B in bf16, fp16, fp32 and nf4, sdpa and eager, batches 1 to 128, up to 262,144 tokens."""
    found = [abs(e) for e in errors("h200.json", "peak_allocated_gib")]
    assert statistics.median(found) <= 0.005
    assert max(found) <= 0.05


def test_peak_memory_of_models_that_were_never_fitted():
    found = [abs(e) for e in errors("h200-shapes.json", "peak_allocated_gib")]
    assert statistics.median(found) <= 0.01
    assert max(found) <= 0.05


def test_memory_as_nvml_shows_it():
    for name in ("h200.json", "h200-shapes.json"):
        found = [abs(e) for e in errors(name, "peak_vram_gib", lambda r: r["flags"].get("attn_implementation") != "eager")]
        assert statistics.median(found) <= 0.02
        assert max(found) <= 0.10


def test_speed_on_the_h200():
    assert statistics.median(abs(e) for e in errors("h200.json", "decode_tok_s_per_stream")) <= 0.15
    assert statistics.median(abs(e) for e in errors("h200.json", "ttft_ms")) <= 0.10
    assert statistics.median(abs(e) for e in errors("h200-shapes.json", "ttft_ms")) <= 0.05


def test_a_first_token_takes_the_launches_of_one_step_of_its_host():
    """On the second host, whose launches cost 26 us in its first decode step: prompts of 700 to 24,000 tokens, float32 and eager too."""
    first = next(r for r in measured("h200-repeat.json") if r["metric"] == "decode_tok_s_per_stream")
    flags = {"host_launch_us": 1e6 / first["value"] / host_launches(ask_of(first).model)}
    found = []
    for r in measured("h200-repeat.json"):
        if r["metric"] == "ttft_ms":
            p = predictions(ask_of({**r, "flags": {**r["flags"], **flags}}))["ttft_ms"]
            found.append(abs(p.value / r["value"] - 1))
    assert len(found) == 17
    assert statistics.median(found) <= 0.06
    assert max(found) <= 0.20


def test_float32_prompts_with_grouped_heads_pay_for_their_scores():
    """sdpa falls to the math kernel: without its scores, 6,000 tokens of the 0.6B would be predicted at half of the measured time."""
    long = [
        r
        for r in measured("h200-shapes.json")
        if r["metric"] == "ttft_ms" and r["id"].endswith("float32-sdpa-1x6000+1-ttft_ms")
    ]
    assert len(long) == 4
    for r in long:
        assert predictions(ask_of(r))["ttft_ms"].value == pytest.approx(r["value"], rel=0.10), r["id"]


@pytest.mark.parametrize("name", ["h200.json", "h200-shapes.json", "h200-repeat.json"])
def test_about_nine_of_ten_measurements_lie_in_their_band(name):
    rows = measured(name)
    inside = 0
    for r in rows:
        p = predictions(ask_of(r))[r["metric"]]
        inside += p.low <= r["value"] <= p.high
    assert 0.85 <= inside / len(rows) <= 0.99


def test_kv_of_2048_tokens_is_56_mib():
    assert kv_bytes(models.find(R1), 2048) == 56 * MIB


def test_windows_bound_the_cache():
    m = models.find("google/gemma-3-4b-it")
    assert m.local_layers > 0
    assert kv_bytes(m, 32768) < 0.3 * kv_bytes(m, 32768, windows=False)
    assert kv_bytes(m, 512) == kv_bytes(m, 512, windows=False)


def test_only_eager_attention_grows_with_the_square():
    small, large = (memory(ask(attention="eager", prompt=n, output=1)).allocated_mib for n in (4096, 8192))
    flash_small, flash_large = (memory(ask(attention="sdpa", prompt=n, output=1)).allocated_mib for n in (4096, 8192))
    base = memory(ask(prompt=1, output=1)).allocated_mib
    assert (large - base) / (small - base) > 3.5
    assert (flash_large - base) / (flash_small - base) < 2.2


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_have_formula_and_source_and_sum(engine):
    mem = memory(ask(engine, scheme="Q4_K_M" if engine == "llama.cpp" else "", max_len=4096))
    assert all(line.formula and line.source and line.mib > 0 for line in mem.lines)
    assert mem.total_mib == pytest.approx(sum(line.mib for line in mem.lines))
    assert predictions(ask(engine, scheme="Q4_K_M" if engine == "llama.cpp" else ""))["peak_vram_gib"].value > mem.weights_gib


def test_gguf_size_of_llama_3_8b():
    """4.92 GB is the size of the published Q4_K_M file, 8.54 GB of the Q8_0 one."""
    m = models.find("meta-llama/Meta-Llama-3-8B")
    assert quant.weights(m, "float16", "Q4_K_M").total / 1e9 == pytest.approx(4.92, rel=0.01)
    assert quant.weights(m, "float16", "Q8_0").total / 1e9 == pytest.approx(8.54, rel=0.01)


@pytest.mark.parametrize(
    ("card", "model", "scheme", "version", "more", "tokens"),
    [  # start-up logs of vLLM; total memory as each log prints it
        ("l40s", "Qwen/Qwen3-8B", "", "0.10.2", {"utilization": 0.9, "max_len": 4096, "eager": True, "total_mib": 44.4 * 1024}, 175_728),
        ("l40s", "Qwen/Qwen3-8B", "awq-int4", "0.10.2", {"utilization": 0.9, "max_len": 4096, "eager": True, "total_mib": 44.4 * 1024}, 245_344),
        ("a10g", "Qwen/Qwen2.5-Math-1.5B", "", "0.7.2", {"utilization": 0.9, "max_len": 4096, "total_mib": 22.06 * 1024}, 581_312),
        ("t4", "Qwen/Qwen2.5-1.5B-Instruct", "", "0.7.3", {"utilization": 0.5, "max_len": 32768, "total_mib": 14.56 * 1024}, 88_304),
        ("rtx-3090", "Qwen/Qwen2.5-7B-Instruct", "", "0.6.6", {"utilization": 0.9, "max_len": 8192, "max_seqs": 16, "total_mib": 23.57 * 1024}, 107_984),
    ],
)  # fmt: skip
def test_kv_pool_of_real_start_up_logs(card, model, scheme, version, more, tokens):
    mem = memory(ask("vllm", card, model, scheme=scheme, version=version, **more))
    assert mem.kv_tokens == pytest.approx(tokens, rel=0.03)


def test_graphs_are_counted_from_0_21_on():
    old, new = (memory(ask("vllm", version=v, utilization=0.9, max_len=4096)) for v in ("0.20.0", "0.21.0"))
    graphs = next(line.mib for line in new.lines if line.part == "CUDA graphs")
    assert old.kv_mib - new.kv_mib == pytest.approx(graphs, rel=0.01)


def test_a_small_model_in_an_eager_loop_is_bound_by_launches():
    step = decode_step(ask(card="h200-sxm", version="5.17.0"), 1, 200)
    assert step.bound == "launch"
    assert step.host > 4 * step.gpu
    assert decode_step(ask(card="h200-sxm", cache="static"), 1, 200).total < step.total / 3


def test_speed_falls_with_context_and_rises_with_bandwidth():
    long, short = (decode_step(ask("vllm", max_len=131072), 8, n).total for n in (100_000, 1000))
    assert long > 1.5 * short
    assert speed(ask("vllm", "rtx-4090")).decode > 2 * speed(ask("vllm", "rtx-4060")).decode


def test_experts_are_read_only_where_touched():
    moe = ask("vllm", "h100-sxm", "Qwen/Qwen3-30B-A3B")
    one, many = (decode_step(moe, n, 500).memory for n in (1, 64))
    assert many > 4 * one
    assert one < decode_step(ask("vllm", "h100-sxm", "Qwen/Qwen3-32B"), 1, 500).memory / 4


def test_prefill_is_linear_in_tokens_beyond_the_floor():
    a = ask("vllm", "l4")
    assert prefill_seconds(a, 8000, 500) == pytest.approx(4 * prefill_seconds(a, 2000, 500), rel=0.15)


def test_float32_is_the_default_of_transformers_4():
    row = {"engine": "transformers", "gpu": "t4", "model": R1, "engine_version": "4.51.3"}
    assert ask_of(row).dtype == "float32"
    assert ask_of({**row, "engine_version": "5.2.0"}).dtype == "bfloat16"


def test_offloaded_layers_leave_the_card_and_cost_time():
    all_here, half = ask(version="5.17.0"), ask(version="5.17.0", layers_on_cpu=15)
    assert memory(all_here).allocated_mib - memory(half).allocated_mib == pytest.approx(1338, rel=0.05)  # 1.404 GB, measured
    assert decode_step(half, 1, 200).total > 8 * decode_step(all_here, 1, 200).total


def test_versions():
    assert physics.release("vllm", "0.1x (V1)") == (0, 10)
    assert physics.release("vllm", "2024") == (0, 4, 3)
    assert physics.release("vllm", "") == physics.numbers(physics.table("vllm")["version"]["latest"])
    assert physics.release("llama.cpp", "b3622") == (3622,)


def test_every_coefficient_names_its_source():
    for file in ("common", "vllm", "transformers", "llamacpp", "sglang", "quant"):
        for name, entries in physics.table(file).items():
            for entry in entries if isinstance(entries, list) else [entries]:
                assert entry.get("source"), f"{file}.{name}"


def test_unknown_formats_are_refused():
    with pytest.raises(Exception, match="number format"):
        quant.parse("q17_banana")


def run(*args, text=None):
    return CliRunner().invoke(command, args, input=text, standalone_mode=False)


def test_jsonl():
    rows = [
        {"id": "a", "engine": "vllm", "engine_version": "0.10.2", "gpu": "L40S", "n_gpus": 1, "model": "Qwen/Qwen3-8B", "dtype_or_quant": "bf16",
         "flags": {"max_model_len": 4096, "gpu_memory_utilization": 0.9, "enforce_eager": True}, "want": "kv_cache_tokens"},
        {"id": "b", "engine": "vllm", "gpu": "RTX 9999", "model": "Qwen/Qwen3-8B", "dtype_or_quant": "bf16", "want": "kv_cache_tokens"},
        {"id": "c", "engine": "tensorrt-llm", "gpu": "L40S", "model": "Qwen/Qwen3-8B", "dtype_or_quant": "bf16", "want": "total_tok_s"},
    ]  # fmt: skip
    out = [
        json.loads(line) for line in run("--jsonl", text="\n".join(map(json.dumps, rows)) + "\nnot json\n").stdout.splitlines()
    ]
    assert set(out[0]["predictions"]["kv_cache_tokens"]) == {"value", "low", "high"}
    assert "RTX 9999" in out[1]["error"]
    assert "tensorrt-llm" in out[2]["error"]
    assert "error" in out[3]


def test_counts_follow_the_report():
    row = {
        "engine": "vllm",
        "gpu": "L4",
        "model": R1,
        "dtype_or_quant": "bf16",
        "input_tokens": 300,
        "output_tokens": 100,
        "batch_or_concurrency": 4,
    }
    output, both = (
        answer({**row, "flags": {"counts": c}})["total_tok_s"].value for c in ("output tokens only", "input+output tokens")
    )
    assert both == pytest.approx(4 * output)


def test_estimate_prints_parts_and_explains_them():
    plain = run("--gpu", "t4", "--model", "deepseek-r1:1.5b", "--dtype", "fp16").stdout
    assert "weights: layers" in plain
    assert "Fits" in plain
    explained = run("--gpu", "t4", "--model", "deepseek-r1:1.5b", "--dtype", "fp16", "--explain").stdout
    assert "source:" in explained
    assert max(len(line) for line in explained.splitlines()) <= 80


def test_estimate_json_sums():
    out = json.loads(run("--gpu", "4090", "--model", R1, "--engine", "vllm", "--context", "4096", "--json").stdout)["plan"]
    assert sum(m["mib"] for m in out["memory"]) / 1024 == pytest.approx(out["predictions"]["peak_vram_gib"]["value"], rel=0.01)


def test_what_does_not_fit_is_said():
    assert "Does not fit" in run("--gpu", "rtx-4060", "--model", "Qwen/Qwen2.5-14B-Instruct", "--dtype", "bf16").stdout


def test_tensor_parallel_splits_weights():
    one, two = (memory(ask("vllm", gpus=n, max_len=4096)) for n in (1, 2))
    assert two.weights_gib == pytest.approx(one.weights_gib / 2)
    assert two.kv_tokens > one.kv_tokens


def test_half_the_bytes_half_the_pool():
    full = memory(ask("vllm", max_len=4096))
    half = memory(replace(ask("vllm", max_len=4096), kv_dtype="fp8"))
    assert half.kv_tokens == pytest.approx(2 * full.kv_tokens, rel=0.001)
    assert full.kv_mib * MIB / GIB < 24


@pytest.mark.parametrize(("engine", "dtype"), [("vllm", "bfloat16"), ("sglang", "bfloat16"), ("transformers", "float32")])
def test_a_float32_checkpoint_is_halved_by_the_servers_that_halve_it(engine, dtype):
    row = {"id": "x", "engine": engine, "gpu": "A100", "model": "EleutherAI/gpt-j-6b", "batch_or_concurrency": 1, "flags": {}}
    assert ask_of(row).dtype == dtype
