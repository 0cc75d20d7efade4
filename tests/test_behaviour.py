"""Detectors fire on sick texts and stay quiet on healthy ones."""

import pytest

from dstune.cli.doctor import of_report
from dstune.derive import derive
from dstune.diagnose import diagnose
from dstune.load.answers import Reply
from dstune.load.behaviour import CAUSES, DETECTORS, Asked, interval, judge, runaway, summary

HEALTHY = {
    "prose": "The sky is blue because air scatters short wavelengths more than long ones.\n\nThis is called Rayleigh scattering. "
    * 2,
    "code": "```python\ndef quicksort(items):\n    if len(items) < 2:\n        return items\n    pivot = items[0]\n    return quicksort([i for i in items[1:] if i < pivot]) + [pivot]\n```",
    "list": "\n".join(f"{i}. Step number {i} takes {i * 3} minutes." for i in range(1, 20)),
    "math": "\\[ x = \\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a} \\] so the answer is \\boxed{1024}.",
    "zh": "牛顿第一定律指出：任何物体都要保持匀速直线运动或静止状态，直到外力迫使它改变运动状态为止。" * 2,
    "table": "| a | b |\n|---|---|\n" + "\n".join(f"| {i} | {i * i} |" for i in range(12)),
    "shout": "Great!! That is wonderful!!!",
    "think": "<think>\nLet me see. 2^10 is 1024.\n</think>\n\nThe answer is 1024.",
    "french": "L’été, nous mangeons des crêpes à la crème brûlée près de la mer où l’eau est très froide.",
}
SICK = {
    "endless-newlines": "The answer is 4." + "\n" * 40,
    "line-loop": "Start\n" + "I will now check again.\n" * 9,
    "phrase-loop": "Well, " + "and so on and so forth " * 12,
    "ngram-loop": " ".join(["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"] * 8)
    + " "
    + " ".join(["x", "y", "z"]),
    "exclamation-marks": "!!!!!!!!!!!!!!!!!!!!",
    "broken-characters": "caf\ufffd is nice",
    "mojibake": "ä½\xa0å¥½ is how it says hello",
    "byte-level-tokens": "ĠtheĠquickĠbrownĊfox ▁jumps▁",
    "lost-spaces": "Theskyisbluebecauseairscattersshortwavelengthsmorethanlongonesandthatiscalledrayleighscatteringbythephysicists"
    * 2,
    "special-tokens": "The answer is 4.<｜end▁of▁sentence｜>",
}


@pytest.mark.parametrize("name", SICK)
def test_sick_is_seen(name: str) -> None:
    assert DETECTORS[name](SICK[name]), name


@pytest.mark.parametrize("text", HEALTHY.values(), ids=HEALTHY)
def test_healthy_is_quiet(text: str) -> None:
    fired = [name for name, detect in DETECTORS.items() if detect(text)]
    assert fired == []
    assert not runaway(text)


def reply(text: str = "", **more: object) -> Reply:
    return Reply(0, 0, 1, text=text, **more)  # type: ignore[arg-type]


def probes(answer: Reply, **asked: object) -> set[str]:
    return {s.probe for s in judge(answer, Asked(**asked))}  # type: ignore[arg-type]


def test_what_the_text_alone_does_not_say() -> None:
    assert probes(reply("cut off", finish="length")) == {"never-stops"}
    assert probes(reply("", reasoning="I think it is", output_tokens=40)) == {"empty-answer"}
    assert probes(reply("ok", none_chunks=3)) == {"none-content"}
    assert probes(reply("<think>\nhm", finish="stop"), reasoning=True) == {"unclosed-think"}
    assert probes(reply("4", finish="stop"), reasoning=True) == {"no-think"}
    assert probes(reply("<think>\nx\n</think>\n4", finish="stop"), reasoning=True) == set()
    assert probes(reply("x\n</think>\n4", finish="stop"), reasoning=True) == set(), "the template opened the tag"
    english = "This is an answer in plain English that goes on for a while."
    assert probes(reply(english), language="zh") == {"language-drift"}
    assert probes(reply(english), language="en") == set()


def test_a_thought_that_our_own_limit_cut_is_no_fault_of_the_server() -> None:
    thought = "<think>\nLet me see. 2^10 is"
    assert probes(reply(thought, finish="length", output_tokens=1024), reasoning=True, limit=1024) == {"never-stops"}
    assert probes(reply("", reasoning="Let me see", finish="length", output_tokens=1024), reasoning=True, limit=1024) == {
        "never-stops"
    }
    assert probes(reply(thought, finish="length", output_tokens=300), reasoning=True, limit=1024) == {"unclosed-think"}
    assert probes(reply("", reasoning="Let me see", finish="length", output_tokens=300), reasoning=True, limit=1024) == {
        "empty-answer"
    }
    for text in (thought, "Let me see", ""):
        assert probes(reply(text, finish="unfinished", output_tokens=90), reasoning=True, limit=1024) == set()
    assert "never-stops" in probes(reply(SICK["phrase-loop"], finish="length", output_tokens=300), limit=1024), (
        "cut because it loops"
    )


@pytest.mark.slow
def test_time_is_up_and_what_came_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    from dstune.load import behave
    from dstune.load.detect import detect
    from dstune.load.run import Options
    from dstune.model.plan import Workload
    from tests.test_load import start

    process, url = start("--ttft-ms", "5", "--itl-ms", "100")
    try:
        monkeypatch.setattr(behave, "BUDGET_S", 2.0)
        trial, rows = behave.behave(detect(url), Options(Workload(concurrency=4), model="mock"))
    finally:
        process.kill()
        process.wait()
    assert trial.outcome["judged"] == 4, "the others were not asked any more"
    assert trial.outcome["requests"]["failed"] == 0
    assert not {"never-stops", "empty-answer"} & {r["probe"] for r in rows}


def test_runaway_cuts_early() -> None:
    assert runaway("x" * 10 + " text " * 40 + "\n" * 30)
    assert not runaway("\n" * 30), "too early to tell"


def test_interval_is_wilsons() -> None:
    low, high = interval(5, 10)
    assert (round(low, 3), round(high, 3)) == (0.237, 0.763)
    assert interval(0, 0) == (0.0, 1.0)
    assert interval(0, 20)[0] == 0.0
    assert interval(20, 20)[1] == 1.0


def test_summary_counts_answers_not_hits() -> None:
    judged = [judge(reply(SICK["special-tokens"] * 2), Asked()), judge(reply("fine and well"), Asked())]
    row = summary(judged)[0]
    assert (row["probe"], row["samples"], row["hits"], row["cause"]) == ("special-tokens", 2, 1, "special-tokens-not-skipped")


def test_every_probe_points_to_a_cause() -> None:
    assert set(DETECTORS) <= set(CAUSES)


@pytest.mark.parametrize(("probe", "cause"), [(p, c) for p, c in CAUSES.items() if c])
def test_doctor_comes_to_the_cause_that_a_probe_points_to(probe: str, cause: str) -> None:
    """The table of `bench --behaviour` names it; `doctor --run` on the same file called nine of these no fault."""
    trial = {
        "requests": {"ok": 24, "failed": 0}, "finish": {"length": 24} if probe == "never-stops" else {"stop": 24},
        "none_chunks": 24 * (probe == "none-content"), "settings": {"server": "unknown", "stream": True},
    }  # fmt: skip
    rows = [{"probe": probe, "hits": 20, "samples": 24, "excerpt": SICK.get(probe, "x")}]
    found = diagnose(derive(of_report({"trial": trial, "behaviours": rows}, "run.json")))
    assert cause in {f.cause for f in found.findings}


@pytest.mark.parametrize(
    ("probe", "hits", "said"),
    [("phrase-loop", 4, False), ("phrase-loop", 12, True), ("ngram-loop", 1, False), ("endless-newlines", 2, True)],
)
def test_a_few_repeated_words_are_the_models_own(probe: str, hits: int, said: bool) -> None:
    low, high = interval(hits, 24)
    row = {"probe": probe, "hits": hits, "samples": 24, "low": low, "high": high, "excerpt": "and so on and so forth and so on"}
    trial = {"requests": {"ok": 24, "failed": 0}, "finish": {"stop": 24}, "settings": {"server": "vllm", "stream": True}}
    found = diagnose(derive(of_report({"trial": trial, "behaviours": [row]}, "run.json")))
    assert ("endless-newlines" in {f.cause for f in found.findings}) is said


def test_a_stream_that_loops_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from dstune.load import behave
    from dstune.load.detect import detect
    from dstune.load.run import Options
    from dstune.model.plan import Workload
    from tests.test_load import start

    process, url = start("--ttft-ms", "5", "--itl-ms", "2")
    try:
        monkeypatch.setattr(behave, "QUESTIONS", behave.QUESTIONS[:2])
        options = Options(Workload(output_tokens=4000, concurrency=4), model="mock:newlines")
        trial, rows = behave.behave(detect(url), options)
    finally:
        process.kill()
        process.wait()
    assert trial.outcome["output_tokens"] < 4 * 3000, "8 seconds of text each would have come"
    assert {"endless-newlines", "never-stops"} <= {str(r["probe"]) for r in rows}
    assert rows[0]["hits"] == rows[0]["samples"] == 4
