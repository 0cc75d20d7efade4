"""Files about different servers: said so, not mixed, and nothing is written into one because of the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dstune.cli import doctor as doctor_command
from dstune.cli import fix as fix_command
from dstune.derive import disagreements
from dstune.model import Document, Evidence, Fact
from dstune.readers import read_documents, recognise

LOG = Path(__file__).parent / "logs" / "provoked" / "vllm-max-len-exceeds-kv--blocks.log"
COMPOSE = """services:
  vllm:
    image: vllm/vllm-openai:v0.11.0
    ports:
      - "8000:8000"
    command: --model {model} {more}
"""
OTHER = COMPOSE.format(model="Qwen/Qwen2.5-7B-Instruct", more="--max-model-len 32768 --tensor-parallel-size 2")
SAME = COMPOSE.format(model="/models/DeepSeek-R1-Distill-Qwen-1.5B", more="")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "server.log").write_text(LOG.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def doctor(*args: str) -> Result:
    return CliRunner().invoke(doctor_command.command, ["--no-host", *args], standalone_mode=False, catch_exceptions=False)


def fix(*args: str) -> Result:
    return CliRunner().invoke(fix_command.command, ["--no-host", *args], standalone_mode=False, catch_exceptions=False)


@pytest.mark.parametrize("order", [("server.log", "deploy.yaml"), ("deploy.yaml", "server.log")])
def test_doctor_says_so_and_keeps_them_apart_in_any_order(files: Path, order: tuple[str, str]) -> None:
    (files / "deploy.yaml").write_text(OTHER, encoding="utf-8")
    told = doctor(*order).stdout
    joined = " ".join(told.split())
    assert f"{order[0]} and {order[1]} describe different servers" in joined
    assert {"max_model_len", "32768", "8192"} - set(re.split(r"[ ;.]+", joined)) == set()
    assert {"as read in server.log:", "as read in deploy.yaml:"} == set(re.findall(r"as read in \S+:", told))
    assert "vllm-max-len-exceeds-kv · sure" in told
    assert "container-shm-too-small · likely" in told  # of the compose file, whichever comes first


def test_fix_writes_a_value_of_the_log_into_no_other_server(files: Path) -> None:
    (files / "deploy.yaml").write_text(OTHER, encoding="utf-8")
    told = fix("deploy.yaml", "server.log").stdout
    assert "2304" not in told
    assert "shm_size: 8g" in told  # what the file itself asks for is written
    assert "deploy.yaml describes another server" in " ".join(told.split())


def test_fix_writes_it_where_the_log_agrees(files: Path) -> None:
    (files / "deploy.yaml").write_text(SAME, encoding="utf-8")
    told = fix("deploy.yaml", "server.log").stdout
    assert "+    command: --model /models/DeepSeek-R1-Distill-Qwen-1.5B --max-model-len 2304" in told
    assert "different" not in told


@pytest.mark.parametrize(
    ("one", "two", "apart"),
    [
        ("org/R1-1.5B", "/data/r1-1.5b/", False),
        ("org/R1-1.5B", "/hub/models--org--R1-1.5B/snapshots/abc123", False),
        ("org/R1-1.5B", "org/R1-7B", True),
        ("org/R1-1.5B", "$MODEL", False),
        ("org/R1-1___5B", "org/R1-1.5B", False),
    ],
)
def test_a_model_is_compared_by_its_last_folder(one: str, two: str, apart: bool) -> None:
    facts = (Fact("vllm", "model", one, "a.log", 1), Fact("vllm", "model", two, "b.yaml", 1))
    assert bool(disagreements(Evidence(facts))) is apart


def test_one_value_in_common_is_enough() -> None:
    facts = tuple(Fact("vllm", "max_model_len", v, s, 1) for v, s in ((8192, "a.log"), (4096, "a.log"), (4096, "b.sh")))
    assert not disagreements(Evidence(facts))


def test_a_compose_file_of_any_name() -> None:
    assert recognise("deploy.yaml", OTHER) == "compose"
    assert recognise("values.yaml", "services:\n  a:\n    port: 1\n") == "config"
    assert read_documents([Document("deploy.yaml", recognise("deploy.yaml", OTHER), OTHER)]).first("docker", "publishes")


@pytest.mark.parametrize(
    ("name", "text", "code", "told"),
    [
        ("bad.yaml", "model: a/b\nmax-model-len: [4096\nx: 1\n", 1, "config-invalid"),
        ("bad.json", '{"a": 1,\n "b" 2}\n', 1, "bad.json:2"),
        ("bad.toml", "[a\nb = 1\n", 1, "config-invalid"),
        ("rows.json", '{"a": 1}\n{"a": 2}\n', 3, "Not read"),
        ("chart.yaml", "a: {{ if .x }}\n b: [\n", 3, "Not read"),
        ("bad.py", "def f(:\n    pass\n", 3, "Not read"),
        ("good.yaml", "model: a/b\nmax-model-len: 4096\n", 0, "No fault"),
    ],
)
def test_a_file_that_cannot_be_read_is_not_called_fine(files: Path, name: str, text: str, code: int, told: str) -> None:
    (files / name).write_text(text, encoding="utf-8")
    result = doctor(name)
    assert result.return_value == code
    assert told in result.stdout
