"""All probes together: bounded, silent about secrets, in the vocabulary; and the command that records them."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dstune import probes
from dstune.catalog.vocabulary import normalise, terms
from dstune.model import Evidence, Fact, family_of, from_json
from dstune.probes.reading import Item, Options


def test_this_machine_speaks_the_vocabulary() -> None:
    evidence = probes.collect()
    assert {family_of(f.subject) for f in evidence.facts} >= {
        "host",
        "python",
        "cuda_toolkit",
        "container",
        "docker",
        "server",
        "driver",
        "disk",
    }
    for fact in evidence.facts:
        name = f"{family_of(fact.subject)}.{fact.name}"
        assert name in terms(), name
        assert normalise(name, fact.value) == fact.value, (name, fact.value)
        assert fact.source, name
    for gap in evidence.gaps:
        assert gap.name == "*" or f"{family_of(gap.subject)}.{gap.name}" in terms(), gap
        assert gap.reason
    assert evidence.origin["dstune"]


def test_nothing_is_told_twice() -> None:
    told = [(f.subject, f.name) for f in probes.collect().facts]
    assert len(told) == len(set(told))


def _slow(options: Options) -> Iterator[Item]:
    yield Fact("host", "os", "linux", "test")
    time.sleep(30)


def _broken(options: Options) -> Iterator[Item]:
    yield Fact("driver", "version", "1.0", "test")
    raise RuntimeError("token=abcdef123456 went wrong")


def test_a_probe_that_hangs_and_one_that_fails_become_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PROBES", {"host": _slow, "nvidia": _broken})
    start = time.monotonic()
    evidence = probes.collect(deadline_s=0.5)
    assert time.monotonic() - start < 5
    assert {(f.subject, f.name) for f in evidence.facts} == {("host", "os"), ("driver", "version")}
    reasons = {g.subject: g.reason for g in evidence.gaps}
    assert "no answer within" in reasons["host"]
    assert "RuntimeError" in reasons["gpu"]
    assert "abcdef123456" not in reasons["gpu"]


def test_only_the_named_probes_run() -> None:
    evidence = probes.collect(["server"])
    assert {family_of(f.subject) for f in evidence.facts} == {"server"}


def test_importing_the_package_costs_nothing() -> None:
    heavy = "('pynvml', 'psutil', 'subprocess', 'urllib.request', 'json')"
    code = f"import sys; before = set(sys.modules); import dstune.probes; print([m for m in {heavy} if m in sys.modules and m not in before])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


Run = Callable[..., subprocess.CompletedProcess[str]]


def test_command_writes_evidence_that_is_read_back(run_dstune: Run, tmp_path: Path) -> None:
    target = tmp_path / "ev.json"
    done = run_dstune("probe", "-o", str(target))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert str(target.name) in done.stderr
    evidence = from_json(Evidence, json.loads(target.read_text()))
    assert evidence.first("host", "os") == "linux"
    assert evidence.origin["probes"]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".dstune-")] == []


def test_command_as_json(run_dstune: Run) -> None:
    done = run_dstune("probe", "--json", "--only", "host,container")
    data = json.loads(done.stdout)
    assert (data["schema"], data["command"]) == ("dstune.report/1", "probe")
    assert all(set(f) == {"subject", "name", "value", "source"} for f in data["evidence"]["facts"])
    assert all(set(g) == {"subject", "name", "reason", "hint"} for g in data["evidence"]["gaps"])
    assert {family_of(f["subject"]) for f in data["evidence"]["facts"]} <= {
        "host",
        "disk",
        "container",
        "docker",
        "container_toolkit",
    }


@pytest.mark.parametrize(("lang", "title", "rest"), [("en", "Host", "could not be read"), ("zh", "主机", "未能读取")])
def test_command_as_text_fits_80_columns(run_dstune: Run, lang: str, title: str, rest: str) -> None:
    done = run_dstune("probe", "--lang", lang)
    assert done.returncode == 0, done.stderr
    assert title in done.stdout.splitlines()
    assert rest in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_command_refuses_an_unknown_probe(run_dstune: Run) -> None:
    done = run_dstune("probe", "--only", "gpus")
    assert done.returncode == 2
    assert "gpus" in done.stderr


def test_command_reads_a_model(run_dstune: Run, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text('{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}')
    done = run_dstune("probe", "--only", "models", "--model", str(tmp_path / "m"), "--json")
    facts = {f["name"]: f["value"] for f in json.loads(done.stdout)["evidence"]["facts"]}
    assert facts["architecture"] == "Qwen2ForCausalLM"


def test_command_says_when_the_endpoint_is_not_there(run_dstune: Run) -> None:
    done = run_dstune("probe", "--only", "server", "--endpoint", "http://127.0.0.1:9")
    assert done.returncode == 3
    assert "127.0.0.1:9" in done.stdout


def test_command_refuses_a_folder_that_is_not_there(run_dstune: Run, tmp_path: Path) -> None:
    done = run_dstune("probe", "--only", "server", "-o", str(tmp_path / "gone/ev.json"))
    assert done.returncode == 2
    assert "gone" in done.stderr
