"""The front: nobody on it is beaten, everybody off it is, with numbers; limits hold; two languages; JSON and text."""

import itertools
import json
from dataclasses import replace

import pytest

from dstune.catalog import gpus, models
from dstune.model import from_json, to_json
from dstune.model.plan import Workload
from dstune.plan.pareto import beats, front
from dstune.plan.search import Wish, candidates, considered, recommend

R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
BOARDS = ("rtx-4050-laptop", "t4", "v100-sxm2-32gb", "rtx-3060-12gb", "rtx-4090", "l4", "h200", "gb10")


def wish(board: str, model: str = R1, count: int = 1, **work) -> Wish:
    return Wish(gpus.find(board), models.get(model), count, workload=Workload(**{"concurrency": 1, **work}))


@pytest.mark.parametrize("board", BOARDS)
def test_nobody_on_the_front_is_beaten_and_everybody_else_is(board):
    found = list(candidates(wish(board)))
    kept = front(found)
    assert kept
    assert not any(beats(a, b) for a, b in itertools.permutations(kept, 2))
    for c in found:
        assert c in kept or any(beats(k, c) for k in kept)


def test_beating_is_strict():
    one = next(iter(candidates(wish("rtx-4090"))))
    assert not beats(one, one)
    assert beats(replace(one, tier=0), replace(one, tier=2))


@pytest.mark.parametrize("board", BOARDS)
def test_the_plan_lists_the_chosen_first_and_only_once(board):
    plan = recommend(wish(board))
    assert [a.chosen for a in plan.pareto] == [True, *([False] * (len(plan.pareto) - 1))]
    assert plan.pareto[0].engine == plan.engine
    assert len({a.name for a in plan.pareto}) == len(plan.pareto)
    for a in plan.pareto:
        assert a.settings
        assert a.why["en"]
        assert a.why["zh"]
        assert set(a.numbers) == {"peak_vram_gib", "decode_tok_s_per_stream", "total_tok_s", "ttft_ms"}


def test_every_configuration_is_on_the_front_or_rejected_with_a_number():
    w = wish("rtx-3060-12gb", "Qwen/Qwen2.5-7B-Instruct")
    plan = recommend(w)
    named = {a.name for a in plan.pareto} | {r.option for r in plan.rejected}
    for engine, _, ask, _, _ in considered(w):
        shown = {"vllm": "vLLM"}.get(engine, engine) + f" {ask.scheme or ask.dtype}"
        assert any(n.startswith(shown) for n in named), shown
    for r in plan.rejected:
        assert any(ch.isdigit() for ch in r.why["en"]), r


def test_limits_hold_on_the_whole_front():
    plan = recommend(wish("rtx-3060-12gb", "Qwen/Qwen2.5-7B-Instruct", slo_itl_ms=20.0))
    assert len(plan.pareto) >= 2
    for a in plan.pareto:
        assert 1e3 / a.numbers["decode_tok_s_per_stream"].value <= 20.0
    assert any("misses the limits" in r.why["en"] for r in plan.rejected)


def test_memory_of_two_cards_counts_twice():
    plan = recommend(wish("rtx-3090", count=2))
    single = [a for a in plan.pareto if a.gpus == 1]
    assert single, "two cards would beat one otherwise"


def test_json_and_text_carry_it(capsys):
    from dstune.cli import main

    def said(*words: str) -> str:
        assert main(["recommend", "--gpu", "4090", *words]) == 0
        return capsys.readouterr().out

    front_json = json.loads(said("--json", "--lang", "en"))["plan"]["pareto"]
    assert front_json[0]["chosen"]
    assert front_json[0]["numbers"]["peak_vram_gib"]["low"] > 0
    assert {"key", "value"} == set(front_json[0]["settings"][0])
    text = said("--lang", "en")
    assert "* vLLM bfloat16" in text
    assert "Alternatives" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    zh = said("--lang", "zh")
    assert "备选" in zh
    assert "质量更低" in zh


def test_a_plan_with_alternatives_survives_json():
    plan = recommend(wish("rtx-4090"))
    assert from_json(type(plan), json.loads(json.dumps(to_json(plan)))) == plan


@pytest.mark.parametrize(("model", "loss"), [(R1, 6.0), ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 3.0)])
def test_the_loss_of_a_format_is_the_one_that_was_measured_or_none(model, loss):
    """INT4 by the size of the model; 8 bit is called nearly lossless by its source, without a figure; 16 bit is the reference."""
    found = {a.name: a for a in recommend(wish("a100-sxm4-80gb", model)).pareto}
    assert {a.quality_loss_pct for n, a in found.items() if "fp8" in n or "Q8_0" in n} == {None}
    assert {a.quality_loss_pct for n, a in found.items() if "Q4_K_M" in n or "nf4" in n} == {loss}
    assert {a.quality_loss_pct for n, a in found.items() if "bfloat16" in n or "F16" in n} == {0.0}


def test_a_float32_checkpoint_is_told_to_be_halved():
    said = next(s for s in recommend(wish("a100-sxm4-80gb", "EleutherAI/gpt-j-6b")).settings if s.key.endswith(".dtype"))
    assert "half of the checkpoint's float32" in said.why["en"]
