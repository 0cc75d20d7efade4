"""`dstune generate`: to standard output, into a folder, never over a user's file unasked."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dstune.catalog.gpus import find
from dstune.catalog.models import get
from dstune.cli.generate import command, planned
from dstune.model.plan import Workload
from dstune.plan.search import Wish
from dstune.render import Context, render
from dstune.render.stack import cuda_of

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_one_file_to_standard_output(run_dstune: Run) -> None:
    done = run_dstune("generate", "dockerfile", "--gpu", "4090")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# syntax=docker/dockerfile:1\n")
    assert "RTX 4090" in done.stdout


def test_several_files_name_themselves(run_dstune: Run) -> None:
    done = run_dstune("generate", "launch", "compose", "launch", "--gpu", "t4")
    assert [line for line in done.stdout.splitlines() if line.startswith("# ---- ")] == [
        "# ---- launch.sh ----",
        "# ---- compose.yaml ----",
    ]
    assert "--dtype float16" in done.stdout


def test_a_folder_is_written_once(run_dstune: Run, tmp_path: Path) -> None:
    out = tmp_path / "new" / "deploy"
    args = ("generate", "dockerfile", "compose", "launch", "config", "--gpu", "3090", "--engine", "vllm", "-o", str(out))
    first = run_dstune(*args)
    assert first.returncode == 0, first.stderr
    assert first.stdout == ""
    assert sorted(p.name for p in out.iterdir()) == ["Dockerfile", "compose.yaml", "config.yaml", "launch.sh"]
    assert os.access(out / "launch.sh", os.X_OK)
    assert "build: ." in (out / "compose.yaml").read_text()
    again = run_dstune(*args)
    assert (again.returncode, again.stdout) == (0, "")


def test_a_users_file_is_shown_as_a_diff_and_kept(run_dstune: Run, tmp_path: Path) -> None:
    mine = tmp_path / "Dockerfile"
    mine.write_text("FROM scratch\n")
    args = ("generate", "dockerfile", "compose", "--gpu", "4090", "-o", str(tmp_path))
    done = run_dstune(*args)
    assert done.returncode == 1
    assert "-FROM scratch" in done.stdout
    assert "--force" in done.stderr
    assert mine.read_text() == "FROM scratch\n"
    assert not (tmp_path / "compose.yaml").exists(), "one refused file must leave none half written"
    forced = run_dstune(*args, "--force")
    assert forced.returncode == 0, forced.stderr
    assert "vllm/vllm-openai" in mine.read_text()
    assert run_dstune("undo").returncode == 0
    assert mine.read_text() == "FROM scratch\n"


def test_json_has_the_artifacts(run_dstune: Run) -> None:
    made = json.loads(run_dstune("generate", "launch", "--gpu", "a100", "--json").stdout)
    (artifact,) = made["artifacts"]
    assert artifact["path"] == "launch.sh"
    assert artifact["text"].startswith("#!/usr/bin/env bash\n")
    assert made["plan"]["engine"] in artifact["text"]


def test_a_driver_that_cannot_is_refused_with_one_that_can(run_dstune: Run) -> None:
    done = run_dstune(
        "generate", "dockerfile", "--gpu", "4090", "--engine", "vllm", "--engine-version", "0.32.0", "--driver", "535"
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--engine-version 0.19.1" in done.stderr
    older = run_dstune("generate", "dockerfile", "--gpu", "4090", "--engine", "vllm", "--driver", "535")
    assert older.returncode == 0, older.stderr
    assert "vllm==0.19.1" in older.stdout
    wrong = run_dstune("generate", "dockerfile", "--gpu", "4090", "--driver", "new")
    assert wrong.returncode == 2
    assert "no driver version" in wrong.stderr


def test_chinese(run_dstune: Run) -> None:
    done = run_dstune("generate", "compose", "--gpu", "4090", "--lang", "zh")
    assert "只允许本机访问" in done.stdout


@pytest.mark.parametrize("engine", ["vllm", "transformers", "llama.cpp", "sglang", "hf-serve"])
@pytest.mark.parametrize("card", ["4090", "T4", "RTX 3060 laptop", "A100"])
def test_every_engine_of_a_real_plan(engine: str, card: str) -> None:
    gpu, model = find(card), get("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    wish = Wish(gpu, model, engine=engine, driver_cuda=cuda_of("580"), workload=Workload(512, 1024, 4))
    plan, version = planned(wish, gpu, "580", strict=True)
    assert plan.engine == engine
    for artifact in render(("dockerfile", "compose", "launch"), plan, Context(gpu, model, "580", version)):
        assert version in artifact.text or engine == "llama.cpp", artifact.path


def test_a_failed_write_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dstune import patch

    def fails(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(patch, "write", fails)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(OSError, match="space"):
        CliRunner().invoke(
            command, ["launch", "--gpu", "RTX 4090", "-o", "there/new/deep"], standalone_mode=False, catch_exceptions=False
        )
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
