"""What a command loads, and that every command says the same of itself everywhere."""

import subprocess
import sys

import pytest

from dstune import __version__
from dstune.cli import COMMANDS

HEAVY = (
    "textual",
    "rich",
    "torch",
    "transformers",
    "asyncio",
    "httpx",
    "requests",
    "urllib.request",
    "http.client",
    "libcst",
    "pynvml",
    "psutil",
    "jinja2",
    "ruamel",
)


def loaded(*args: str) -> set[str]:
    code = (
        "import sys, io, contextlib\n"
        "from dstune.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        f"    main({list(args)!r})\n"
        "print('\\n'.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_version_loads_nothing() -> None:
    modules = loaded("--version")
    assert not modules & {"click", *HEAVY}


def test_help_loads_click_alone() -> None:
    modules = loaded("--help")
    assert "click" in modules
    assert not modules & set(HEAVY)
    assert not {m for m in modules if m.startswith("dstune.cli.") and m not in ("dstune.cli.options", "dstune.cli.words")}


def test_doctor_on_files_loads_nothing_heavy() -> None:
    modules = loaded("doctor", "--no-host", "--json", "examples/gradio-naive/app.py")
    assert not modules & (set(HEAVY) - {"ruamel"})


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name: str, run_dstune) -> None:  # type: ignore[no-untyped-def]
    english = run_dstune(name, "--help")
    chinese = run_dstune(name, "--help", LANG="zh_CN.UTF-8")
    assert english.returncode == chinese.returncode == 0, english.stderr
    assert "--lang" in english.stdout
    assert any("一" <= c <= "鿿" for c in chinese.stdout)
    assert max(map(len, english.stdout.splitlines())) <= 80


def test_version_and_unknown_command(run_dstune) -> None:  # type: ignore[no-untyped-def]
    assert run_dstune("--version").stdout == f"dstune {__version__}\n"
    wrong = run_dstune("doctr")
    assert wrong.returncode == 2
    assert "dstune doctor" in wrong.stderr
    assert wrong.stdout == ""


def test_clicks_own_words_are_in_the_language_too(run_dstune) -> None:  # type: ignore[no-untyped-def]
    text = run_dstune("bench", "--help", "--lang", "zh").stdout
    for word in ("用法：dstune bench", "选项：", "显示本帮助并退出。", "[默认：8;"):
        assert word in text
    assert not [w for w in ("Usage", "Options", "Show this", "default:") if w in text]
    wrong = run_dstune("doctor", "--fail-on", "x", "--lang", "zh").stderr
    assert wrong.startswith("错误：'--fail-on' 的值无效：'x' 不在可选值")
    assert "没有选项 '--fal-on'" in run_dstune("doctor", "--fal-on", "--lang", "zh").stderr
    assert "No such option" in run_dstune("doctor", "--fal-on").stderr


def test_no_command_in_a_pipe_is_the_help(run_dstune) -> None:  # type: ignore[no-untyped-def]
    done = run_dstune(stdin="")
    assert done.stdout.startswith("Usage: dstune")
    assert done.stderr == ""
    assert run_dstune("--lang", "zh", stdin="").stdout.startswith("用法：dstune")


def test_completion(run_dstune) -> None:  # type: ignore[no-untyped-def]
    script = run_dstune("completion", "bash")
    assert script.returncode == 0
    assert "_DSTUNE_COMPLETE" in script.stdout
    answer = run_dstune(COMP_WORDS="dstune doc", COMP_CWORD="1", _DSTUNE_COMPLETE="bash_complete")
    assert "plain,doctor" in answer.stdout


def test_a_package_that_is_missing_is_no_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """dstune run from its files by a Python without its packages."""
    from dstune.cli import main

    monkeypatch.setitem(sys.modules, "httptools", None)
    monkeypatch.delitem(sys.modules, "dstune.load.client", raising=False)
    for name in [n for n in sys.modules if n.startswith(("dstune.cli.verify", "dstune.cli.bench"))]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["verify", "a.json", "b.json"]) == 3
    said = capsys.readouterr().err
    assert "httptools is not installed" in said
    assert "pip install" in said
    assert "bug" not in said
