"""Logs of failures that benchmarks/provoke_cuda.py provoked on an H200, and recordings of that machine in health."""

import json
from pathlib import Path

import pytest

from dstune.derive import derive
from dstune.diagnose import diagnose
from dstune.model import Evidence, from_json
from dstune.readers import read_files

HERE = Path(__file__).parent
LOGS = sorted((HERE / "logs/cuda").glob("*.log"))


@pytest.mark.parametrize("path", LOGS, ids=lambda p: p.stem)
def test_cause_comes_first(path: Path) -> None:
    seen, _ = read_files([str(path)])
    found = diagnose(derive(seen)).findings
    assert found, "nothing found"
    assert found[0].cause == path.stem.partition("--")[0]
    assert not [
        f
        for f in found[1:]
        if f.confidence == "high" and not f.because and f.severity == "error" and f.cause != "torch-memory-cap"
    ]


@pytest.mark.parametrize("name", ["h200-idle", "h200-loaded"])
def test_healthy_machine_is_quiet(name: str) -> None:
    evidence = from_json(Evidence, json.loads((HERE / "evidence" / name / "ev.json").read_text(encoding="utf-8")))
    assert len(evidence.facts) > 100
    found = diagnose(derive(evidence)).findings
    assert [(f.cause, f.message) for f in found if f.severity != "info"] == []
