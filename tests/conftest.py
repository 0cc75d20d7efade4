"""Shared by all tests: a home and a language of their own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dstune import lang

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _english() -> None:
    lang.use("en")


@pytest.fixture
def run_dstune(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_dstune("doctor", …)`: a fresh interpreter with an empty HOME, English, no colours."""

    def run(
        *args: str, stdin: str | bytes | None = None, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        base = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "NO_COLOR": "1", "COLUMNS": "80", **env}
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [sys.executable, "-m", "dstune", *args], input=data, capture_output=True, env=base, cwd=cwd or ROOT, timeout=120
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        )

    return run
