"""`dstune recommend --rate`: what one replica holds, replicas, both languages, recorded lengths, and what it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from dstune.catalog import gpus, models
from dstune.load.answers import Reply
from dstune.load.shape import PAIRS, lengths
from dstune.model import Workload, from_json, to_json
from dstune.plan.replicas import Demand, sized
from dstune.plan.search import Wish
from dstune.plan.simulate_load import KEPT, Lengths
from dstune.report.capacity import capacity_text

R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
Run = Callable[..., CompletedProcess[str]]


def wish(card: str = "4090", engine: str = "vllm", **work: Any) -> Wish:
    return Wish(gpus.find(card), models.get(R1), engine=engine, workload=Workload(512, 512, **work))


def capacity(rate: float, card: str = "4090", engine: str = "vllm", lengths_: Lengths | None = None, **work: Any) -> Any:
    plan = sized(wish(card, engine, **work), Demand(rate, lengths_ or Lengths(512, 512)))
    assert plan.capacity is not None
    return plan.capacity


def test_replicas_grow_with_the_rate_and_keep_the_limits() -> None:
    one, many = (capacity(rate, slo_ttft_ms=500, slo_itl_ms=50) for rate in (5.0, 100.0))
    assert one.holds == many.holds
    assert one.holds.low < one.holds.value < one.holds.high
    assert one.replicas == 1
    assert many.replicas == pytest.approx(100 / many.holds.value, abs=1)
    assert many.replicas_band[0] < many.replicas < many.replicas_band[1]
    for found in (one, many):
        assert found.at_rate["kept"] >= KEPT
        assert found.at_rate["ttft_p95_ms"] <= 500
        assert found.at_rate["rate"] == pytest.approx(found.rate / found.replicas)
    rates = [row["rate"] for row in one.loads]
    assert rates == sorted(rates)
    assert one.loads[-1]["kept"] < KEPT <= one.loads[-2]["kept"], "the row before the last is the knee"


def test_tighter_limits_hold_less() -> None:
    loose, tight = capacity(1.0, slo_ttft_ms=2000, slo_itl_ms=200), capacity(1.0, slo_ttft_ms=300, slo_itl_ms=10)
    assert 0 < tight.holds.value < 0.7 * loose.holds.value


def test_limits_that_no_rate_keeps_are_said() -> None:
    plan = sized(wish("T4", slo_itl_ms=1.0), Demand(2.0, Lengths(512, 512)))
    assert plan.capacity is not None
    assert (plan.capacity.holds.value, plan.capacity.replicas, plan.capacity.loads) == (0.0, 0, ())
    assert any("No rate is within the limits" in n["en"] for n in plan.notes)
    assert "no number is enough" in capacity_text(plan.capacity, 1)


def test_slots_of_llama_cpp_are_doubled_while_it_pays() -> None:
    found = capacity(1.0, engine="llama.cpp", slo_ttft_ms=1000, slo_itl_ms=50)
    assert found.at_once > 4
    assert capacity(1.0, engine="llama.cpp", slo_ttft_ms=1000, slo_itl_ms=6).at_once < found.at_once


def test_long_requests_get_the_context_that_they_need() -> None:
    plan = sized(wish("H200"), Demand(1.0, Lengths(12_000, 2_000)))
    settings = {s.key: s.value for s in plan.settings}
    assert settings["vllm.max_model_len"] == 14 * 1024
    assert plan.capacity is not None
    assert plan.capacity.prompt_tokens == 12_000
    short = replace(wish("H200"), context=8192)
    cut = sized(short, Demand(1.0, Lengths(12_000, 2_000)))
    assert any("100.0 % of the requests fill the context of 8,192" in n["en"] for n in cut.notes)


def test_transformers_answers_one_after_the_other() -> None:
    found = capacity(0.05, engine="transformers")
    assert found.at_once == 1
    assert found.holds.value < 0.5 * capacity(0.05).holds.value


def test_a_capacity_survives_json() -> None:
    plan = sized(wish(), Demand(3.0, Lengths(512, 512)))
    assert from_json(type(plan), json.loads(json.dumps(to_json(plan)))) == plan


def test_the_command_says_it_in_both_languages_and_as_json(run_dstune: Run) -> None:
    args = ("recommend", "--gpu", "4090", "--rate", "20", "--slo-ttft", "500", "--slo-itl", "50", "--output-tokens", "256")
    english, chinese = (run_dstune(*args, "--lang", lang).stdout for lang in ("en", "zh"))
    for text, words in (
        (english, ("one replica holds", "replicas needed", "← knee")),
        (chinese, ("单副本可承受", "需要副本数", "← 拐点")),
    ):
        assert [w for w in words if w not in text] == []
    done = [run_dstune(*args, "--json", "--seed", seed) for seed in ("1", "1", "2")]
    first, again, other = (json.loads(d.stdout)["plan"]["capacity"] for d in done)
    assert first == again
    assert first["loads"] != other["loads"]
    assert first["holds_request_s"]["value"] == pytest.approx(other["holds_request_s"]["value"], rel=0.1)
    assert first["lengths"]["kind"] == "lognormal"
    assert first["lengths"]["output_tokens"] == pytest.approx(256, rel=0.05)
    assert first["limits"] == {"ttft_ms": 500.0, "itl_ms": 50.0, "share": 0.95}
    assert "capacity" not in json.loads(run_dstune("recommend", "--gpu", "4090", "--json").stdout)["plan"]


def test_lengths_of_a_recorded_run(run_dstune: Run, tmp_path: Path) -> None:
    """`bench -o` of today holds pairs; one of before holds sums."""
    trial = {"requests": {"ok": 4, "failed": 0}, "prompt_tokens": 400, "output_tokens": 1200}
    now, before, empty = tmp_path / "now.json", tmp_path / "before.json", tmp_path / "empty.json"
    now.write_text(json.dumps({"trial": {**trial, "lengths": {"prompt": [50, 150], "output": [100, 500]}}}))
    before.write_text(json.dumps({"trials": [trial, trial]}))
    empty.write_text(json.dumps({"trial": {"requests": {"ok": 0, "failed": 3}, "prompt_tokens": None, "output_tokens": 0}}))
    args = ("recommend", "--gpu", "4090", "--rate", "5", "--json", "--workload")
    kinds = [json.loads(run_dstune(*args, str(f)).stdout)["plan"]["capacity"]["lengths"] for f in (now, before)]
    assert kinds[0]["kind"] == "recorded"
    assert kinds[0]["prompt_tokens"] == pytest.approx(100, rel=0.05)
    assert kinds[1] == {"kind": "fixed", "prompt_tokens": 100.0, "output_tokens": 300.0}
    refused = run_dstune(*args, str(empty))
    assert refused.returncode == 2
    assert "does not say how long" in refused.stderr
    assert "Traceback" not in run_dstune(*args, str(tmp_path / "none.json")).stderr


@pytest.mark.parametrize(
    "told", ['{"prompt": [1, 2], "output": [3]}', '{"prompt": "x"}', "[1]", '{"prompt": ["a"], "output": [1]}']
)
def test_damaged_lengths_are_no_crash(run_dstune: Run, tmp_path: Path, told: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(f'{{"trial": {{"requests": {{"ok": 1}}, "lengths": {told}}}}}')
    done = run_dstune("recommend", "--gpu", "4090", "--rate", "5", "--workload", str(file))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_report_keeps_the_lengths_of_its_requests() -> None:
    replies = [Reply(0, 0, 1, prompt_tokens=10 + i, output_tokens=i + 1) for i in range(5)]
    assert lengths(replies) == {"prompt": [10, 11, 12, 13, 14], "output": [1, 2, 3, 4, 5]}
    assert lengths([Reply(0, 0, 1)]) is None
    many = lengths([Reply(0, 0, 1, prompt_tokens=i + 1, output_tokens=1) for i in range(5 * PAIRS)])
    assert many is not None
    assert len(many["prompt"]) == PAIRS
    assert many["prompt"][0] == 1
    assert many["prompt"][-1] > 4.9 * PAIRS


@pytest.mark.parametrize("rate", ["nan", "inf", "0", "-1", "1e9"])
def test_what_is_no_rate_is_refused(run_dstune: Run, rate: str) -> None:
    done = run_dstune("recommend", "--gpu", "4090", "--rate", rate)
    assert done.returncode == 2
    assert "--rate" in done.stderr
    assert "Traceback" not in done.stderr
