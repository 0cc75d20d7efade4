"""The documents are true: every command of the READMEs runs, both say the same, links lead somewhere."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dstune.cli import COMMANDS

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "README.zh-CN.md")
DOCS = [*(ROOT / r for r in READMES), *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]


STAND_IN = """import os, runpy, sys
sys.argv = ["mock", "--port", os.environ["GRADIO_SERVER_PORT"], "--ttft-ms", "{ttft}", "--itl-ms", "1", "--kind", "vllm"]
runpy.run_module("tests.servers.mock", run_name="__main__")
"""


def commands(readme: str) -> list[str]:
    """Lines of the `sh` blocks that call dstune, without their comments."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / readme).read_text(encoding="utf-8"), re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    return [re.sub(r"\s+# .*", "", line) for line in lines if line.startswith(("dstune", "docker logs"))]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.mock", "--ttft-ms", "5", "--itl-ms", "1", "--kind", "vllm"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )  # fmt: skip
    assert process.stdout is not None
    yield f"http://127.0.0.1:{process.stdout.readline().split()[1]}"
    process.kill()
    process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the README names."""
    where = tmp_path / "work"
    where.mkdir()
    shutil.copy(ROOT / "examples/gradio-naive/app.py", where / "app.py")
    shutil.copy(ROOT / "examples/docker-naive/compose.yaml", where / "compose.yaml")
    shutil.copy(next(iter(sorted((ROOT / "examples/logs").glob("*.log")))), where / "server.log")
    return where


@pytest.mark.parametrize("command", commands("README.md"))
def test_readme_command_runs(command: str, run_dstune: Any, folder: Path, server: str) -> None:
    stdin = None
    if command.startswith("docker logs"):
        stdin, command = (folder / "server.log").read_text(encoding="utf-8"), command.partition("| ")[2]
    command = command.replace("http://127.0.0.1:8000", server)
    args = shlex.split(command)[1:]
    if args[0] == "bench":
        args += ["--duration", "1s"]
    if args[0] == "verify":
        # the naive app needs torch and a model: two stand-ins are started instead (tests/real has the real ones)
        (folder / "fixed").mkdir()
        for place, ttft in ((folder / "app.py", 60), (folder / "fixed/app.py", 5)):
            place.write_text(STAND_IN.format(ttft=ttft), encoding="utf-8")
        args += ["--python", sys.executable, "-n", "2", "-c", "1", "--max-tokens", "4", "--repeat", "1"]
    if args[0] == "monitor":
        args += ["--screenshot", "shot.svg"]
    done = run_dstune(*args, cwd=folder, stdin=stdin, PYTHONPATH=str(ROOT))
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout or args[0] in ("monitor", "probe") or "-o" in args
    assert "Traceback" not in done.stderr


def test_both_readmes_have_the_same_commands() -> None:
    assert commands(READMES[0]) == commands(READMES[1])
    blocks = [re.findall(r"```sh\n(.*?)```", (ROOT / r).read_text(encoding="utf-8"), re.S) for r in READMES]
    assert [b for b in blocks[0] if ".venv" in b] == [b for b in blocks[1] if ".venv" in b]


def test_every_command_is_in_the_readme() -> None:
    shown = {shlex.split(c.partition("| ")[2] or c)[1] for c in commands("README.md")}
    assert set(COMMANDS) - shown <= {"undo", "completion"}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(c in text for c in COMMANDS)


def test_ci_runs_the_test_line() -> None:
    line = next(
        x for x in re.findall(r"```sh\n(.*?)\n```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S) if "pytest" in x
    )
    assert "'.[dev]'" in line
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "README.md" in script, "CI takes the line out of the README, so that the two cannot differ"


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).exists(), f"{path.name}: {link}"


def test_nothing_internal_is_published() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    files = listed.stdout.split("\n") if listed.returncode == 0 else []
    pattern = re.compile(r"(^|[^A-Za-z0-9.])/(?:work)/(?:main|shared)|far" + "m-(?:bench|studio)")
    for name in files:
        path = ROOT / name
        if name and path.is_file() and path.suffix in (".py", ".md", ".toml", ".sh", ".yaml", ""):
            found = pattern.search(path.read_text(encoding="utf-8", errors="ignore"))
            assert not found, f"{name}: {found.group() if found else ''}"
