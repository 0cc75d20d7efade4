"""The plan of a card: nothing that does not exist or fit there, parts that sum, reasons with numbers."""

import json

import pytest
from click.testing import CliRunner

from dstune.catalog import gpus, models
from dstune.catalog.vocabulary import terms
from dstune.cli.recommend import command, host_card
from dstune.errors import DstuneError, Exit, UnobservableError
from dstune.model import Evidence, Fact
from dstune.model.plan import Workload
from dstune.plan.ask import visible_mib
from dstune.plan.search import Wish, recommend

R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"


def plan(card="rtx-4090", model=R1, count=1, **more):
    work = {k: more.pop(k) for k in ("goal", "concurrency", "slo_itl_ms", "slo_ttft_ms", "prompt_tokens") if k in more}
    asked = "concurrency" in work
    return recommend(
        Wish(gpus.find(card), models.find(model), count, workload=Workload(**work), asked_concurrency=asked, **more)
    )


def value(p, key):
    return next((s.value for s in p.settings if s.key == key), None)


def why_not(p, option):
    return next((r.why["en"] for r in p.rejected if option in r.option), None)


@pytest.mark.parametrize("card", [g.id for g in gpus.rows()])
def test_no_card_is_asked_for_what_it_has_not(card):
    board = gpus.find(card)
    if not board.supported:
        with pytest.raises(DstuneError):
            plan(card)
        return
    p = plan(card)
    assert sum(m.mib for m in p.memory) <= visible_mib(board)
    if board.vendor == "NVIDIA" and board.cc < (8, 0):
        assert value(p, "vllm.dtype") in (None, "float16")
    if p.engine == "vllm" and board.vendor == "NVIDIA":
        assert board.cc >= (7, 0)
        assert board.cc >= (7, 5) or p.engine_version.startswith("0.1")
        assert p.predictions["kv_cache_tokens"].value >= value(p, "vllm.max_model_len")
    assert all(s.key in terms() for s in p.settings)
    assert all(s.source for s in p.settings)
    assert all(p.low <= p.value <= p.high for p in p.predictions.values())


def test_16_bit_stays_where_it_fits():
    for card in ("rtx-3060-12gb", "t4", "rtx-4090", "h200-sxm"):
        p = plan(card)
        assert value(p, "vllm.quantization") is None
        assert "6 %" in why_not(p, "INT4") or "6 %" in (why_not(p, "AWQ") or "")


def test_small_card_takes_8_bit():
    p = plan("gtx-1650")
    assert p.engine == "llama.cpp"
    assert "Q8_0" in p.launch


def test_t4_and_v100():
    assert value(plan("t4"), "vllm.dtype") == "float16"
    assert "7.5" in why_not(plan("t4"), "FlashAttention-2")
    assert plan("v100-pcie-16gb").engine_version == "0.19.1"
    assert "7.5" in why_not(plan("v100-pcie-16gb"), "vLLM 0.20")


def test_launch_bound_loop_is_told_with_its_number():
    text = why_not(plan("h200-sxm"), "transformers generate")
    assert "launches" in text
    assert "3%" in text


def test_two_cards():
    assert "replicas" in why_not(plan("rtx-3090", count=2), "tensor parallel")
    big = plan("rtx-3090", "Qwen/Qwen2.5-32B-Instruct", 2)
    assert value(big, "vllm.tensor_parallel_size") == 2


def test_vram_limit_is_kept():
    p = plan(limit_mib=8 * 1024)
    assert sum(m.mib for m in p.memory) <= 8 * 1024


def test_free_memory_is_what_counts():
    p = plan("rtx-4090", others_mib=14_000)
    assert sum(m.mib for m in p.memory) <= visible_mib(gpus.find("rtx-4090"))
    assert value(p, "vllm.gpu_memory_utilization") < 0.45


def test_goal_memory_takes_less_than_goal_latency():
    assert sum(m.mib for m in plan(goal="memory").memory) < 0.3 * sum(m.mib for m in plan().memory)


def test_throughput_fills_the_pool():
    p = plan(goal="throughput")
    assert p.workload.concurrency > 64
    assert p.predictions["total_tok_s"].value > 10 * plan().predictions["total_tok_s"].value


def test_limits_lower_the_concurrency():
    free, bound = plan("h200-sxm", goal="throughput"), plan("h200-sxm", goal="throughput", slo_itl_ms=5.0)
    assert bound.workload.concurrency < free.workload.concurrency
    assert 1000 / bound.predictions["decode_tok_s_per_stream"].value <= 5.0


def test_a_limit_that_no_card_meets_is_said():
    assert any("meets the limits" in n["en"] for n in plan("t4", slo_itl_ms=0.5, concurrency=4).notes)


def test_what_does_not_fit_names_what_would():
    with pytest.raises(DstuneError) as caught:
        plan("rtx-3090", "Qwen/Qwen2.5-72B-Instruct")
    assert "GiB" in caught.value.why
    assert "GB" in caught.value.next


def test_sampling_of_r1():
    p = plan()
    assert value(p, "generate.temperature") == 0.6
    assert value(p, "generate.top_p") == 0.95
    hint = p.notes[0]["en"]
    assert "no system message" in hint
    assert "<think>\\n" in hint
    assert "\\boxed{}" in hint


def run(*args):
    return CliRunner().invoke(command, args, standalone_mode=False)


def test_json_shape():
    out = json.loads(run("--gpu", "4090", "--json").stdout)
    assert out["schema"] == "dstune.report/1"
    assert out["command"] == "recommend"
    p = out["plan"]
    assert {"engine", "model", "gpu", "settings", "memory", "predictions", "rejected", "launch"} <= set(p)
    assert {"key", "value", "why", "source"} == set(p["settings"][0])
    assert {"value", "low", "high"} == set(p["predictions"]["decode_tok_s_per_stream"])
    assert p["launch"].startswith("vllm serve ")


def test_text_keeps_to_80_columns():
    text = run("--gpu", "4060 ti 16g").stdout
    assert max(len(line) for line in text.splitlines()) <= 80


def _host(*cards):
    facts = [Fact("driver", "cuda", "12.4")]
    for i, (name, total, free) in enumerate(cards):
        facts += [Fact(f"gpu{i}", n, v) for n, v in (("name", name), ("memory_total_mib", total), ("memory_free_mib", free))]
    return Evidence(tuple(facts))


def test_host_cards_and_their_free_memory(tmp_path):
    from dstune.model import to_json

    seen = _host(("NVIDIA GeForce RTX 4060 Ti", 16380, 9000), ("NVIDIA GeForce RTX 4060 Ti", 16380, 16000))
    board, count, taken, cuda = host_card(seen)
    assert (board.id, count, cuda) == ("rtx-4060-ti-16gb", 2, "12.4")
    assert taken == pytest.approx(visible_mib(board) - 9000)
    (tmp_path / "ev.json").write_text(json.dumps({"evidence": to_json(seen)}))
    out = json.loads(run("--evidence", str(tmp_path / "ev.json"), "--json").stdout)["plan"]
    assert out["engine_version"] < "0.20"  # CUDA 13 wheels do not run under a driver of CUDA 12.4
    assert sum(m["mib"] for m in out["memory"]) <= 9000


def test_no_card_says_how_to_go_on():
    with pytest.raises(UnobservableError) as caught:
        host_card(Evidence())
    assert caught.value.next == "dstune recommend --gpu 4090"
    assert caught.value.code == Exit.UNOBSERVABLE


def test_pascal_is_not_told_to_compile():
    """Triton needs compute capability 7.0: no static cache there, and none promised."""
    p = plan("p40", engine="transformers")
    assert value(p, "generate.cache_implementation") is None
    assert why_not(plan("p40"), "transformers generate") is not None
    assert "static" not in why_not(plan("p40"), "transformers generate")


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "transformers", "sglang"])
def test_every_engine_can_be_asked_for(engine):
    p = plan("l4", engine=engine)
    assert p.engine == engine
    assert R1 in p.launch or "GGUF" in p.launch


def test_chinese_text_is_whole():
    from dstune import lang

    before = lang.current()
    lang.use("zh")
    try:
        from dstune.report.plan import plan_text
        from dstune.report.text import cells

        text = plan_text(plan("rtx-3060-12gb"), explain=True)
    finally:
        lang.use(before)
    assert "显存" in text
    assert "未采用" in text
    assert max(cells(line) for line in text.splitlines()) <= 80
