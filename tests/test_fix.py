"""`dstune fix` and `undo` from end to end: what is changed, what is left to a person, and that it holds."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import dstune.diagnose
from dstune import lang
from dstune.catalog.rules import rule_of
from dstune.cli import fix as fix_command
from dstune.cli import undo as undo_command
from dstune.cli.fix import uncommitted
from dstune.cli.hands import spelled
from dstune.errors import DstuneError, Exit
from tests.test_app_edit import FOLDER

APP = """import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("m")
model = AutoModelForCausalLM.from_pretrained("m").to("cuda")  # 模型


def predict(message, history):
    input_ids = tokenizer(message, return_tensors="pt").input_ids.to("cuda")
    with torch.no_grad():
        outputs = model.generate(input_ids, max_length=4096, max_new_tokens=2048, use_cache=False)
    response = tokenizer.decode(outputs[0], skip_special_tokens=True)
    return response


demo = gr.Interface(fn=predict, inputs=[gr.Textbox(), gr.State()], outputs=[gr.Textbox()])
demo.launch()
"""


def rule(cause: str, when: str, fix: dict[str, Any], severity: str = "warning") -> Any:
    """A rule over facts of the app reader, with one remedy."""
    texts = {"en": f"title of {cause}", "zh": f"{cause} 的标题"}
    base = {
        "title": texts,
        "kind": "code",
        "safety": "restart",
        "reason": {"en": f"reason of {cause}", "zh": f"{cause} 的理由"},
    }
    return rule_of(
        cause, {"title": texts, "severity": severity, "why": texts, "way": [{"when": when}], "fix": [{**base, **fix}]}
    )


CODE = [
    rule("no-cache", "app.use_cache_false", {"edit": "drop-use-cache-false"}),
    rule("length", "app.max_length_beside_max_new_tokens", {"edit": "drop-max-length"}),
    rule("template", "app.prompt_without_template or app.load_without_dtype", {"edit": "add-chat-template"}),
    rule("whole", "app.handler_returns_whole", {"edit": "stream-handler"}),
    rule("dtype", "app.load_without_dtype", {"edit": "set-dtype", "set": {"transformers.dtype": "'auto'"}}, "info"),
    rule("host-work", "app.gradio_one_at_a_time == 'local'", {"kind": "host", "safety": "display", "run": "sudo reboot"}),
]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    yield
    lang.use("en")


@pytest.fixture
def with_rules(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any]], None]:
    """Judges by these rules only."""

    def use(rules: list[Any]) -> None:
        real = dstune.diagnose.diagnose
        monkeypatch.setattr(dstune.diagnose, "diagnose", lambda evidence: real(evidence, rules))
        monkeypatch.setattr(fix_command, "chosen_rules", lambda causes: [r for r in rules if r.cause in causes] or None)

    return use


def fix(*args: str) -> Result:
    return CliRunner().invoke(fix_command.command, ["--no-host", *args], standalone_mode=False, catch_exceptions=False)


def undo(*args: str) -> Result:
    return CliRunner().invoke(undo_command.command, list(args), standalone_mode=False, catch_exceptions=False)


def test_shows_writes_stays_and_goes_back(tmp_path: Path, with_rules: Callable[[list[Any]], None]) -> None:
    with_rules(CODE)
    path = tmp_path / "app.py"
    before = APP.replace("\n", "\r\n").encode()
    path.write_bytes(before)
    shown = fix("app.py")
    assert shown.return_value == Exit.FINDINGS
    assert path.read_bytes() == before
    assert "-        outputs = model.generate(" in shown.output
    assert "sudo reboot" in shown.output

    written = fix("app.py", "--write")
    assert written.return_value == Exit.OK
    after = path.read_bytes()
    assert after.count(b"\r\n") == after.count(b"\n")
    text = after.decode().replace("\r\n", "\n")
    ast.parse(text)
    for wanted in (
        "TextIteratorStreamer(tokenizer, skip_prompt=True",
        "yield response",
        "apply_chat_template",
        "# 模型",
        'torch_dtype="auto"',
    ):
        assert wanted in text
    for gone in ("max_length", "use_cache", "return response"):
        assert gone not in text

    again = fix("app.py", "--write")
    assert again.return_value == Exit.OK
    assert path.read_bytes() == after
    assert undo().return_value == Exit.OK
    assert path.read_bytes() == before


def test_only_the_named_cause(tmp_path: Path, with_rules: Callable[[list[Any]], None]) -> None:
    with_rules(CODE)
    (tmp_path / "app.py").write_text(APP)
    assert fix("app.py", "--only", "length", "--write").return_value == Exit.OK
    assert (tmp_path / "app.py").read_text() == APP.replace("max_length=4096, ", "")


def test_advice_alone_changes_nothing(tmp_path: Path, with_rules: Callable[[list[Any]], None]) -> None:
    """A file whose only finding is advice is healthy; a file that has to change anyway takes the advice along."""
    with_rules([r for r in CODE if r.cause == "dtype"])
    (tmp_path / "app.py").write_text(APP)
    assert fix("app.py").return_value == Exit.OK
    assert 'torch_dtype="auto"' in fix("app.py", "--advice").output


def test_every_part_is_explained_in_the_users_language(tmp_path: Path, with_rules: Callable[[list[Any]], None]) -> None:
    with_rules([r for r in CODE if r.cause in ("no-cache", "length", "dtype")])
    (tmp_path / "app.py").write_text(APP + "\n" * 12 + 'other = AutoModelForCausalLM.from_pretrained("n")\n')
    said, first, second = (shown := fix("app.py", "--why").output).split("@@ -")
    causes = {part: part.split("\n")[0].split("@@ ")[1] for part in (first, second)}
    assert causes[second] == "dtype"
    assert "length" in causes[first]
    assert "no-cache" in causes[first]
    assert ": length: " in said
    assert "reason of dtype" in " ".join(said.split()).replace(" # ", " ")
    patch = shown[: shown.index("fixes for app.py")].rsplit("\n", 1)[0] + "\n"
    done = subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    applied = (tmp_path / "app.py").read_text()
    again = APP + "\n" * 12 + 'other = AutoModelForCausalLM.from_pretrained("n")\n'
    (tmp_path / "app.py").write_text(again)
    fix("app.py", "--write")
    assert (tmp_path / "app.py").read_text() == applied != again
    (tmp_path / "app.py").write_text(again)
    lang.use("zh")
    assert "length 的理由" in fix("app.py", "--why").output


def test_json_has_artifacts_steps_and_what_is_left(tmp_path: Path, with_rules: Callable[[list[Any]], None]) -> None:
    with_rules(CODE)
    (tmp_path / "app.py").write_text(APP)
    data = json.loads(fix("app.py", "--json").output)
    assert data["schema"] == "dstune.report/1"
    [artifact] = data["artifacts"]
    assert artifact["path"] == "app.py"
    assert artifact["diff"].startswith("--- app.py\n+++ app.py\n@@ ")
    ast.parse(artifact["text"])
    assert {s["cause"] for s in data["steps"]} == {"no-cache", "length", "template", "whole", "dtype"}
    assert [h["run"] for h in data["by_hand"]] == ["sudo reboot"]
    assert data["backup"] is None
    assert json.loads(fix("app.py", "--json", "--write").output)["backup"]


def test_what_cannot_be_done_safely_is_left_with_its_place(tmp_path: Path, with_rules: Callable[[list[Any]], None]) -> None:
    with_rules([r for r in CODE if r.cause == "whole"])
    (tmp_path / "app.py").write_text(APP.replace("return response", "return response + str(len(outputs[0]))"))
    shown = fix("app.py")
    assert shown.return_value == Exit.OK
    assert "By hand" in shown.output
    assert "app.py:" in shown.output
    assert "not change safely" in shown.output


def test_what_is_left_names_the_file_and_what_to_write_there(tmp_path: Path) -> None:
    """Not the log's line, and no remedy of another fault: a card that is too old for AWQ is not helped by a 16-bit cache."""
    (tmp_path / "launch.sh").write_text("vllm serve google/gemma-3-4b-it --dtype half\n")
    (tmp_path / "server.log").write_text("The model type gemma3 does not support float16. Reason: Numerical instability.\n")
    [left] = json.loads(fix("launch.sh", "--log", "server.log", "--json").output)["by_hand"]
    assert (left["place"], left["text"]) == ("launch.sh:1", "--dtype bfloat16")
    assert "not known" in left["reason"]
    (tmp_path / "awq.sh").write_text("vllm serve org/model-AWQ --quantization awq\n")
    (tmp_path / "v100.json").write_text('{"gpu.name": "Tesla V100", "gpu.compute_capability": "7.0"}')
    [left] = json.loads(fix("awq.sh", "--facts", "v100.json", "--json").output)["by_hand"]
    assert (left["place"], left["title"], left["text"]) == ("awq.sh:1", "Take a format that the card has", "")
    assert left["reason"] == "it takes another checkpoint"


@pytest.mark.parametrize(
    ("given", "program", "text"),
    [
        ({"gradio.queue_max_size": "20", "gradio.default_concurrency_limit": "1"}, True, "queue(…, max_size=20, default_concurrency_limit=1)"),
        ({"vllm.enforce_eager": "True", "vllm.max_model_len": "4096"}, False, "--enforce-eager, --max-model-len 4096"),
        ({"transformers.attn_implementation": "'sdpa'"}, True, "from_pretrained(…, attn_implementation='sdpa')"),
        ({"vllm.quantization": "None"}, False, "without --quantization"),
    ],
)  # fmt: skip
def test_a_setting_is_spelled_as_it_is_typed(given: dict[str, Any], program: bool, text: str) -> None:
    assert spelled(given, program) == text


def test_nothing_to_fix(tmp_path: Path, with_rules: Callable[[list[Any]], None]) -> None:
    with_rules(CODE)
    (tmp_path / "app.py").write_text("print('hello')\n")
    shown = fix("app.py", "--write")
    assert (shown.return_value, shown.output) == (Exit.OK, "Nothing to fix in these files.\n")
    assert not os.path.exists(tmp_path / "state" / "dstune" / "backups")


LOG = """INFO 11-05 10:00:00 api_server.py:712] vLLM API server version 0.6.6
ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (65500). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.
"""


def test_a_log_tells_and_the_launch_script_is_changed_once(tmp_path: Path) -> None:
    """The old log asks for the same change again; the script was changed for it already."""
    launch = "#!/bin/sh\n# start\nvllm serve m \\\n  --max-model-len 131072 \\\n  --port 8000\n"
    (tmp_path / "launch.sh").write_text(launch)
    (tmp_path / "server.log").write_text(LOG)
    assert fix("launch.sh", "server.log", "--write", "--only", "vllm-max-len-exceeds-kv").return_value == Exit.OK
    after = (tmp_path / "launch.sh").read_text()
    number = int(after.split("--max-model-len ")[1].split()[0])
    assert 32768 < number <= 65500
    assert after == launch.replace("131072", str(number))
    again = fix("launch.sh", "server.log", "--write", "--only", "vllm-max-len-exceeds-kv")
    assert (tmp_path / "launch.sh").read_text() == after, again.output
    undo()
    assert (tmp_path / "launch.sh").read_text() == launch


def test_an_unknown_cause_is_told(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with pytest.raises(DstuneError, match="no cause is called"):
        fix("app.py", "--only", "kv-cache-disabld")


def test_logs_alone_cannot_be_fixed(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(LOG)
    with pytest.raises(DstuneError, match="none of the files"):
        fix("server.log")


def test_ask_needs_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with pytest.raises(DstuneError, match="terminal"):
        fix("app.py", "--ask")


def test_ask_takes_what_is_agreed_to(
    tmp_path: Path, with_rules: Callable[[list[Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rules([r for r in CODE if r.cause in ("no-cache", "length")])
    (tmp_path / "app.py").write_text(APP)
    answers = iter(["n", "y"])
    monkeypatch.setattr("click.prompt", lambda *a, **k: next(answers))
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(isatty=lambda: True))
    rest: list[bool] = []
    agree = fix_command._asking()
    from dstune.cli.fixes import Step
    from dstune.model import Finding, Fix

    finding = Finding("c", "", "warning", "high", "", "", ())
    for _ in range(2):
        rest.append(agree(Step(finding, Fix({"en": "t"}, "code", "restart"), "app.py", "a", "b")))
    assert rest == [False, True]


def test_undo_lists_and_refuses(tmp_path: Path, with_rules: Callable[[list[Any]], None]) -> None:
    with_rules(CODE)
    assert undo("--list").output == "There is nothing to undo.\n"
    (tmp_path / "app.py").write_text(APP)
    fix("app.py", "--write")
    listed = undo("--list").output
    assert "app.py" in listed
    assert "no-cache" in listed
    number = json.loads(undo("--list", "--json").output)["backups"][0]["id"]
    (tmp_path / "app.py").write_text("mine\n")
    with pytest.raises(DstuneError, match="changed after the fix"):
        undo()
    assert (tmp_path / "app.py").read_text() == "mine\n"
    undo(number, "--force")
    assert (tmp_path / "app.py").read_text() == APP


def test_git_says_what_is_uncommitted(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("x")
    assert not uncommitted(str(path))
    run = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@e.e"]
    for command in (["init", "-q"], ["add", "f"], ["commit", "-qm", "m"]):
        subprocess.run([*run, *command], check=True, capture_output=True)
    assert not uncommitted(str(path))
    path.write_text("y")
    assert uncommitted(str(path))


# with the real recipes

HEALTHY = sorted((Path(__file__).parent / "healthy").glob("*.txt"))
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("path", HEALTHY, ids=lambda p: p.stem)
def test_healthy_files_come_back_untouched(tmp_path: Path, path: Path) -> None:
    text = path.read_bytes()
    (tmp_path / path.stem).write_bytes(text)
    shown = fix(path.stem, "--write")
    assert shown.return_value == Exit.OK, shown.output
    assert (tmp_path / path.stem).read_bytes() == text, shown.output


@pytest.mark.parametrize("name", ["gradio-naive", "gradio-naive-blocks", "gradio-naive-interface"])
def test_the_naive_apps_hold_the_intended_settings(tmp_path: Path, name: str) -> None:
    before = (EXAMPLES / name / "app.py").read_text(encoding="utf-8")
    (tmp_path / "app.py").write_text(before, encoding="utf-8")
    fix("app.py", "--write")
    after = (tmp_path / "app.py").read_text(encoding="utf-8")
    tree = ast.parse(after)
    calls = {
        ast.unparse(c.func).rpartition(".")[2]: {k.arg: ast.unparse(k.value) for k in c.keywords}
        for c in ast.walk(tree)
        if isinstance(c, ast.Call)
    }
    load = next(
        c for c in ast.walk(tree) if isinstance(c, ast.Call) and ast.unparse(c.func) == "AutoModelForCausalLM.from_pretrained"
    )
    assert {"torch_dtype": "'auto'"}.items() <= {k.arg: ast.unparse(k.value) for k in load.keywords}.items()
    assert calls["apply_chat_template"]["add_generation_prompt"] == "True"
    assert calls["TextIteratorStreamer"].items() >= {"skip_prompt": "True", "skip_special_tokens": "True"}.items()
    assert float(calls["TextIteratorStreamer"]["timeout"]) > 0
    assert "max_new_tokens" in calls["generate"]
    assert "max_length" not in calls["generate"]
    assert {"max_size", "default_concurrency_limit"} <= calls["queue"].keys()
    handlers = [
        f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and any(isinstance(n, ast.Yield) for n in ast.walk(f))
    ]
    assert len(handlers) == 1
    assert any(isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add) for n in ast.walk(handlers[0]))
    again = fix("app.py", "--write")
    assert (tmp_path / "app.py").read_text(encoding="utf-8") == after, again.output
    undo()
    assert (tmp_path / "app.py").read_text(encoding="utf-8") == before


def test_the_client_and_the_launch_script_are_mended(tmp_path: Path) -> None:
    for name in ("vllm-client/client.py", "vllm-launch/launch.sh"):
        (tmp_path / Path(name).name).write_bytes((EXAMPLES / name).read_bytes())
    fix("client.py", "launch.sh", "--write")
    client, launch = (tmp_path / "client.py").read_text(encoding="utf-8"), (tmp_path / "launch.sh").read_text()
    ast.parse(client)
    assert ':8000/v1"' in client
    assert 'delta.content or ""' in client
    assert "--quantization awq" not in launch
    assert "--enable-prefix-caching" in launch
    before = client, launch
    again = fix("client.py", "launch.sh", "--write")
    assert ((tmp_path / "client.py").read_text(encoding="utf-8"), (tmp_path / "launch.sh").read_text()) == before, again.output


# what the rewritten handler does when it runs


class FakeStreamer:
    """TextIteratorStreamer as far as a handler sees it."""

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, timeout: float | None = None, **options: Any) -> None:
        import queue

        assert skip_prompt
        assert options["skip_special_tokens"] is True
        self.queue: Any = queue.Queue()
        self.timeout = timeout

    def put(self, text: str) -> None:
        self.queue.put(text)

    def end(self) -> None:
        self.queue.put("")
        self.queue.put(None)

    def __iter__(self) -> Iterator[str]:
        while (piece := self.queue.get(timeout=self.timeout)) is not None:
            yield piece


def handler_of(code: str, generate: Callable[..., None], name: str) -> Callable[..., Iterator[Any]]:
    """The handler of a rewritten program, run with stand-ins for its libraries."""

    class Any_:
        def __getattr__(self, name: str) -> Any:
            return Any_()

        def __call__(self, *a: Any, **k: Any) -> Any:
            return Any_()

        __enter__ = __call__
        __exit__ = __call__

        def __getitem__(self, key: Any) -> Any:
            return Any_()

        def keys(self) -> list[str]:
            return []

    class Model(Any_):
        def generate(self, *a: Any, streamer: Any, **k: Any) -> None:
            generate(streamer)

        def to(self, *a: Any) -> Any:
            return self

    class Auto:
        @staticmethod
        def from_pretrained(*a: Any, **k: Any) -> Any:
            return Model()

    modules = {
        "transformers": types.SimpleNamespace(AutoModelForCausalLM=Auto, AutoTokenizer=Auto, TextIteratorStreamer=FakeStreamer),
        "gradio": Any_(), "torch": Any_(),
    }  # fmt: skip
    kept = {n: sys.modules.get(n) for n in modules}
    sys.modules.update(modules)  # type: ignore[arg-type]
    space: dict[str, Any] = {"__name__": "app"}
    try:
        exec(compile(code, "app.py", "exec"), space)
    finally:
        for n, module in kept.items():
            if module is None:
                del sys.modules[n]
            else:
                sys.modules[n] = module
    found: Callable[..., Iterator[Any]] = space[name]
    return found


def golden(title: str) -> str:
    """The text after of a case of stream-handler."""
    text = (FOLDER / "stream-handler.txt").read_text(encoding="utf-8")
    block = next(b for b in text.split("\n== ") if b.removeprefix("== ").startswith(title))
    return block.split("-- becomes\n")[1] + "\n"


def say_hello(streamer: Any) -> None:
    for piece in ("Hel", "lo ", "there"):
        streamer.put(piece)
    streamer.end()


def fail(streamer: Any) -> None:
    streamer.put("Hel")
    raise RuntimeError("CUDA out of memory")


def test_the_handler_yields_the_text_so_far() -> None:
    handler = handler_of(golden("async, answer"), say_hello, "respond")
    got = list(handler("hi", []))
    assert [t for i, t in enumerate(got) if i == 0 or t != got[i - 1]] == ["Hel", "Hello ", "Hello there"]


def test_the_handler_relays_the_error_of_its_worker() -> None:
    handler = handler_of(golden("async, answer"), fail, "respond")
    assert list(handler("hi", []))[-1] == "CUDA out of memory"
    handler = handler_of(golden("blocks, pairs"), fail, "chat_interface")
    with pytest.raises(RuntimeError, match="out of memory"):
        list(handler("hi", []))


def test_the_handler_leaves_the_history_whole() -> None:
    handler = handler_of(golden("blocks, pairs"), say_hello, "chat_interface")
    history = [("a", "b")]
    assert list(handler("hi", history))[-1] == [("a", "b"), ("hi", "Hello there")]
    assert history == [("a", "b")]
    assert list(handler("", history)) == [history]


def test_a_message_history_grows_by_both_sides() -> None:
    handler = handler_of(golden("two messages"), say_hello, "respond")
    box, history = list(handler("hi", []))[-1]
    assert box == ""
    assert [m["role"] for m in history] == ["user", "assistant"]
    assert history[1]["content"].startswith("Hello there (")


def test_why_names_the_lines_of_each_change(tmp_path: Path) -> None:
    """The naive example changes nearly everywhere: one hunk, yet each reason has its own lines (of the file as it is)."""
    source = (Path(__file__).parents[1] / "examples/gradio-naive/app.py").read_text(encoding="utf-8")
    (tmp_path / "app.py").write_text(source, encoding="utf-8")
    shown = fix("app.py", "--why").output
    lines = source.split("\n")
    for cause, numbers, holds in (
        ("gradio-lone-state", "lines 13, 29", "gr.State()"),
        ("chat-template-missing", "line 14", "input_ids = tokenizer(message"),
        ("prompt-echoed", "line 23", "tokenizer.decode(outputs[0]"),
        ("trust-remote-code-needless", "lines 9-10", "trust_remote_code=True"),
        ("gradio-queue-unbounded", "line 35", "demo.launch("),
        ("dtype-not-stated", "line 10", "AutoModelForCausalLM.from_pretrained"),
    ):
        assert f"# {numbers}: {cause}: " in shown
        assert holds in lines[int(re.findall(r"\d+", numbers)[-1]) - 1]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.ipynb", '{"cells": [', "a.ipynb is no whole notebook"),
        ("a.ipynb", '{"cells": {"a": 1}, "nbformat": 4}', "a.ipynb is no whole notebook"),
        ("a.py", "def (:\n", "a.py:1-1 is no Python that can be parsed"),
    ],
)
def test_a_file_that_cannot_be_read_is_not_called_in_order(
    tmp_path: Path, run_dstune, name: str, text: str, reason: str
) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / name).write_text(text)
    for command in ("doctor", "fix"):
        done = run_dstune(command, "--no-host", str(tmp_path / name))
        assert done.returncode == 3, done.stdout
        assert f"Not read: {tmp_path}/{reason}" in " ".join(done.stdout.split())
        assert "Nothing to fix in these files" not in done.stdout
