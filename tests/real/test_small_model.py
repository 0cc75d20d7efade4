"""The real small model: behaviour probes on a server that is well and on one that is pushed into loops, and the bare model on the CPU."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dstune.load import behave
from dstune.load.detect import detect
from dstune.load.local import run
from dstune.load.run import Options
from dstune.model.plan import Workload
from tests.real import servers
from tests.real.servers import Server

ASKED = (
    behave.Question("What is 2^10?", temperature=0.3),
    behave.Question("What is 1+1?", temperature=0.6),
    behave.Question("Write a Python function for quicksort.", temperature=0.6),
)


def asked(server: Server, tokens: int, **extra: object) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    options = Options(Workload(output_tokens=tokens, concurrency=8), model="smollm2", extra=dict(extra))
    trial, rows = behave.behave(detect(server.url), options)
    return trial.outcome, {str(r["probe"]): r for r in rows}


def test_a_healthy_model_has_no_broken_text(vllm: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behave, "QUESTIONS", ASKED)
    figures, rows = asked(vllm, 256)
    assert figures["requests"] == {"ok": 6, "failed": 0}
    broken = {
        "broken-characters",
        "mojibake",
        "byte-level-tokens",
        "special-tokens",
        "lost-spaces",
        "exclamation-marks",
        "none-content",
        "empty-answer",
    }
    assert not broken & set(rows), rows


def test_a_model_that_may_not_end_loops(vllm: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behave, "QUESTIONS", ASKED)
    figures, rows = asked(vllm, 500, ignore_eos=True)
    loops = {"endless-newlines", "line-loop", "phrase-loop", "ngram-loop"} & set(rows)
    assert loops, rows
    assert figures["requests"] == {"ok": 6, "failed": 0}
    assert rows["never-stops"]["hits"] == 6


def test_the_command_counts_behaviours_and_doctor_reads_them(
    vllm: Server, run_dstune: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    saved = tmp_path / "run.json"
    done = run_dstune("bench", vllm.url, "--behaviour", "-c", "8", "--max-tokens", "64", "-o", str(saved))
    assert done.returncode == 0, done.stderr
    report = json.loads(saved.read_text())
    assert {r["samples"] for r in report["behaviours"]} == {2 * len(behave.QUESTIONS)}
    found = run_dstune("doctor", "--no-host", "--run", str(saved), "--json", "--fail-on", "never")
    assert found.returncode == 0, found.stderr
    errors = [f for f in json.loads(found.stdout)["findings"] if f["severity"] == "error"]
    assert errors == [], "a small model that rambles is no broken server"


def test_the_bare_model_on_the_cpu(logs: Path) -> None:
    seen: list[str] = []
    trials = run(
        str(servers.MODEL), servers.python("vllm"), batches=(1, 4), prompt=64, tokens=16, seen=lambda e: seen.append(e["event"])
    )
    assert [t.workload.concurrency for t in trials] == [1, 4]
    assert seen[0] == "loaded"
    one, four = (t.outcome for t in trials)
    assert one["output_tokens"] == 16
    assert four["output_tokens"] == 64
    assert four["output_tok_s"] > one["output_tok_s"], "a batch reads the weights once"
    assert one["ttft_ms"]["mean"] > 0
    assert 250 << 20 < one["memory"]["rss"] < 4 << 30
    assert trials[0].settings["parameters"] == 134_515_008


def test_a_directory_that_does_not_load_is_said(
    tmp_path: Path, logs: Path, run_dstune: Callable[..., CompletedProcess[str]]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen9"}')
    done = run_dstune("bench", "--local", str(tmp_path), "--python", servers.python("vllm"))
    assert done.returncode == 3
    assert "qwen9" in done.stderr
    assert "Traceback" not in done.stderr
