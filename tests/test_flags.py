"""The flag check judges `vllm serve` lines as the parsers of the versions do."""

import pytest

from dstune.catalog import flags


def problems(line: str, version: str | None = None) -> list[tuple[str, str]]:
    return [(p.flag, p.fault) for p in flags.check(line.split(), version)]


def test_four_parsers_with_their_flags() -> None:
    # counts of the parsers of the wheels, less the positional argument
    assert {v: len(t) for v, t in flags.tables().items()} == {
        "0.6.6.post1": 127,
        "0.8.5.post1": 137,
        "0.11.0": 184,
        "0.32.0": 317,
    }


@pytest.mark.parametrize(
    ("line", "version", "expected"),
    [
        ("M --max-model-len 8192 -tp 2 --dtype half --served-model-name a b --enable-prefix-caching", "0.6.6", []),
        ("M --max-model-len 8k", "0.6.6", [("--max-model-len", "value")]),
        ("M --max-model-len 8k", "0.11.0", []),
        ("M --max-model-len auto", "0.32.0", []),
        ("M --max-model-len auto", "0.11.0", [("--max-model-len", "value")]),
        ("M --reasoning-parser deepseek_r1", "0.6.3", [("--reasoning-parser", "too new")]),
        ("M --reasoning-parser deepseek_r1", "0.7.3", []),  # came between two parsers: not decided
        ("M --enable-reasoning --reasoning-parser deepseek_r1", "0.8.5", []),
        ("M --enable-reasoning --reasoning-parser deepseek_r1", "0.11.0", [("--enable-reasoning", "removed")]),
        (
            "M --enable-reasoning --reasoning-parser deepseek_r1",
            "0.9.2",
            [],
        ),  # between two parsers: what one of them takes is not said
        ("M --disable-log-requests --swap-space 4", "0.11.0", []),
        ("M --disable-log-requests --swap-space 4", None, [("--disable-log-requests", "removed"), ("--swap-space", "removed")]),
        ("M --gpu_memory_utilization=0.9 --max_num_seqs 64", None, []),
        ("M --port=eighty", None, [("--port", "value")]),
        ("M --dtype fp16", "0.11.0", [("--dtype", "choice")]),
        ("M --compilation-config.level 3 -O3 --no-enable-prefix-caching", "0.11.0", []),
        ("M --max-model-len $LEN --dtype <dtype>", None, []),
        ("M --max-model-length 4096", None, [("--max-model-length", "unknown")]),
        ("M --enable-prefix-cach", None, []),  # argparse takes an unambiguous abbreviation
        ("M --max-num-seqs", None, [("--max-num-seqs", "no value")]),
    ],
)
def test_check(line: str, version: str | None, expected: list[tuple[str, str]]) -> None:
    assert problems(line, version) == expected


def test_names_the_nearest_flag_and_what_replaces_one() -> None:
    assert flags.check(["--max-model-length", "4096"])[0].instead == "--max-model-len"
    assert flags.check(["--guided-decoding-backend", "auto"])[0].instead == "--structured-outputs-config"
    assert flags.replaced_by("disable-log-requests") == ""


def test_history() -> None:
    assert (flags.since("reasoning-parser"), flags.gone("disable-log-requests"), flags.gone("max-model-len")) == (
        "0.8.5.post1",
        "0.32.0",
        "",
    )


def test_every_removed_flag_with_a_replacement_did_go() -> None:
    from dstune.catalog import load

    newest = list(flags.tables())[-1]
    known = {n for t in flags.tables().values() for n in t}
    for name in load("engines")["vllm"]["engine"]["replaced"]:
        assert name not in flags.tables()[newest], f"{name} is still there in {newest}"
        assert name in known or name in ("engine-use-ray", "max-context-len-to-capture"), f"{name}: no parser ever had it"


def test_settings_agree_with_the_parsers() -> None:
    """Each vLLM setting's flag, since and until are what the four parsers say."""
    from dstune.catalog.vocabulary import settings

    versions = list(flags.tables())
    for full, term in settings("vllm").items():
        for flag in term.spec.get("flag", ())[:1]:
            having = [v for v in versions if flag in flags._names(v)]
            assert having, f"{full}: no parser has {flag}"
            assert term.spec.get("since", versions[0]) == having[0], full
            assert term.spec.get("until", versions[-1]) == having[-1], full


@pytest.mark.parametrize(
    ("text", "value"), [("8k", 8000), ("8K", 8192), ("1.5M", 1572864), ("4096", 4096), ("8x", None), ("-1", None)]
)
def test_human(text: str, value: int | None) -> None:
    assert flags.human(text) == value
