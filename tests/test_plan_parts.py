"""Parts of sizing that have a truth of their own: the allocator, launches, paged caches, names, and how reports are read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dstune.catalog import gpus, models, root
from dstune.errors import DstuneError
from dstune.plan import allocator, paged
from dstune.plan.allocator import MIB, Allocator
from dstune.plan.calibrate import launch_us
from dstune.plan.estimate import answer, predictions
from dstune.plan.memory import memory, vllm_limits
from dstune.plan.names import engine_of, gpu_of, model_of
from dstune.plan.quant import parse, plain
from dstune.plan.rows import ask_of
from dstune.plan.speed import decode_step, host_launches, speed

R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
PUBLISHED = Path(__file__).parents[1] / "benchmarks" / "published.json"


def row(**more):
    base = {
        "engine": "transformers", "engine_version": "5.17.0", "gpu": "H200", "model": R1, "dtype_or_quant": "bf16", "batch_or_concurrency": 1,
        "input_tokens": 512, "output_tokens": 64, "flags": {},
    }  # fmt: skip
    return {**base, **more}


# the allocator


def test_blocks_are_cut_merged_and_reused():
    a = Allocator()
    big = a.take(100 * MIB)
    assert a.reserved == 100 * MIB
    a.give(big)
    first, second = a.take(30 * MIB), a.take(60 * MIB)
    assert a.reserved == 100 * MIB, "both fit into the freed segment"
    a.give(first)
    a.give(second)
    assert a.take(100 * MIB) is not None
    assert a.reserved == 100 * MIB, "the pieces merged again"
    assert a.peak == 100 * MIB


def test_segments_round_up_and_small_requests_do_not_count():
    a = Allocator()
    assert a.take(MIB) is None
    a.take(2 * MIB)
    assert a.reserved == 20 * MIB
    a.take(19 * MIB)
    assert a.reserved == 40 * MIB, "a request of ten MiB or more takes a segment of its own, a multiple of two"


def test_a_live_block_keeps_a_larger_request_out():
    a = Allocator()
    segment = a.take(100 * MIB)
    a.give(segment)
    a.take(40 * MIB)
    a.take(80 * MIB)
    assert a.reserved == 180 * MIB


def test_slack_is_never_negative_beyond_rounding_and_grows_with_eager_scores():
    shape = allocator.Pass(1, 4096, 1536, 8960, 12, 2, 128, 151936, 28, 2, False, False, False)
    plain_slack = allocator.slack(shape)
    assert -30 * MIB < plain_slack < 2**30
    assert allocator.slack(replace(shape, eager=True)) > plain_slack


@pytest.mark.parametrize(
    ("name", "median", "worst"), [("h200.json", 0.01, 0.05), ("h200-shapes.json", 0.015, 0.1), ("h200-repeat.json", 0.02, 0.05)]
)
def test_memory_in_nvml_on_our_card(name, median, worst):
    rows = json.loads((root() / "measurements" / name).read_text(encoding="utf-8"))["measurements"]
    errors = sorted(
        abs(predictions(ask_of(r))["peak_vram_gib"].value / r["value"] - 1) for r in rows if r["metric"] == "peak_vram_gib"
    )
    assert errors[len(errors) // 2] <= median
    assert errors[-1] <= worst
    assert sum(e > 0.05 for e in errors) <= 2


# launches


def test_launch_cost_measured_beside_predicts_every_model_on_that_host():
    """Nothing is fitted on these rows: a tiny model's step, taken right before, tells the cost of a launch."""
    rows = json.loads((root() / "measurements" / "h200-host.json").read_text(encoding="utf-8"))["measurements"]
    errors = sorted(abs(predictions(ask_of(r))["decode_tok_s_per_stream"].value / r["value"] - 1) for r in rows)
    assert errors[len(errors) // 2] <= 0.05
    assert errors[int(0.9 * len(errors))] <= 0.12
    assert sum(e > 0.25 for e in errors) <= 1, "one step of 32 was disturbed"


def test_a_local_run_gives_the_launch_cost():
    run = json.loads((root() / "measurements" / "h200-bench-local.json").read_text(encoding="utf-8"))
    spec = models.find(R1)
    cost = launch_us(run, spec, {m.params: m for m in models.rows()})
    assert cost == pytest.approx(run["trials"][0]["itl_ms"]["p50"] * 1e3 / host_launches(spec))
    eager = {"trials": [{**run["trials"][0], "settings": {**run["trials"][0]["settings"], "attention": "eager"}}]}
    assert launch_us(eager, spec, {m.params: m for m in models.rows()}) < 0.8 * cost, "the same step of more launches"
    step = decode_step(replace(ask_of(row()), host_launch_us=cost), 1, 256)
    assert step.bound == "launch"
    assert step.total * 1e3 == pytest.approx(run["trials"][0]["itl_ms"]["p50"], rel=0.01)
    for trial in run["trials"]:  # 1, 8 and 32 streams: first tokens follow from the pace of one, on which nothing was fitted
        more = replace(ask_of(row()), host_launch_us=cost, prompt=256, output=64, batch=trial["workload"]["concurrency"])
        assert speed(more).ttft_ms == pytest.approx(trial["ttft_ms"]["p50"], rel=0.12)


@pytest.mark.parametrize(
    "run", [{}, {"trials": []}, {"trials": [{"settings": {"server": "vllm"}, "itl_ms": {"p50": 9}}]}, {"trial": 3}]
)
def test_a_run_without_an_eager_loop_is_refused(run):
    with pytest.raises(DstuneError, match="eager"):
        launch_us(run, models.find(R1), {})


def test_calibrate_and_paged_on_the_command_line(capsys):
    from dstune.cli import main

    file = str(root() / "measurements" / "h200-bench-local.json")
    assert main(["estimate", "--gpu", "h200", "--dtype", "bf16", "--calibrate", file, "--lang", "en"]) == 0
    out = capsys.readouterr().out
    assert "51.3 tok/s" in out
    assert "measure yours" not in out
    assert main(["estimate", "--gpu", "h200", "--dtype", "bf16", "--lang", "zh"]) == 0
    assert "--calibrate run.json" in capsys.readouterr().out
    assert main(["estimate", "--gpu", "h200", "--cache", "paged", "--lang", "en"]) == 0
    assert "batch buffers" in capsys.readouterr().out


# paged caches


def test_continuous_batching_takes_nine_tenths_of_what_is_free():
    """measurements/h200.json: generate_batch took 131 GB."""
    mem = memory(ask_of(row(flags={"batching": "continuous", "attn": "sdpa"})))
    taken = sum(line.mib for line in mem.lines if line.part in ("KV cache pool", "batch buffers"))
    assert taken * MIB / 1e9 == pytest.approx(131, rel=0.005)


def test_a_flash_kernel_leaves_more_of_the_pool_to_the_cache():
    m = models.find(R1)
    per_token = 28672.0
    slow, fast = (paged.pool(m, 100e9, per_token, 2, flash) for flash in (False, True))
    assert fast.tokens > 1.5 * slow.tokens
    for found in (slow, fast):
        assert found.taken == pytest.approx(90e9)
        assert found.cache == found.tokens * per_token
    assert paged.pool(m, 1e8, per_token, 2, False).tokens == 0


# older engines


def test_v0_and_v1_of_one_release_profile_apart():
    v0, v1 = (
        ask_of(row(engine="vllm", engine_version=v, gpu="RTX 4090", flags={"max_model_len": 4096}))
        for v in ("0.8.5 (V0)", "0.8.5")
    )
    parts0, parts1 = ({line.part for line in memory(a).lines} for a in (v0, v1))
    assert "compiler buffers" in parts1 - parts0


def test_unsloth_sets_the_sequences_by_what_is_left():
    found = [
        vllm_limits(ask_of(row(engine="vllm", engine_version="0.8.5.post1 (V0)", gpu="RTX 4090", model="unsloth/qwen2.5-0.5b-instruct-unsloth-bnb-4bit",
                               dtype_or_quant="bnb-nf4", flags={"enable_lora": True, "gpu_memory_utilization": u, "total_gpu_memory_gib": 23.55})))["seqs"]
        for u in (0.17, 0.22, 0.78)
    ]  # fmt: skip
    assert found == [160, 192, 288]


def test_old_transformers_hold_logits_tables_and_both_caches():
    def peak(version: str, **more) -> float:
        return predictions(ask_of(row(engine_version=version, gpu="A100 80GB", model="Qwen/Qwen2-0.5B-Instruct", **more)))[
            "peak_allocated_gib"
        ].value

    assert peak("4.38.2", input_tokens=6144) - peak("4.46.0", input_tokens=6144) == pytest.approx(5.2, abs=0.3)
    assert peak("4.38.2", input_tokens=1) - peak("4.46.0", input_tokens=1) == pytest.approx(0.19, abs=0.03)
    assert peak("4.35.0", input_tokens=1, output_tokens=20000) > peak("4.37.0", input_tokens=1, output_tokens=20000) + 0.2


def test_experts_are_walked_one_by_one_before_5():
    def rate(version: str) -> float:
        return predictions(ask_of(row(engine_version=version, model="Qwen/Qwen3-30B-A3B")))["decode_tok_s_per_stream"].value

    assert rate("4.51.3") == pytest.approx(1.9, rel=0.15)
    assert rate("4.51.3") < rate("4.55.0") < rate("5.17.0")


# names


@pytest.mark.parametrize(
    ("text", "engine"),
    [("vLLM", "vllm"), ("vllm (V1)", "vllm"), ("llama-cpp", "llama.cpp"), ("llama.cpp (CUDA)", "llama.cpp"), ("HF Transformers", "transformers"),
     ("SGLang", "sglang"), ("ollama", "ollama"), ("tensorrt-llm", "tensorrt-llm")],
)  # fmt: skip
def test_engines_by_other_names(text, engine):
    assert engine_of(text) == engine


@pytest.mark.parametrize(
    ("text", "board", "count"),
    [
        ("2x RTX 3090", "rtx-3090", 2),
        ("RTX 3090 x4", "rtx-3090", 4),
        ("Tesla V100S-PCIE-32GB", "v100-pcie-32gb", 1),
        ("RTX 4090", "rtx-4090", 1),
    ],
)
def test_cards_with_counts(text, board, count):
    gpu, found = gpu_of(text)
    assert (gpu.id, found) == (board, count)


@pytest.mark.parametrize(
    ("text", "ident", "scheme"),
    [("Qwen/QwQ-32B-Preview", "Qwen/QwQ-32B", ""), ("TheBloke/zephyr-7B-beta-AWQ", "mistralai/Mistral-7B-Instruct-v0.1", "awq-int4"),
     ("cognitivecomputations/dolphin-2.9-llama3-8b", "meta-llama/Llama-3.1-8B-Instruct", "")],
)  # fmt: skip
def test_fine_tunes_have_the_shape_of_their_base(text, ident, scheme):
    spec = model_of(text)
    assert (spec.id, spec.quant) == (ident, scheme)


def test_an_unknown_model_stays_unknown():
    for name in ("openai/some-70x-thing", "microsoft/phi-2", "a/b"):
        with pytest.raises(DstuneError):
            model_of(name)


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("gguf Q4_K_M", "Q4_K_M"),
        ("mostly Q4_K - Medium", "Q4_K_M"),
        ("UD-Q4_K_XL", "Q4_0"),
        ("all F32", "F32"),
        ("BF16", "F16"),
    ],
)
def test_gguf_types_as_people_write_them(text, scheme):
    found = parse(text, "llama.cpp")[1]
    assert found[:2] == scheme[:2] if scheme == "Q4_0" else found == scheme


def test_formats_that_say_nothing():
    assert [plain(t) for t in ("auto", "None", "compressed-tensors", "fp8")] == ["", "", "", "fp8"]


def test_lengths_in_thousands_and_block_sizes():
    ask = ask_of(row(engine="vllm", engine_version="0.6.3", gpu="A100 80GB", flags={"max_model_len": "8k", "block_size": 32}))
    assert ask.max_len == 8192
    usual = memory(replace(ask, block=16))
    assert memory(ask).blocks == pytest.approx((usual.blocks or 0) / 2, abs=1)


# how reports are read


def test_a_burst_of_chat_requests_ends_early_unless_told_not_to():
    burst = row(engine="vllm", engine_version="0.8.5", gpu="A40", model="meta-llama/Llama-3.1-8B-Instruct", batch_or_concurrency=50, input_tokens=100,
                output_tokens=600, flags={"arrival": "all at once", "counts": "output tokens only"})  # fmt: skip
    fixed = {**burst, "flags": {**burst["flags"], "ignore_eos": True}}
    base = {**burst, "model": "meta-llama/Llama-3.1-8B"}
    early, full, plain_model = (answer(r)["total_tok_s"].value for r in (burst, fixed, base))
    assert early == pytest.approx(0.81 * full)
    assert plain_model == pytest.approx(full, rel=0.01)


def test_scripts_inside_the_process_report_their_peak_and_qwen3s_what_is_held():
    flags = {"attn": "flash_attention_2"}
    old, new = (
        row(engine_version=v, gpu="H20 96GB", model="Qwen/Qwen3-0.6B", input_tokens=30720, output_tokens=2048, flags=flags)
        for v in ("4.50.0", "4.51.3")
    )
    assert answer(old)["peak_vram_gib"].value == predictions(ask_of(old))["peak_allocated_gib"].value
    assert answer(new)["peak_vram_gib"].value == pytest.approx(4755 / 1024, rel=0.01)
    assert answer(new)["peak_vram_gib"].high >= predictions(ask_of(new))["peak_allocated_gib"].value


def test_published_figures_of_others():
    """Medians over figures that were transcribed from 27 sources; docs/accuracy.md prints the table."""
    rows = [r for r in json.loads(PUBLISHED.read_text(encoding="utf-8"))["measurements"] if r["confidence"] != "low"]
    errors: dict[tuple[str, str], list[float]] = {}
    inside = answered = 0
    for r in rows:
        try:
            p = answer({k: v for k, v in r.items() if k != "value"})[r["metric"]]
        except DstuneError:
            continue
        answered += 1
        inside += p.low <= r["value"] <= p.high
        errors.setdefault((r["engine"], r["metric"]), []).append(abs(p.value / r["value"] - 1))
    assert answered / len(rows) >= 0.99
    assert 0.85 <= inside / answered <= 0.97
    limits = {
        ("transformers", "peak_vram_gib"): 0.05,
        ("transformers", "total_tok_s"): 0.2,
        ("vllm", "total_tok_s"): 0.2,
        ("sglang", "total_tok_s"): 0.2,
    }
    for key, limit in limits.items():
        found = sorted(errors[key])
        assert len(found) > 50
        assert found[len(found) // 2] <= limit, key


def test_every_published_row_has_a_source_and_a_known_card():
    rows = json.loads(PUBLISHED.read_text(encoding="utf-8"))["measurements"]
    assert len({r["id"] for r in rows}) == len(rows)
    for r in rows:
        assert "/" in r["source"] or "." in r["source"], r["id"]
        gpus.find(r["gpu"])


def test_a_batch_reads_the_experts_it_touches_and_shares_the_rest():
    """Qwen3-30B-A3B: 128 experts of 48 layers, 8 a token. Attention, embedding and head are read once for all streams."""
    model = models.get("Qwen/Qwen3-30B-A3B")
    expert = 48 * 3 * 2048 * 768
    for streams in (1, 2, 8, 64):
        touched = 128 * (1 - (1 - 8 / 128) ** streams)
        assert model.reads(streams) * model.read == pytest.approx(model.read + (touched - 8) * expert, rel=0.01)
    assert models.get("Qwen/Qwen3-8B").reads(64) == 1
