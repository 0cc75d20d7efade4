"""Generated files under the real tools: hadolint, the compose schema, uv's resolver. Run with the extra `ci` (`-m tools`, `-m network`)."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dstune.catalog import load
from dstune.catalog.gpus import find
from dstune.render.stack import choose
from tests.test_render import all_files


@pytest.fixture
def tool(request: pytest.FixtureRequest) -> str:
    """The program of the parameter. Its absence fails where the tier was asked for, and skips elsewhere."""
    name: str = request.param
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        asked = request.config.getoption("markexpr") or ""
        if any(tier in asked and f"not {tier}" not in asked for tier in ("tools", "network")):
            pytest.fail(f"{name} is not installed: pip install -e '.[ci]'")
        pytest.skip(f"{name} is not installed")
    return found


def files(name: str, folder: Path) -> list[str]:
    """Every generated file of this name, each in a folder of its own."""
    out = []
    for title, path, text in all_files():
        if path == name:
            place = folder / title
            place.mkdir()
            (place / path).write_text(text, encoding="utf-8")
            out.append(str(place / path))
    return out


@pytest.mark.tools
@pytest.mark.parametrize("tool", ["hadolint"], indirect=True)
def test_dockerfiles_are_clean(tool: str, tmp_path: Path) -> None:
    made = files("Dockerfile", tmp_path)
    assert len(made) > 20
    done = subprocess.run([tool, "--no-color", *made], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


@pytest.mark.tools
@pytest.mark.parametrize("tool", ["check-jsonschema"], indirect=True)
def test_compose_files_follow_the_schema(tool: str, tmp_path: Path) -> None:
    made = files("compose.yaml", tmp_path)
    assert len(made) > 40
    done = subprocess.run([tool, "--builtin-schema", "vendor.compose-spec", *made], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


STACKS = [
    ("transformers", "4090", ""),
    ("transformers", "T4", "580"),
    ("transformers", "P100", ""),
    ("hf-serve", "4090", ""),
    ("vllm", "4090", "535"),
    ("vllm", "V100", "535"),
]


@pytest.mark.network
@pytest.mark.parametrize("tool", ["uv"], indirect=True)
@pytest.mark.parametrize(("engine", "card", "driver"), STACKS)
def test_requirements_resolve_for_the_image(tool: str, engine: str, card: str, driver: str) -> None:
    stack = choose(engine, find(card), driver)
    assert stack.requirements
    assert not stack.index, "a wheel of another index cannot be resolved from PyPI"
    command = [
        tool,
        "pip",
        "compile",
        "-q",
        "-",
        "--python-version",
        stack.python,
        "--python-platform",
        "x86_64-manylinux_2_28",
    ]
    done = subprocess.run(command, input="\n".join(stack.requirements), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    resolved = dict(line.split("==") for line in done.stdout.splitlines() if "==" in line and not line.lstrip().startswith("#"))
    assert resolved["torch"].startswith(stack.torch)
    major = stack.cuda.split(".")[0]
    libraries = [name for name in resolved if name.startswith("nvidia-") and name.rpartition("-cu")[2] in ("11", "12", "13")]
    assert libraries
    assert all(name.endswith(f"-cu{major}") for name in libraries), libraries
    if "gradio" in resolved:
        assert resolved["starlette"] == next(r for r in stack.requirements if r.startswith("starlette")).partition("==")[2]


@pytest.mark.tools
def test_the_pinned_web_stack_starts() -> None:
    """gradio 4.33.0 resolves with starlette 1.x and cannot answer: only a request shows it."""
    code = (
        "import gradio, urllib.request\n"
        "demo = gradio.ChatInterface(lambda message, history: message)\n"
        "_, url, _ = demo.launch(prevent_thread_lock=True, quiet=True)\n"
        "page = urllib.request.urlopen(url, timeout=10)\n"
        "print(page.status, len(page.read()) > 1000)\n"
    )
    env = {**os.environ, "GRADIO_ANALYTICS_ENABLED": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, env=env)
    assert done.stdout.split() == ["200", "True"], done.stderr[-2000:]


def test_the_web_stack_of_ci_is_the_one_of_the_images() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = dict(line.split("==") for line in project["optional-dependencies"]["ci"] if "==" in line)
    assert "gradio" in extra
    assert extra.items() <= load("images.toml")["images"]["stack"]["app"].items()
