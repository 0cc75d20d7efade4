"""Better, worse or noise, by the spread of repeated runs."""

from typing import Any

from dstune.verify import compare, word


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
