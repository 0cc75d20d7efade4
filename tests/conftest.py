"""Shared by all tests: a home and a language of their own."""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dstune import lang

ROOT = Path(__file__).parents[1]


NEEDS = {"library": ("gcc",), "terminal": ("gcc", "tmux")}
"""Fixtures that build or drive something with a program of the system, and which programs."""
TESTS_NEED = {"test_gpu_timeline_beside_the_load": ("gcc",), "test_tls_and_its_refusal": ("openssl",)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a machine without gcc, tmux or openssl the tests that need them go to the `tools` tier: CI installs all three and fails
    where it cannot. They are counted in the header, never dropped in silence.
    """
    moved: dict[str, int] = {}
    for item in items:
        wanted = {p for name in getattr(item, "fixturenames", ()) for p in NEEDS.get(name, ())}
        wanted |= set(TESTS_NEED.get(getattr(item, "originalname", ""), ()))
        for program in sorted(wanted):
            if shutil.which(program) is None:
                item.add_marker(pytest.mark.tools)
                moved[program] = moved.get(program, 0) + 1
    for program, count in moved.items():
        print(f"{count} tests need {program}, which is not installed here: they are left to .ci/run", file=sys.stderr)


def pytest_collection_finish() -> None:
    """What collection made stays: the collector need not walk through all recipes, cases and tests each time again."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def _english() -> None:
    lang.use("en")


@pytest.fixture(scope="session")
def parsed_recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs that tests start keep the parsed recipes. One folder for all of them, in all workers: the first of a run parses
    them, which costs two seconds of CPU, the others read them as a person's second command does."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "parsed-recipes"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def run_dstune(tmp_path: Path, parsed_recipes: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_dstune("doctor", …)`: a fresh interpreter with an empty HOME, English, no colours."""

    def run(
        *args: str, stdin: str | bytes | None = None, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        base = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "NO_COLOR": "1", "COLUMNS": "80"}
        base |= {"XDG_CACHE_HOME": str(parsed_recipes), **env}
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [sys.executable, "-m", "dstune", *args], input=data, capture_output=True, env=base, cwd=cwd or ROOT, timeout=120
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        )

    return run
