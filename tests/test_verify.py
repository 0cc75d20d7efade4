"""Better, worse or noise, by the spread of repeated runs."""

from typing import Any

from dstune import lang
from dstune.report.verify import conclusion, label
from dstune.verify import CLAIMS, Answers, answers, compare, word


def run(rate: float, ttft: float) -> dict[str, Any]:
    return {"requests": {"ok": 5, "failed": 0}, "output_tok_s": rate, "ttft_ms": {"p50": ttft, "p95": ttft}}


def words(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[str, str]:
    return {v.claim: word(v) for v in compare(before, after)}


def test_repeated_runs_set_the_noise() -> None:
    before = [run(100, 50), run(102, 51), run(98, 49)]
    assert words(before, [run(150, 30), run(149, 31), run(151, 30)]) == {
        "output_tok_s": "better", "ttft_ms p50": "better", "ttft_ms p95": "better", "failed": "noise",
    }  # fmt: skip
    assert words(before, [run(101, 50), run(99, 50), run(103, 52)])["output_tok_s"] == "noise"
    assert words(before, [run(50, 90), run(51, 91), run(52, 90)])["ttft_ms p95"] == "worse"


def test_single_runs_are_given_room() -> None:
    assert words([run(100, 50)], [run(95, 52)])["output_tok_s"] == "noise"
    verdicts = {v.claim: v for v in compare([run(100, 50)], [run(60, 50)])}
    assert not verdicts["output_tok_s"].met
    assert verdicts["ttft_ms p50"].met


def test_what_one_side_lacks_is_left_out() -> None:
    assert "itl_ms p50" not in words([run(1, 1)], [run(1, 1)])


def test_a_small_difference_is_none_however_well_it_repeats() -> None:
    steady = [run(100, 50), run(100, 50), run(100, 50)]
    assert words(steady, [run(96, 51.5)] * 3) == dict.fromkeys(words(steady, steady), "noise")
    assert words(steady, [run(85, 50)] * 3)["output_tok_s"] == "worse"


def test_a_failure_where_there_was_none_is_worse() -> None:
    bad = {"requests": {"ok": 4, "failed": 1}, "output_tok_s": 100.0}
    assert words([run(100, 50)] * 3, [run(100, 50), run(100, 50), bad])["failed"] == "worse"
    assert words([bad] * 3, [run(100, 50)] * 3)["failed"] == "better"
    assert words([bad, run(1, 1), run(1, 1)], [run(1, 1), bad, run(1, 1)])["failed"] == "noise", "as many as before"


def test_characters_count_only_where_tokens_do_not() -> None:
    tokens = {"requests": {"ok": 1, "failed": 0}, "output_tok_s": 10.0, "output_char_s": 40.0}
    events = {**tokens, "output_tok_s": None}
    assert "output_char_s" not in words([tokens], [tokens])
    assert "output_char_s" not in words([tokens], [events])
    assert words([events], [{**events, "output_char_s": 90.0}])["output_char_s"] == "better"


QUESTIONS = ["a?", "b?", "c?"]


def test_texts_equal_cut_and_lost() -> None:
    full = ["one two three", "four", "five"]
    same = answers(QUESTIONS, [full] * 2, [full] * 2, True)
    assert (same.compared, same.same, same.worse) == (3, 3, False)
    cut = answers(QUESTIONS, [full], [["one two", "four", "six"]], True)
    assert (cut.same, cut.cut, cut.worse) == (1, 1, True)
    assert cut.example == ("a?", "one two three", "one two")
    lost = answers(QUESTIONS, [full], [["one two three", "", "five"]], True)
    assert (lost.compared, lost.same, lost.lost, lost.worse) == (2, 2, 1, True)
    longer = answers(QUESTIONS, [["one", "", ""]], [["one two", "", ""]], True)
    assert (longer.longer, longer.worse) == (1, False)


def test_texts_that_vary_by_themselves_prove_nothing() -> None:
    sampled = answers(QUESTIONS, [["x", "y", "z"], ["x", "w", "z"]], [["x", "y", "z"]] * 2, True)
    assert (sampled.compared, sampled.why) == (0, "sampled before")
    once = answers(QUESTIONS, [["x", "y", "z"]], [["x", "y", "z"]], False)
    assert (once.compared, once.why) == (0, "as is"), "one pass without greedy decoding"
    twice = answers(QUESTIONS, [["x", "y", "z"]] * 2, [["x", "y", "z"]] * 2, False)
    assert twice.same == 3, "each side repeated itself"


def test_one_line_says_what_came_of_it() -> None:
    told = conclusion(compare([run(100, 500)] * 3, [run(150, 50)] * 3), Answers())
    assert told.startswith("BETTER, nothing got worse: first token p50, ms 500 → 50 (10.0×)")
    assert conclusion(compare([run(100, 50)] * 3, [run(50, 50)] * 3), Answers()).startswith("WORSE: tokens/s 100 → 50 (2.0×)")
    assert "end early" in conclusion((), Answers(cut=2))
    assert conclusion(compare([run(100, 50)], [run(100, 50)]), Answers()) == "No difference beyond the noise."
    lang.use("zh")
    assert conclusion(compare([run(100, 500)] * 3, [run(150, 50)] * 3), Answers()).startswith("变好，没有变差：首 token p50")


def test_every_figure_has_a_name_for_people_in_both_languages() -> None:
    for claim in CLAIMS:
        lang.use("en")
        english = label(claim.name)
        lang.use("zh")
        assert label(claim.name) != english


def test_gaps_of_a_server_that_sends_in_bursts_say_nothing() -> None:
    steady = {"requests": {"ok": 1, "failed": 0}, "itl_ms": {"p50": 20.0, "p95": 30.0}}
    burst = {**steady, "itl_ms": {"p50": 0.01, "p95": 1.0}}
    assert words([steady], [{**steady, "itl_ms": {"p50": 40.0, "p95": 60.0}}])["itl_ms p50"] == "worse"
    assert not any("itl" in name for name in words([burst], [steady]))
