"""Whole programs, scripts, compose files, Dockerfiles and notebooks as people write them: what `dstune fix` makes of each.

`tests/corpus/faulty/<case>` becomes `tests/corpus/fixed/<case>` (files that are not there stay); `healthy/<case>` comes back byte for byte,
and so do the programs of tests/apps/healthy. The cases up to 20 were written before anybody looked at what the editors can do.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from dstune.cli.fix import command
from dstune.readers.yaml_text import load

CORPUS = Path(__file__).parent / "corpus"
FAULTY = sorted(p.name for p in (CORPUS / "faulty").iterdir())
HEALTHY = sorted(p.name for p in (CORPUS / "healthy").iterdir())
APPS = sorted((CORPUS.parent / "apps" / "healthy").iterdir())
ADVICE = {"02-streamlit-chat", "94-streamlit-pipeline"}
"""Cases that take the advice along: a page that streams is no fault of one that does not."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def fixed(folder: Path, *options: str) -> dict[str, bytes]:
    """The files of a folder after `dstune fix --write`."""
    names = sorted(p.name for p in folder.iterdir())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        CliRunner().invoke(command, ["--no-host", "--write", *options, *names], standalone_mode=False, catch_exceptions=False)
    return {name: (folder / name).read_bytes() for name in names}


def wanted(case: str) -> dict[str, bytes]:
    golden = CORPUS / "fixed" / case
    return {
        p.name: (golden / p.name if (golden / p.name).exists() else p).read_bytes()
        for p in sorted((CORPUS / "faulty" / case).iterdir())
    }


def parses(name: str, data: bytes) -> None:
    text = data.decode("utf-8-sig")
    if name.endswith(".py"):
        ast.parse(re.sub(r"(?m)^[!%].*$", "", text))  # shell lines and magics of an exported notebook
    elif name.endswith(".ipynb"):
        json.loads(text)
    elif name.endswith((".yaml", ".yml")):
        assert list(load(text))


@pytest.mark.parametrize("case", FAULTY)
def test_a_faulty_program_comes_back_right(case: str, tmp_path: Path) -> None:
    folder = tmp_path / case
    shutil.copytree(CORPUS / "faulty" / case, folder)
    options = ["--advice"] if case in ADVICE else []
    after = fixed(folder, *options)
    assert {n: d.decode() for n, d in after.items()} == {n: d.decode() for n, d in wanted(case).items()}
    assert after != {p.name: p.read_bytes() for p in (CORPUS / "faulty" / case).iterdir()}
    for name, data in after.items():
        parses(name, data)
    assert fixed(folder, *options) == after, "a second time there is nothing to do"


@pytest.mark.parametrize("case", [c for c in FAULTY if c[:2] in ("01", "08", "09", "24", "30")])
def test_line_ends_of_windows_stay(case: str, tmp_path: Path) -> None:
    folder = tmp_path / case
    shutil.copytree(CORPUS / "faulty" / case, folder)
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert fixed(folder) == {n: d.replace(b"\n", b"\r\n") for n, d in wanted(case).items()}


@pytest.mark.parametrize("case", HEALTHY)
def test_a_healthy_program_stays(case: str, tmp_path: Path) -> None:
    folder = tmp_path / case
    shutil.copytree(CORPUS / "healthy" / case, folder)
    assert fixed(folder) == {p.name: p.read_bytes() for p in (CORPUS / "healthy" / case).iterdir()}


@pytest.mark.parametrize("path", APPS, ids=lambda p: p.name)
def test_healthy_apps_stay(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    shutil.copy(path, folder)
    assert fixed(folder) == {path.name: path.read_bytes()}


def test_the_corpus_is_large_and_half_healthy() -> None:
    healthy = len(HEALTHY) + len(APPS)
    assert len(FAULTY) + healthy >= 40
    assert healthy >= len(FAULTY)
