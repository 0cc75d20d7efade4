"""`dstune verify` and `fix --verify` with programs that really start: a mock server, one that dies, one that ignores signals."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dstune.cli import verify_sides
from dstune.cli.verify import _observed
from dstune.cli.verify_sides import side_of
from dstune.errors import DstuneError, UnobservableError
from dstune.load import launch
from dstune.load.answers import Reply
from dstune.load.client import now
from dstune.load.launch import Program, Running, interpreter, with_port
from dstune.load.run import Live
from dstune.load.verify import GIVE_UP, _nothing, bare, calls, counted, faulty
from dstune.probes.tree import Watch, alive, members, ports, resident_mib, used_s

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
Run = Callable[..., subprocess.CompletedProcess[str]]
SHORT = ("--python", sys.executable, "-n", "4", "-c", "2", "--max-tokens", "6", "--repeat", "2")
MOCK = """
import os, runpy, sys
open({pid!r}, "a").write(f"{{os.getpid()}}\\n")
sys.argv = ["mock", "--port", os.environ["GRADIO_SERVER_PORT"], "--ttft-ms", "{ttft}", "--itl-ms", "4", "--kind", "vllm"]
runpy.run_module("tests.servers.mock", run_name="__main__")
"""


def program(folder: Path, ttft: int) -> Path:
    folder.mkdir()
    (folder / "app.py").write_text(MOCK.format(pid=str(folder.parent / "pids"), ttft=ttft))
    return folder / "app.py"


@pytest.fixture
def verify(run_dstune: Run, tmp_path: Path) -> Iterator[Run]:
    """Runs the command; afterwards no program that it started is alive."""

    def run(*args: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return run_dstune("verify", *args, PYTHONPATH=str(ROOT), TMPDIR=str(tmp_path), **more)

    yield run
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()] if (tmp_path / "pids").exists() else []
    assert not alive(pids)


def row(data: dict[str, Any], claim: str) -> dict[str, Any]:
    return next(v for v in data["verdicts"] if v["claim"] == claim)


def test_better_then_worse(verify: Run, tmp_path: Path) -> None:
    slow, fast = program(tmp_path / "slow", 200), program(tmp_path / "fast", 20)
    saved = tmp_path / "verify.json"
    done = verify(str(slow), str(fast.parent), *SHORT, "-o", str(saved))
    assert "6 of 6 answers are equal to the letter" in done.stdout
    assert f"before: started `{sys.executable} app.py`" in done.stderr
    data = json.loads(saved.read_text())
    assert 195 < row(data, "first text, alone")["before"] < 2000
    assert row(data, "second's wait")["verdict"] == "better"
    assert row(data, "memory RSS MiB")["before"] > 5
    assert row(data, "first text, alone")["verdict"] == "better"
    assert (data["texts"]["same"], len(data["trials"])) == (6, 4)
    assert done.returncode == data["worse"], "a busy machine may make a figure worse"
    assert (len((tmp_path / "pids").read_text().split()), list(tmp_path.glob("dstune-verify-*"))) == (2, [])

    done = verify(str(fast), str(slow), *SHORT, "--json")
    assert done.returncode == 1
    data = json.loads(done.stdout)
    assert data["schema"] == "dstune.report/1"
    assert data["conclusion"].startswith("WORSE: ")
    assert row(data, "first text, alone")["verdict"] == "worse"


def test_the_same_program_twice_is_noise(verify: Run, tmp_path: Path) -> None:
    app = program(tmp_path / "a", 30)
    done = verify(str(app), str(app), *SHORT, "--json")
    data = json.loads(done.stdout)
    steady = [
        v for v in data["verdicts"] if v["claim"] in ("failed", "unseen", "faulty texts", "memory RSS MiB", "echoed questions")
    ]
    assert [v["verdict"] for v in steady] == ["noise"] * 5, data["verdicts"]


CRASH = "import sys\nprint('loading', file=sys.stderr)\nraise ValueError('If using state, there must be one output')\n"


def test_a_program_that_does_not_start_is_a_result(verify: Run, tmp_path: Path) -> None:
    good = program(tmp_path / "good", 10)
    bad = tmp_path / "bad.py"
    bad.write_text(CRASH)
    done = verify(str(bad), str(good), *SHORT)
    assert done.returncode == 0, done.stderr
    assert "ValueError: If using state" in done.stdout
    assert "BETTER, nothing got worse: serves 0 → 1" in done.stdout
    done = verify(str(good), str(bad), *SHORT)
    assert done.returncode == 1
    assert "WORSE: serves 1 → 0" in done.stdout
    done = verify(str(bad), str(bad), *SHORT)
    assert done.returncode == 3
    assert "ValueError: If using state" in done.stderr
    log = done.stderr.split("dstune doctor --log ")[1].strip()
    assert "raise ValueError" in Path(log).read_text(), "the log that is named is still there"


SILENT = """
import os, sys
import tests.servers.mock as mock
open({pid!r}, "a").write(f"{{os.getpid()}}\\n")
complete = mock.Talk.complete
def silent(self, chat, asked, t0):
    open({asked!r}, "a").write("x")
    complete(self, chat, asked if asked.get("ignore_eos") and {how!r} == "empty" else {{**asked, "model": "mock:{how}"}}, t0)
mock.Talk.complete = silent
sys.argv = ["mock", "--port", os.environ["GRADIO_SERVER_PORT"], "--ttft-ms", "5", "--itl-ms", "1", "--kind", "vllm"]
mock.main()
"""


def silent(folder: Path, how: str) -> Path:
    """A program that serves and answers nothing; `empty` talks only where answers are held to one length."""
    folder.mkdir()
    text = SILENT.format(pid=str(folder.parent / "pids"), asked=str(folder.parent / "asked"), how=how)
    (folder / "app.py").write_text(text)
    return folder / "app.py"


def test_a_program_that_answers_nothing_is_no_gain(verify: Run, tmp_path: Path) -> None:
    """Its questions are asked once, and nothing else is measured; against one that does not start, nothing was proven."""
    good, empty, bad = program(tmp_path / "good", 10), silent(tmp_path / "empty", "empty"), tmp_path / "bad.py"
    bad.write_text(CRASH)
    done = verify(str(bad), str(empty), *SHORT)
    assert done.returncode == 3, done.stdout
    assert "neither side answered a single request" in done.stderr
    assert "before: it ended with code 1; ValueError" in done.stderr
    count = re.search(r"after: (\d+) questions asked: \1 × empty", done.stderr)
    assert count, done.stderr
    assert GIVE_UP <= int(count[1]) <= 6, "given up at the next look, every half second, once so many failed"
    assert 1 + int(count[1]) <= len((tmp_path / "asked").read_text()) <= 1 + 6, "the warm-up and the questions"

    done = verify(str(good), str(empty), *SHORT)
    assert done.returncode == 1
    assert "WORSE: answers questions 1 → 0" in done.stdout
    assert "answers nothing" in done.stdout
    done = verify(str(empty), str(good), *SHORT, "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 0
    assert [(v["claim"], v["verdict"]) for v in data["verdicts"]] == [("answers", "better")]
    assert data["sides"][0]["silent"]


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_program_whose_first_answers_fail_is_not_asked_the_rest(verify: Run, tmp_path: Path, order: str) -> None:
    """The questions that were not asked count as unanswered; to look for their answers ended the command as a bug of its own."""
    good, breaks = program(tmp_path / "good", 10), silent(tmp_path / "breaks", "error-stream")
    done = verify(*map(str, (breaks, good) if order == "before" else (good, breaks)), *SHORT, "--json")
    data = json.loads(done.stdout)
    assert done.returncode == (0 if order == "before" else 1), done.stderr
    assert {v["claim"]: v["verdict"] for v in data["verdicts"]}["failed"] == ("better" if order == "before" else "worse")


def test_a_program_that_hangs_is_not_waited_for_at_every_question(verify: Run, tmp_path: Path) -> None:
    good, hangs = program(tmp_path / "good", 10), silent(tmp_path / "hangs", "hang")
    done = verify(str(good), str(hangs), *SHORT, "--timeout", "1")
    assert done.returncode == 1
    assert "2 questions asked: 2 × timeout" in done.stderr
    assert len((tmp_path / "asked").read_text()) <= 1 + 3


def test_a_log_hears_what_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No terminal: a line now and then, not one each half second."""
    monkeypatch.setattr(verify_sides, "QUIET_S", 0.3)
    tick = verify_sides._tick("before", 1, 3)
    verify_sides.talk("started")
    begin = time.monotonic()
    while time.monotonic() < begin + 1.0:
        tick("2", Live(now() - 7.0, done=1))
        time.sleep(0.02)
    told = capsys.readouterr().err.splitlines()
    assert told[1] == "before: pass 1/3, 2 users: 1 answer, 0 failed, 7 s"
    assert len(told) in (3, 4)


def test_what_never_serves_ends_in_time(verify: Run) -> None:
    begin = time.monotonic()
    done = verify("--before-cmd", "sleep 60", "--after-cmd", "sleep 60", "--start-timeout", "1")
    assert done.returncode == 3
    assert "nothing served within 1 s" in done.stderr
    assert time.monotonic() - begin < 30


def test_a_running_server_and_a_saved_run(verify: Run, run_dstune: Run, tmp_path: Path) -> None:
    slow = program(tmp_path / "slow", 300)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.servers.mock", "--ttft-ms", "5", "--itl-ms", "1", "--kind", "vllm"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server, ExitStack() as stack:  # fmt: skip
        stack.callback(server.kill)  # before the wait of Popen, whatever fails
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().split()[1]}"
        done = verify(url, str(slow), *SHORT, "--json")
        data = json.loads(done.stdout)
        assert row(data, "first text, alone")["verdict"] == "worse"
        assert row(data, "memory RSS MiB")["before"] > 5, "the process of a local port is found"
        saved = tmp_path / "run.json"
        run_dstune("bench", url, "-n", "4", "-c", "2", "--max-tokens", "6", "-o", str(saved))
        done = verify(str(saved), str(slow), *SHORT, "--json")
        data = json.loads(done.stdout)
        assert (done.returncode, row(data, "e2e_ms p95")["verdict"]) == (1, "worse")
        assert data["trials"][0]["workload"]["concurrency"] == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("app.py",), "BEFORE and AFTER"),
        (("nowhere.py", "nowhere.py"), "no such file"),
        (("http://127.0.0.1:9", "http://127.0.0.1:9"), "does not answer"),
        (("--before-cmd", "a 'b", "--after-cmd", "b"), "--before-cmd"),
        (("--before-cmd", "a", "--after-cmd", "b", "--profile", "none"), "no name and no readable file"),
        (("--before-cmd", "no-such-program-anywhere x", "--after-cmd", "also-no-such-program"), "could not be started"),
    ],
)
def test_wrong_use_says_what_to_do(verify: Run, args: tuple[str, ...], words: str) -> None:
    done = verify(*args)
    assert done.returncode in (2, 3), done.stdout
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_a_start_says_so(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("services: {}\n")
    with pytest.raises(DstuneError, match="nothing to start") as refused:
        side_of("after", str(tmp_path), "")
    assert "docker compose up" in refused.value.next
    (tmp_path / "launch.sh").write_text("#!/bin/sh\n")
    made = side_of("after", str(tmp_path), "").program
    assert made is not None
    assert made.argv == ("bash", "launch.sh")


@contextlib.contextmanager
def started_verify(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`dstune verify` in a process of its own, from when its first program runs."""
    app = program(tmp_path / "a", 20)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "dstune", "verify", str(app), str(app), "--python", sys.executable], env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as command:  # fmt: skip
        end = time.monotonic() + 60
        while not (tmp_path / "pids").exists() and time.monotonic() < end:
            time.sleep(0.05)
        yield command


def test_an_ended_dstune_takes_its_program_along(tmp_path: Path) -> None:
    with started_verify(tmp_path) as command:
        time.sleep(1.0)
        command.terminate()
        assert command.wait(30) == 128 + signal.SIGTERM
    assert not alive([int(p) for p in (tmp_path / "pids").read_text().split()])
    assert not list(tmp_path.glob("dstune-verify-*"))


def test_a_killed_dstune_leaves_nothing_running(tmp_path: Path) -> None:
    with started_verify(tmp_path) as command:
        command.kill()
    pids = [int(p) for p in (tmp_path / "pids").read_text().split()]
    end = time.monotonic() + 20
    while alive(pids) and time.monotonic() < end:
        time.sleep(0.1)
    assert pids
    assert not alive(pids)


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
block = bytearray(80 << 20)
time.sleep(60)
"""


def test_the_whole_tree_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what ignores TERM, and what made a session of its own."""
    monkeypatch.setattr(launch, "TERM_S", 1.0)
    running = Running(Program((sys.executable, "-c", STUBBORN), str(tmp_path)), str(tmp_path), "before")
    end = time.monotonic() + 20
    while len(members(running.process.pid)) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)
    tree = members(running.process.pid)
    assert len(tree) == 2
    assert resident_mib(tree) > 80
    running.stop(members, alive)
    assert not alive(tree)


def test_what_other_programs_take_is_seen() -> None:
    """A busy loop that belongs to the tree is not another program's; one that does not is."""
    spin = [sys.executable, "-c", "import time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: pass"]
    with subprocess.Popen(spin, start_new_session=True) as mine, subprocess.Popen(spin, start_new_session=True) as other:
        own = Watch(mine.pid)
        own.begin()
        time.sleep(2.5)
        mine_s, both_s = used_s([mine.pid]), used_s([mine.pid, other.pid])
        foreign = own.others()
        own.end()
        mine.kill()
        other.kill()
    assert foreign is not None
    assert foreign > 0.2, "at least part of the other loop"
    assert both_s > mine_s > 0


def test_ports_of_a_tree(tmp_path: Path) -> None:
    code = "import socket,time; s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(30)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert ports(members(child.pid)) == [port]
        child.kill()


def test_the_interpreter_is_the_programs_own(tmp_path: Path) -> None:
    place = tmp_path / "venv" / "bin"
    place.mkdir(parents=True)
    assert interpreter(str(tmp_path)) != str(place / "python")
    (place / "python").symlink_to(sys.executable)
    assert interpreter(str(tmp_path)) == str(place / "python")
    assert interpreter(str(tmp_path), sys.executable) == sys.executable
    with pytest.raises(DstuneError, match="no interpreter"):
        interpreter(str(tmp_path), str(tmp_path / "no"))


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("vllm serve m", "vllm serve m --port 5"),
        ("vllm serve m --port 8000", "vllm serve m --port 8000"),
        ("vllm serve m --port=8000", "vllm serve m --port=8000"),
        (
            "python -m vllm.entrypoints.openai.api_server --model m",
            "python -m vllm.entrypoints.openai.api_server --model m --port 5",
        ),
        ("/opt/bin/llama-server -m x.gguf", "/opt/bin/llama-server -m x.gguf --port 5"),
        ("python -m llama_cpp.server --model x.gguf", "python -m llama_cpp.server --model x.gguf --port 5"),
        ("bash launch.sh", "bash launch.sh"),
        ("python app.py", "python app.py"),
    ],
)
def test_a_free_port_is_asked_for_where_the_flag_is_known(line: str, after: str) -> None:
    assert with_port(line.split(), 5) == tuple(after.split())


HOOKED = """
import json, sys
from transformers.generation.utils import GenerationMixin
import gradio.blocks
class Ids:
    shape = (1, 7)
made = GenerationMixin().generate(Ids(), max_new_tokens=2048, temperature=0.6, do_sample=True, streamer="s")
whole = GenerationMixin().generate(input_ids=Ids(), max_length=10)
page = gradio.blocks.Blocks().launch(True, server_name="0.0.0.0", server_port=7860, share=True, theme=1)
second = gradio.blocks.Blocks().launch(server_port=7861)
print(json.dumps([made.asked, whole.asked, page, second, sys.modules["sitecustomize"].MARK]))
"""
FAKE = {
    "transformers/__init__.py": "",
    "transformers/generation/__init__.py": "",
    "transformers/generation/utils.py": (
        "class Made:\n    shape = (1, 12)\n"
        "def first(f):\n    def wrapped(*args, **kwargs):\n        args[0]\n        return f(*args, **kwargs)\n    import functools\n    return functools.wraps(f)(wrapped)\n"
        "class GenerationMixin:\n    @first\n    def generate(self, inputs=None, generation_config=None, streamer=None, **kwargs):\n"
        "        made = Made()\n        made.asked = dict(sorted(kwargs.items()) if 'input_ids' not in kwargs else [('max_new_tokens', kwargs.get('max_new_tokens'))])\n        return made\n"
    ),
    "torch.py": "class cuda:\n    is_initialized = staticmethod(lambda: False)\n",
    "gradio/__init__.py": "",
    "gradio/blocks.py": (
        "class Blocks:\n    def launch(self, inline=None, inbrowser=False, share=None, server_name=None, server_port=None, **kwargs):\n"
        "        return [inline, inbrowser, share, server_name, server_port, kwargs]\n"
    ),
    "own/sitecustomize.py": "MARK = 'the sitecustomize of the environment'\n",
}  # fmt: skip


def test_what_is_put_before_a_program(tmp_path: Path) -> None:
    """Greedy, capped, local: whatever the program asked for; counted; and the sitecustomize that was there still runs."""
    for name, text in FAKE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    log = tmp_path / "calls"
    env = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "recipes/scripts/verify"), str(tmp_path / "own"), str(tmp_path)]), "DSTUNE_VERIFY_LOG": str(log),
        "DSTUNE_VERIFY_PORT": "4711", "DSTUNE_VERIFY_TOKENS": "24",
    }  # fmt: skip
    code = HOOKED.replace("import json, sys", "import json, sys, torch")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    made, whole, page, second, mark = json.loads(done.stdout)
    assert made == {"do_sample": False, "max_new_tokens": 24}
    assert whole == {"max_new_tokens": 3}, "what max_length left room for"
    assert page == [True, False, False, "127.0.0.1", 4711, {"theme": 1}]
    assert second[4] == 7861, "a second page keeps its own port"
    assert mark == "the sitecustomize of the environment"
    rows = calls(str(log))
    assert [r["tokens"] for r in rows] == [5, 5]
    without = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**env, "DSTUNE_VERIFY_TOKENS": ""}
    )
    assert without.returncode == 0, without.stderr
    assert json.loads(without.stdout)[0] == {"do_sample": True, "max_new_tokens": 2048, "temperature": 0.6}, "--as-is"


def test_an_echo_is_no_answer() -> None:
    assert bare("user\nWhat is it?\nassistant\nA thing.", "What is it?") == ("A thing.", True)
    assert bare("A thing.", "What is it?") == ("A thing.", False)
    assert bare("What is it?", "What is it?") == ("", True)
    assert faulty("")
    assert faulty("so on " * 40)
    assert not faulty("Light is scattered by air.")


ENGINE = """
import os, runpy, sys
sys.argv = ["mock", "--port", os.environ["GRADIO_SERVER_PORT"], "--ttft-ms", "{ttft}", "--itl-ms", "2", "--kind", "vllm"]
runpy.run_module("tests.servers.mock", run_name="__main__")
"""


@pytest.mark.parametrize(("before_ms", "after_ms", "written"), [(250, 10, True), (10, 250, False)])
def test_fix_writes_only_what_is_not_worse(
    run_dstune: Run, tmp_path: Path, before_ms: int, after_ms: int, written: bool
) -> None:
    """A stand-in for vLLM whose two entry points differ in speed; the script asks a sibling file for the model."""
    for name, ttft in (("vllm/entrypoints/api_server.py", before_ms), ("vllm/entrypoints/openai/api_server.py", after_ms)):
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(ENGINE.format(ttft=ttft))
    place = tmp_path / "bin"
    place.mkdir()
    (place / "python").symlink_to(sys.executable)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.txt").write_text("DeepSeek-R1-Distill-Qwen-1.5B")
    text = '#!/usr/bin/env bash\nMODEL=$(cat "$(dirname "$0")/model.txt")\npython -m vllm.entrypoints.api_server --model "$MODEL" --dtype half --port 18731\n'
    script = folder / "launch.sh"
    script.write_text(text)
    script.chmod(0o755)
    done = run_dstune(
        "fix", "--no-host", "--verify", "--write", "--json", "--verify-options", "-n 4 -c 1 --max-tokens 6 --repeat 2", str(script),
        PYTHONPATH=f"{tmp_path / 'lib'}:{ROOT}:{os.pathsep.join(p for p in sys.path if 'site-packages' in p)}", PATH=f"{place}:{os.environ['PATH']}", TMPDIR=str(tmp_path),
    )  # fmt: skip
    data = json.loads(done.stdout)
    worse = data["verify"]["worse"]
    assert worse or written, data["verify"]["conclusion"]
    assert done.returncode == worse
    assert (script.read_text() != text) is not worse
    if not written:
        assert "Not written, since the fixed program is worse" in data["notes"][-1]
    assert not list(tmp_path.glob("dstune-verify-*"))


def test_a_fix_that_cannot_be_proven_is_shown_and_not_written(run_dstune: Run, tmp_path: Path) -> None:
    """The naive program has no model here: neither side starts."""
    app = tmp_path / "app.py"
    text = (ROOT / "examples/gradio-naive/app.py").read_text()
    app.write_text(text)
    done = run_dstune("fix", "--no-host", "--verify", "--write", str(app), "--python", sys.executable, TMPDIR=str(tmp_path))
    assert done.returncode == 3
    assert "+    messages = [" in done.stdout
    assert "not written" in done.stdout
    assert "neither side answered" in done.stderr
    assert app.read_text() == text


ON_CARD = """
import json, os
from dstune.probes.nvidia_memory import Cards
cards = Cards()
print(json.dumps([cards.of([os.getppid()]), cards.of([2**30])]))
"""


@pytest.mark.parametrize(
    ("snapshot", "found"), [("two-3090-foreign", [2000.0, 0.0]), ("laptop-3060", [0.0, 0.0]), ("h100-lost", None)]
)
def test_memory_on_the_card_is_that_of_the_programs_processes(library: Path, snapshot: str, found: list[float] | None) -> None:
    """The process that NVML names; where it tells of none, how much the card's use grew; a card that is lost stops nothing."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKENVML": str(ROOT / f"tests/fakenvml/{snapshot}.ini")}
    done = subprocess.run([sys.executable, "-c", ON_CARD], capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told) == 2
    assert found is None or told == found


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-in NVML library."""
    folder = tmp_path_factory.mktemp("nvml")
    source = ROOT / "tests" / "fakenvml" / "fakenvml.c"
    flags = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run(["gcc", *flags, "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


def test_tokens_are_counted_when_the_hook_saw_every_answer(tmp_path: Path) -> None:
    """The line of the last answer may come late; with a line missing nothing is claimed; a failed request's tokens are nobody's."""
    log = tmp_path / "calls"
    at = time.perf_counter()
    rows = [json.dumps({"begin": at + n, "end": at + n + 0.5, "tokens": 24, "rows": 1}) + "\n" for n in range(3)]

    def figures(ok: int, failed: int = 0) -> dict[str, Any]:
        return {"requests": {"ok": ok, "failed": failed}, "duration_s": 6.0, "output_tok_s": 0.5, "tokens_counted_by": "events"}

    log.write_text("".join(rows[:2]))
    late = threading.Timer(0.3, lambda: log.write_text("".join(rows)))
    late.start()
    o = figures(3)
    counted(o, str(log), at - 1, at + 5)
    late.join()
    assert (o["output_tokens"], o["output_tok_s"], o["tokens_counted_by"]) == (72, 12.0, "generate")
    o = figures(2, 1)
    counted(o, str(log), at - 1, at + 5)
    assert o["output_tokens"] == 48
    o = figures(5)
    counted(o, str(log), at - 1, at - 0.5)
    assert o["output_tok_s"] is None
    o = figures(0, 3)
    counted(o, str(log), at - 1, at + 5)
    assert o["output_tok_s"] is None, "nobody was answered"
    begun = time.monotonic()
    counted(figures(3), str(tmp_path / "none"), at, at + 5)
    assert time.monotonic() - begun < 1, "nothing is waited for where there is no hook"


def test_one_that_only_shows_the_question_again_is_no_gain_over_one_that_does_not_start() -> None:
    """Answers held to one length have text; those to the natural end have none."""
    failed = verify_sides.Measured(verify_sides.Side("before", "a"), failed=UnobservableError("does not serve", "it ended"))
    echo = verify_sides.Measured(
        verify_sides.Side("after", "b"), outcomes=[{"requests": {"ok": 4, "failed": 0}}], answers=[["", ""]]
    )
    with launch.Workspace() as room:
        with pytest.raises(UnobservableError, match="neither side answered"):
            _observed(failed, echo, room)
        _observed(replace(failed, failed=None), echo, room)
        _observed(failed, replace(echo, answers=[["", "Light."]]), room)
        room.keep = False


def test_silence_is_no_text_at_all() -> None:
    """The question shown again is a failure, and still something to measure."""
    assert _nothing(Reply(0.0, 0.0, 1.0, error="empty", text=" \n"))
    assert not _nothing(Reply(0.0, 0.0, 1.0, error="empty", text="Why is the sky blue?"))
    assert not _nothing(Reply(0.0, 0.0, 1.0, error="server-error"))
