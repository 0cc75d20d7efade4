"""`dstune recommend --rate`: what one replica holds, replicas, both languages, recorded lengths, and what it refuses."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from dstune import lang
from dstune.catalog import gpus, models
from dstune.load.answers import Reply
from dstune.load.shape import PAIRS, lengths
from dstune.model import from_json, to_json
from dstune.model.plan import Workload
from dstune.plan.replicas import Demand, sized
from dstune.plan.search import CLOSE, Wish, recommend
from dstune.plan.simulate_load import KEPT, OUTPUT_CV, PROMPT_CV, Lengths
from dstune.report.capacity import capacity_text
from dstune.report.plan import plan_text

pytestmark = pytest.mark.slow

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
    assert "No rate is within the limits" in plan.capacity.reach[0]["en"]
    text = capacity_text(plan.capacity, 1)
    assert "no number is enough" in text
    assert "No rate is within the limits" in text, "the reason stands where the load does"


SEVEN = "Qwen/Qwen2.5-7B-Instruct"
SPREAD = Lengths(512, 512, PROMPT_CV, OUTPUT_CV)


def on_3060(lengths_: Lengths = SPREAD, card: str = "3060", engine: str = "auto", **work: Any) -> Any:
    return sized(
        Wish(gpus.find(card), models.get(SEVEN), engine=engine, workload=Workload(512, 512, **work)), Demand(2.0, lengths_)
    )


@pytest.mark.parametrize("engine", ["auto", "vllm", "llama.cpp"])
def test_limits_at_the_edge_are_out_of_reach_and_each_way_out_is_one(engine: str) -> None:
    """Long prompts alone miss a second to the first token: replicas do not help, and what is named instead does."""
    plan = on_3060(engine=engine, slo_ttft_ms=1000)
    told = plan.capacity
    assert (told.holds.value, told.replicas, told.loads, told.at_rate) == (0.0, 0, (), {})
    assert 0.85 < told.alone < 0.96
    lang.use("zh")
    assert "任何请求率都达不到" in capacity_text(told, 1)
    lang.use("en")
    ways = " ".join(t["en"] for t in told.reach[1:])
    prompt, ttft, card = (re.search(rf"--{k} ([\w-]+)", ways) for k in ("prompt", "slo-ttft", "gpu"))
    assert prompt
    assert ttft
    assert card
    eased = (
        on_3060(replace(SPREAD, prompt=int(prompt[1])), engine=engine, slo_ttft_ms=1000),
        on_3060(engine=engine, slo_ttft_ms=float(ttft[1])),
        on_3060(card=card[1], engine=engine, slo_ttft_ms=1000),
    )
    for other in eased:
        assert 0 < other.capacity.replicas < 20
        assert other.capacity.reach == ()


def test_the_engine_is_the_one_that_holds_the_most_unless_vllm_is_close() -> None:
    plan = on_3060(slo_ttft_ms=2000)
    tier = plan.pareto[0].quality_loss_pct
    for engine in ("vllm", "llama.cpp"):
        alone = on_3060(engine=engine, slo_ttft_ms=2000)
        if alone.pareto[0].quality_loss_pct == tier:
            assert alone.capacity.holds.value * CLOSE <= plan.capacity.holds.value, engine
    assert plan.engine == "llama.cpp", "vLLM's fp8 has room for 8 at once here"


def test_fixed_lengths_have_a_way_out_too_and_the_least_memory_still_gets_slots() -> None:
    told = on_3060(Lengths(512, 512), slo_ttft_ms=300).capacity
    assert any(t["en"].startswith("--prompt ") for t in told.reach)
    assert on_3060(goal="memory").capacity.at_once > 1


def test_a_lossier_format_is_taken_where_the_least_lossy_one_would_stand_idle() -> None:
    """16 bit leaves a T4 room for one sequence: 900 replicas that wait for nobody to come. INT4 holds the rate on a few."""
    plan = on_3060(card="t4")
    assert plan.pareto[0].quality_loss_pct == 3, "INT4 of a 7B"
    assert plan.capacity.replicas < 20
    alone = on_3060(card="t4", engine="transformers").capacity
    assert "stands idle to keep the limits: with 1 at once" in " ".join(capacity_text(alone, 1).split())
    assert "stands idle" not in capacity_text(plan.capacity, 1)


@pytest.mark.parametrize("rate", [True, False])
@pytest.mark.parametrize("card", ["3060", "4090"])
def test_the_alternatives_are_compared_at_one_number_at_once(card: str, rate: bool) -> None:
    """A stream among 64 is slower than one alone; rows that hold fewer say so."""
    if rate:
        plan = on_3060(card=card, slo_ttft_ms=2000)
    else:
        plan = recommend(Wish(gpus.find(card), models.get(SEVEN), workload=Workload(512, 512, goal="throughput")))
    many = plan.workload.concurrency
    assert many > 4
    assert len(plan.pareto) > 1
    for a in plan.pareto:
        told = re.search(r", (\d+) at once", a.name)
        count = int(told[1]) if told else many
        assert count <= many
        stream, total = (a.numbers[k].value for k in ("decode_tok_s_per_stream", "total_tok_s"))
        assert 0.3 * count * stream < total <= 1.02 * count * stream, a.name
        if a.engine == "llama.cpp":
            assert next(s.value for s in a.settings if s.key == "llamacpp.parallel") == count
    text = plan_text(plan)
    assert f"Alternatives at {many} at once" in text
    assert "each stream" in text


def test_a_limit_that_was_not_given_is_named_where_it_stands() -> None:
    told = on_3060(slo_ttft_ms=2000).capacity
    assert told.assumed == ("itl",)
    text = " ".join(capacity_text(told, 1).split())
    assert "first token 2000 ms, 200 ms a token (not given: MLPerf's server scenario)" in text
    assert "2000 ms (not given" in " ".join(capacity_text(on_3060().capacity, 1).split())


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
    assert first["limits"] == {"ttft_ms": 500.0, "itl_ms": 50.0, "share": 0.95, "assumed": []}
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
