"""The remedies of four popular articles, claim by claim: what dstune finds, writes, generates or refuses of each (tests/data/claims.yaml)."""

from __future__ import annotations

import json
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from dstune.catalog import root
from dstune.catalog.rules import rules
from dstune.readers import app_edit, text_edit

ROWS: list[dict[str, Any]] = YAML(typ="safe").load(Path(__file__).parent / "data" / "claims.yaml")
WRITTEN = [r for r in ROWS if "before" in r]
NUMBERS = {"S0": 63, "S1": 43, "S2": 41, "S4": 52}
"""Claims of each article."""


def name(row: dict[str, Any]) -> str:
    return ",".join(row["claims"])


def dstune(what: str, *words: str) -> Result:
    command = import_module(f"dstune.cli.{what}").command
    return CliRunner().invoke(command, list(words), standalone_mode=False)


def test_every_claim_has_one_row() -> None:
    listed = Counter(c for r in ROWS for c in r["claims"])
    assert set(listed.values()) == {1}
    assert set(listed) == {f"{a}-{n:02}" for a, most in NUMBERS.items() for n in range(1, most + 1)}


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_what_a_row_names_exists(row: dict[str, Any]) -> None:
    assert row["remedy"]
    assert {"cause", "app", "file", "refused", "hand", "measured"} & set(row), "a row says who has the remedy"
    if "cause" in row:
        fixes = rules()[row["cause"]].fixes
        assert "hand" in row or "refused" in row or any(f.edit or f.set for f in fixes)
        if "edit" in row:
            assert row["edit"] in {f.edit for f in fixes}
            assert row["edit"] in {*app_edit.edits(), *text_edit.EDITS}
        if "set" in row:
            assert any(row["set"] in f.set for f in fixes)
    for path in [row["file"]] if "file" in row else []:
        folder = root() / "templates" / "app"
        assert (folder / path).exists() or (folder / f"{path}.j2").exists()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The configuration of a generated program for a reasoning model."""
    out = tmp_path_factory.mktemp("app") / "chat"
    done = dstune("generate", "app", "--gpu", "4090", "--model", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "-o", str(out))
    assert (out / "config.yaml").exists(), done.output
    found: dict[str, Any] = YAML(typ="safe").load(out / "config.yaml")
    return found


@pytest.mark.parametrize("row", [r for r in ROWS if "app" in r], ids=name)
def test_the_generated_program_has_the_keys(row: dict[str, Any], config: dict[str, Any]) -> None:
    for key in row["app"]:
        here: Any = config
        for part in key.split("."):
            assert part in here, key
            here = here[part]


@pytest.mark.parametrize("row", WRITTEN, ids=name)
def test_the_article_s_file_comes_back_right(row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    files = {row["name"]: row["before"], **row.get("with", {})}
    for path, text in files.items():
        Path(path).write_text(text, encoding="utf-8")
    words = [w for n in sorted(files) for w in (["--log", n] if n.endswith(".log") else [n])]
    said = {f["cause"] for f in json.loads(dstune("doctor", "--no-host", "--json", *words).stdout)["findings"]}
    causes = [row["cause"], *([row["also"]] if "also" in row else [])]
    assert said >= set(causes)
    asked = [w for c in causes for w in ("--only", c)]
    dstune("fix", "--no-host", "--write", *asked, *words)
    after = Path(row["name"]).read_text(encoding="utf-8")
    assert [t for t in row.get("after", ()) if t not in after] == []
    assert [t for t in row.get("gone", ()) if t in after] == []
    dstune("fix", "--no-host", "--write", *asked, *words)
    assert Path(row["name"]).read_text(encoding="utf-8") == after, "a second time there is nothing to do"
