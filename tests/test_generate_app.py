"""`dstune generate app`: its files, its configuration, and its engine over a device that is only counted on (torch is not needed here)."""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dstune import lang
from dstune.catalog.gpus import find
from dstune.catalog.models import get
from dstune.cli import main
from dstune.errors import DstuneError
from dstune.render.size import PREFILL, SCRATCH, size

ROOT = Path(__file__).parents[1]
Run = Callable[..., subprocess.CompletedProcess[str]]
R1 = get("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
MODULES = ("answer", "engine", "fields", "kinds", "machine", "prefixes", "prompt", "settings", "stops", "trace")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated folder."""
    out = tmp_path_factory.mktemp("app") / "my-chat"
    command = [sys.executable, "-m", "dstune", "generate", "app", "--gpu", "4090", "-o", str(out), "--lang", "en"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return out


@pytest.fixture(autouse=True)
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signals that an engine sends to its process when it cannot go on."""
    numbers: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: numbers.append(number))
    return numbers


@pytest.fixture(scope="module")
def chat(folder: Path) -> Iterator[SimpleNamespace]:
    """The modules of the generated program that need no torch."""
    sys.path.insert(0, str(folder))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(f"chat.{name}") for name in MODULES})
    finally:
        sys.path.remove(str(folder))
        for name in [n for n in sys.modules if n == "chat" or n.startswith("chat.")]:
            del sys.modules[name]


# Files


def test_the_folder_is_whole_and_clean(folder: Path) -> None:
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert names >= {
        "app.py",
        "config.yaml",
        "requirements.txt",
        "Dockerfile",
        "compose.yaml",
        "README.md",
        ".dockerignore",
        "chat/engine.py",
    }
    for path in [folder / "app.py", *folder.glob("chat/*.py")]:
        compile(path.read_text(), str(path), "exec")
    rules = "E,F,W,I,UP,B,SIM,C4,RUF,PT,PIE"
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--line-length",
        "128",
        "--select",
        rules,
        "--ignore",
        "E501,RUF001",
        ".",
    ]
    done = subprocess.run(ruff, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    text = "".join(
        p.read_text()
        for p in folder.rglob("*")
        if p.is_file() and p.suffix != ".pyc" and "cache" not in str(p.relative_to(folder))
    )
    assert "{{ " not in text
    assert "{%" not in text


def test_the_images_packages_are_those_that_are_pinned(folder: Path) -> None:
    docker, pins = (folder / "Dockerfile").read_text(), (folder / "requirements.txt").read_text()
    assert "pip install --no-cache-dir -r /tmp/requirements.txt" in docker
    assert "COPY --chown=app:app chat ./chat" in docker
    assert "/health" in docker
    for name in ("torch", "transformers", "gradio", "fastapi", "uvicorn", "accelerate"):
        assert f"\n{name}==" in pins
    compose = yaml.safe_load((folder / "compose.yaml").read_text())
    (service,) = compose["services"].values()
    assert service["build"] == "."
    assert any("config.yaml" in v for v in service["volumes"])
    assert "/home/app/app /models" in docker, "the program's folder is its user's: a log file beside the program can be written"


def test_docker_waits_for_answers_to_finish(folder: Path) -> None:
    """Docker kills after 10 s where nothing is said, which would cut the answers that app.py lets finish."""
    tree = ast.parse((folder / "app.py").read_text())
    seconds = {n.targets[0].id: n.value.value for n in tree.body if isinstance(n, ast.Assign)}  # type: ignore[attr-defined]
    (service,) = yaml.safe_load((folder / "compose.yaml").read_text())["services"].values()
    assert int(service["stop_grace_period"].rstrip("s")) > seconds["GRACE_S"] + seconds["LINGER_S"]


def test_constants_of_the_sizing_are_those_of_the_program(folder: Path) -> None:
    assert f"PREFILL = {PREFILL}\n" in (folder / "chat/engine.py").read_text()
    assert f"PADDING = {SCRATCH}\n" in (folder / "chat/attention.py").read_text()


def test_every_setting_is_read_somewhere(folder: Path, chat: SimpleNamespace) -> None:
    """No dead option: each field of the configuration is an attribute that some other module reads."""
    from dataclasses import fields, is_dataclass

    read = {
        node.attr for path in [folder / "app.py", *folder.glob("chat/*.py")] for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
    }  # fmt: skip
    s = chat.settings
    for cls in (s.Model, s.Server, s.Cache, s.Sampling, s.Generation, s.Prompt, s.Page, s.Log):
        assert is_dataclass(cls)
        for field in fields(cls):
            assert field.name in read, f"{cls.__name__}.{field.name} is never used"


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("gpu", ["4090", "t4", "rtx 3060 laptop", "gtx 1650", "h100"])
def test_configurations_are_valid_for_every_card(tmp_path: Path, chat: SimpleNamespace, gpu: str, language: str) -> None:
    for mode in ("latency", "throughput"):
        out = tmp_path / mode
        assert main(["generate", "app", "--gpu", gpu, "--mode", mode, "-o", str(out), "--lang", language]) == 0
        settings = chat.settings.load(out / "config.yaml")
        assert (settings.slots == 1) == (mode == "latency")
        assert settings.page.language == language
        assert settings.generation.of("math").directive == R1.prompting["math_directive"]
        assert settings.model.dtype == ("bfloat16" if find(gpu).cc >= (8, 0) else "float16")


def test_check_needs_neither_torch_nor_gradio(folder: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("torch", "transformers", "gradio", "fastapi", "uvicorn"):
        (blocked / f"{name}.py").write_text(f"raise ImportError('{name} must not be imported')\n")
    env = {**os.environ, "PYTHONPATH": str(blocked)}
    command = [sys.executable, "app.py", "--check"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "config.yaml is valid\n"), done.stderr
    bare = [*command[:1], "-S", "app.py", "--check"]  # without what is installed; PyYAML alone is needed to read
    shutil.copytree(Path(yaml.__file__).parent, tmp_path / "bare" / "yaml")
    done = subprocess.run(bare, cwd=folder, env={**env, "PYTHONPATH": str(tmp_path / "bare")}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (
        "lacks torch, transformers, gradio, fastapi, uvicorn; before the start: pip install -r requirements.txt" in done.stdout
    )
    config = tmp_path / "bad.yaml"
    config.write_text("model: {path: x, layers: 3}\nserver: {port: 99999, concurency: 2}\ncache: {context: 9999999}\n")
    done = subprocess.run([*command, "--config", str(config)], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    for word in (
        "model.layers: no such key",
        "server.port: must be from 1 to 65535, not 99999",
        "server.concurency: no such key",
        "cache.context: must be from 64 to 1048576, not 9999999",
    ):
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def model_folder(folder: Path, **files: str) -> str:
    """A folder with these files (`__` for a dot) and a configuration."""
    folder.mkdir(exist_ok=True)
    for name, text in ({"config__json": "{}"} | files).items():
        (folder / name.replace("__", ".")).write_text(text)
    return str(folder)


INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"model__safetensors": "x"}, ""),
        ({"pytorch_model__bin": "x"}, ""),
        ({"model__safetensors": "x", "pytorch_model__bin__index__json": INDEX}, ""),  # an index of files that were left out
        ({"model__safetensors__index__json": INDEX, "model-1__safetensors": "x", "model-2__safetensors": "x"}, ""),
        ({"model__safetensors__index__json": INDEX, "model-1__safetensors": "x"}, "lacks model-2.safetensors; the download is incomplete"),
        ({}, "lacks its weights; the download is incomplete"),
        ({"config__json": "{"}, "download the model again"),
        ({"model__safetensors": "version https://git-lfs.github.com/spec/v1"}, "is a pointer of Git LFS, not the weights; type: git -C"),
    ],
)  # fmt: skip
def test_a_models_folder_is_looked_at(chat: SimpleNamespace, tmp_path: Path, files: dict[str, str], said: str) -> None:
    settings = chat.settings.read({"model": {"path": model_folder(tmp_path / "m", **files)}})
    found = chat.machine.faults(settings)
    assert [said in fault for fault in found] == ([True] if said else []), found


def test_what_else_the_machine_lacks(chat: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faults(**sections: Any) -> list[str]:
        return list(chat.machine.faults(chat.settings.read(sections)))

    found = faults(model={"path": "/nowhere/model"})
    assert found == [
        "model.path: there is no folder /nowhere/model; write the folder that holds the model's config.json, or its name on the Hub"
    ]
    assert faults(model={"path": "owner/name"}) == []  # the Hub's, which only loading can ask
    (tmp_path / "up").mkdir()
    inner = model_folder(tmp_path / "up" / "m", model__safetensors="x")
    [found_one] = faults(model={"path": str(tmp_path / "up")})
    assert found_one.endswith(f"so it is no model; write {inner}")
    (tmp_path / "file").touch()
    assert "is no folder" in faults(model={"path": inner}, log={"file": str(tmp_path / "file/x.jsonl")})[0]
    assert "cannot be written" in faults(model={"path": inner}, log={"file": str(tmp_path)})[0]
    monkeypatch.setattr(chat.machine.importlib.util, "find_spec", lambda name: None)
    [found_one] = faults(model={"path": inner, "quantization": "nf4"})
    assert found_one.endswith("nf4 needs the package bitsandbytes, which is not installed; type: pip install bitsandbytes")
    cuda = SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
    monkeypatch.setattr(chat.machine.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, __version__="2.10.0+cpu"))  # type: ignore[arg-type]
    [found_one] = faults(model={"path": inner, "quantization": "int8"})
    assert "int8 needs an NVIDIA card, and torch 2.10.0+cpu finds none" in found_one
    [found_one] = faults(model={"path": inner, "layer_map": {"cuda:0": ["0-3"], "cpu": [4]}})
    assert found_one == "model.layer_map: cuda:0 is not here; torch 2.10.0+cpu finds 0 cards"


def test_a_port_in_use_is_told_before_loading(chat: SimpleNamespace) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        assert f"server.port: {port} is in use on 127.0.0.1" in chat.machine.taken("127.0.0.1", port)[0]
    assert chat.machine.taken("127.0.0.1", port) == []
    assert "server.host: cannot listen on 192.0.2.1:" in chat.machine.taken("192.0.2.1", port)[0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": None, "tool_choice": "auto", "functions": [], "response_format": {"type": "text"}, "logprobs": False, "top_logprobs": 0}, ""),
        ({"n": 1, "frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {}, "user": "u", "store": False, "metadata": {"a": "b"}}, ""),
        ({"parallel_tool_calls": True, "service_tier": "auto", "reasoning_effort": "medium", "modalities": ["text"], "unknown": None}, ""),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools: this server calls no tools"),
        ({"functions": [{"name": "f"}]}, "functions: this server calls no tools"),
        ({"tool_choice": "required"}, "tool_choice: "),
        ({"response_format": {"type": "json_object"}}, "response_format: the form of an answer cannot be forced here"),
        ({"logprobs": True}, "logprobs: "),
        ({"n": 2}, "n: one request gives one answer"),
        ({"n": True}, "n: "),
        ({"frequency_penalty": 0.5}, "frequency_penalty: "),
        ({"max_token": 5}, "max_token: no such field here"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused(chat: SimpleNamespace, fields: dict[str, Any], said: str) -> None:
    found = chat.fields.refused(fields)
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_options_that_contradict(run_dstune: Run, tmp_path: Path) -> None:
    for args in (
        ("app", "--mode", "latency", "--concurrency", "4"),
        ("app", "compose"),
        ("app", "--engine", "vllm"),
        ("compose", "--mode", "latency"),
    ):
        done = run_dstune("generate", *args, "--gpu", "4090", "-o", str(tmp_path / "x"))
        assert done.returncode not in (0, 1), args
        assert not (tmp_path / "x").exists()


# Size


def test_sizes_fit_and_grow_with_the_card() -> None:
    small, large = size(find("rtx 3060 laptop"), R1, "throughput"), size(find("4090"), R1, "throughput")
    assert small.quantization == large.quantization == "none"
    assert small.slots * small.context < large.slots * large.context
    for gpu, made in (("rtx 3060 laptop", small), ("4090", large)):
        assert made.total_mib + 256 <= find(gpu).memory_gib * 1024
        kv = next(line.mib for line in made.lines if line.part == "KV cache")
        assert kv == pytest.approx(made.slots * (made.context + 8) * 28672 / 2**20, rel=0.001)


def test_sizes_agree_with_what_an_h200_took() -> None:
    """Peak memory of the process within 5 % of the size."""
    kept = json.loads((ROOT / "recipes/measurements/h200-generated-app.json").read_text())
    rows, again = kept["phases"], kept["again"]["phases"]
    for mode, slots, context, form, run in (
        ("throughput", 8, 2048, "none", rows["users8"]["full"]),
        ("throughput", 8, 2048, "nf4", rows["nf4"]["full"]),
        ("throughput", 32, 2048, "none", rows["users32"]["mixed"]),
        ("latency", 1, 4096, "none", rows["latency"]["single"][-1]),
        ("throughput", 8, 2048, "none", rows["soak"]["soak_with_one_oversized"]),
        ("throughput", 8, 2048, "none", again["users8"]["full"]),
        ("throughput", 32, 2048, "none", again["users32"]["mixed"]),
        ("latency", 1, 4096, "none", again["latency"]["single"][-1]),
    ):
        made = size(find("h200"), R1, mode, slots, context, quantization=form)
        assert made.total_mib * 2**20 / 1e9 == pytest.approx(run["process_peak_gb"], rel=0.05)


def test_what_is_asked_for_is_kept_or_refused() -> None:
    made = size(find("4090"), R1, "throughput", slots=5, context=3000, quantization="nf4")
    assert (made.slots, made.context, made.quantization) == (5, 3000, "nf4")
    with pytest.raises(DstuneError):
        size(find("gtx 1650"), R1, "throughput", slots=256, context=32768, quantization="nf4")


def test_a_model_too_large_gets_a_layer_map(run_dstune: Run, tmp_path: Path, chat: SimpleNamespace) -> None:
    model = "DeepSeek-R1-Distill-Qwen-14B"
    done = run_dstune("generate", "app", "--gpu", "rtx 3060 laptop", "--model", model, "-o", str(tmp_path / "x"))
    assert done.returncode == 0, done.stderr
    settings = chat.settings.load(tmp_path / "x/config.yaml")
    placed = chat.settings.layers(settings.model.layer_map, get(model).layers)
    assert placed[0] == "cuda:0"
    assert placed[get(model).layers - 1] == "cpu"
    assert "ten times slower" in (tmp_path / "x/README.md").read_text()


def test_layers_go_to_the_cpu_last() -> None:
    seven = get("DeepSeek-R1-Distill-Qwen-14B")
    made = size(find("rtx 3060 laptop"), seven, "latency")
    assert made.layer_map is not None
    assert list(made.layer_map) == ["cuda:0", "cpu"]
    assert made.quantization == "none"


# Configuration

ARTICLE = """
model:
  path: /models/DeepSeek-R1-Distill-Qwen-1.5B
  layer_map:
    cuda:0: [0, 1, 2, "3-12"]
    cpu: ["13-27"]
server: {port: 7860, concurrency: 5, timeout: 120}
cache: {session_max: 1000, kv_compress_ratio: 0.6, cpu_ram_limit_gb: 16}
generation:
  default: {temperature: 0.6, top_p: 0.95, max_new_tokens: 1024}
  math: {max_new_tokens: 2048}
  code: {max_new_tokens: 1536}
"""
"""All keys of the configuration that article 004 shows."""


def test_all_keys_of_the_article_mean_something(chat: SimpleNamespace) -> None:
    s = chat.settings.read(yaml.safe_load(ARTICLE))
    assert chat.settings.layers(s.model.layer_map, 28) == {n: "cuda:0" if n < 13 else "cpu" for n in range(28)}
    assert (s.slots, s.server.timeout, s.cache.session_max, s.cache.cpu_ram_limit_gb) == (5, 120, 1000, 16)
    assert s.cache.kv_dtype == "float8"
    assert [s.generation.of(k).max_new_tokens for k in ("text", "math", "code")] == [1024, 2048, 1536]
    assert s.generation.of("math").temperature == 0.6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"model": {"path": "x", "layer_map": {"cuda:0": list(range(29))}}},
            "there is no layer 28; this model has 28, numbered 0 to 27",
        ),
        ({"model": {"path": "x", "layer_map": {"cuda:0": ["0-20"], "cpu": ["20-27"]}}}, "layer 20 is on cuda:0 and on cpu"),
        ({"model": {"path": "x", "layer_map": {"cuda:0": ["0-20"]}}}, "no device for layer 21, 22, 23, 24, 25, 26, 27"),
        ({"model": {"path": "x", "layer_map": {"gpu0": [0]}}}, "'gpu0' is no device"),
        ({"model": {"path": "x", "layer_map": {"cuda:0": ["first"]}}}, "'first' is neither a layer number nor a range"),
    ],
)
def test_layer_maps_are_checked_against_the_model(
    chat: SimpleNamespace, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 28}))
    change["model"]["path"] = str(tmp_path)
    with pytest.raises(chat.settings.SettingsError, match=said.replace("(", r"\(")):
        chat.settings.read(change)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "must be a table of sections"),
        ("server: {port: 7860}", "model.path: must name"),
        ("model: {path: x, dtype: half}", "model.dtype: must be one of auto, bfloat16, float16, float32, not 'half'"),
        ("model: {path: 3}", "model.path: must be text"),
        ("model: {path: x}\nserver: {port: '7860'}", "server.port: must be a number, not '7860'"),
        ("model: {path: x}\nserver: {concurrency: true}", "server.concurrency: must be a number, not True"),
        ("model: {path: x}\nserver: {concurrency: .nan}", "server.concurrency: must be a finite number, not nan"),
        ("model: {path: x, layer_map: {cpu: ['0-99999999999']}}", "no model has more than 10000 layers"),
        ("model: {path: x}\nserver: {concurrency: 1.5}", "server.concurrency: must be a whole number, not 1.5"),
        ("model: {path: x}\nserver: 3", "server: must be a table, not 3"),
        ("model: {path: x}\ncache: {kv_compress_ratio: 0.3}", "half .8 bit for 16. is the smallest form"),
        ("model: {path: x}\ncache: {context: 1024}", "generation.default.max_new_tokens: 1024 leaves no room"),
        ("model: {path: x}\ngeneration: {poem: {}}", "generation.poem: no such kind"),
        ("model: {path: x}\ngeneration: {math: {temperature: 3}}", "generation.math.temperature: must be from 0 to 2"),
        ("model: {path: x}\ngeneration: {runaway_tokens: 3}", "generation.runaway_tokens"),
        ("model: {path: x}\nlog: {level: LOUD}", "log.level: must be one of"),
    ],
)
def test_wrong_values_are_named(chat: SimpleNamespace, text: str, said: str) -> None:
    with pytest.raises(chat.settings.SettingsError, match=said):
        chat.settings.read(yaml.safe_load(text))


def test_a_file_in_another_encoding_is_said(chat: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {path: x}", encoding="utf-16")
    with pytest.raises(chat.settings.SettingsError, match="is not written in UTF-8"):
        chat.settings.load(tmp_path / "config.yaml")


# Words


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1+1等于几", "math"), ("Solve x^2 - 5x + 6 = 0", "math"), ("请计算这个积分", "math"), ("写个快速排序", "code"), ("请用Python写一个快速排序函数", "code"),
        ("Write a function that computes 2^10", "code"), ("A knights and knaves puzzle: who is lying?", "logic"), ("甲说乙在说谎，谁在说谎？", "logic"),
        ("什么是梯度下降", "text"), ("Tell me about Paris", "text"), ("请用中文解释牛顿第一定律", "text"),
    ],
)  # fmt: skip
def test_kinds(chat: SimpleNamespace, text: str, kind: str) -> None:
    assert chat.kinds.kind_of(text) == kind


def test_the_directive_is_added_once(chat: SimpleNamespace) -> None:
    box = "put your final answer within \\boxed{}"
    once = chat.kinds.with_directive("1+1", box)
    assert once == f"1+1\n{box}"
    assert chat.kinds.with_directive(once, box) == once


def test_runaways(chat: SimpleNamespace) -> None:
    runs = chat.stops.runs_away
    assert runs([5] * 96, 96)
    assert runs([1, 2, 3, *[7, 8, 9] * 32], 96)
    assert not runs([7, 8, 9] * 31, 96), "shorter than the limit"
    assert not runs(list(range(200)), 96)
    assert not runs([*[7, 8, 9] * 40, 1], 96)
    assert not runs([5] * 500, 0)


@pytest.mark.parametrize("parts", [["Hello ST", "OP there"], ["Hello STOP there"], ["Hello ", "S", "T", "O", "P"]])
def test_stop_texts_over_parts(chat: SimpleNamespace, parts: list[str]) -> None:
    stop, shown = chat.stops.StopText(["STOP"]), ""
    for part in parts:
        text, met = stop.push(part)
        shown += text
        if met:
            break
    assert met
    assert shown == "Hello "


def test_what_may_become_a_stop_text_comes_out_at_the_end(chat: SimpleNamespace) -> None:
    stop = chat.stops.StopText(["STOP"])
    assert stop.push("a ST") == ("a ", False)
    assert stop.push("", final=True) == ("ST", False)


@pytest.mark.parametrize("cut", [1, 3, 1000])
@pytest.mark.parametrize(
    ("inside", "text", "thought", "said"),
    [
        (True, "let me see</think>\n\nIt is 4.", "let me see", "It is 4."),
        (False, "<think>\nlet me see</think>It is 4.", "let me see", "It is 4."),
        (False, "No reasoning, <think> is a word.", "", "No reasoning, <think> is a word."),
        (True, "never closed", "never closed", ""),
        (False, "<", "", "<"),
    ],
)
def test_reasoning_is_told_from_the_answer(
    chat: SimpleNamespace, inside: bool, text: str, thought: str, said: str, cut: int
) -> None:
    split = chat.answer.Thinking(inside)
    pieces = [p for i in range(0, len(text), cut) for p in split.push(text[i : i + cut])] + split.push("", final=True)
    assert "".join(p.text for p in pieces if p.thinking).strip() == thought
    assert "".join(p.text for p in pieces if not p.thinking).strip() == said


def test_prefixes_are_bounded_by_count_and_bytes(chat: SimpleNamespace) -> None:
    def saved(size: int) -> list[Any]:
        return [SimpleNamespace(nbytes=size)]

    store = chat.prefixes.PrefixStore(count=2, limit=100)
    a, b, c = ([n, *range(40)] for n in (1, 2, 3))
    store.add(a, saved(30))
    store.add(b, saved(30))
    assert store.find([*a, 99])[0] == 41
    assert store.add(c, saved(30)) == [41], "b leaves: a was used since"
    assert store.find(b)[0] == 0
    assert store.add([*a, 50], saved(60)) == [], "it continues a, so a is replaced"
    assert (len(store.kept), store.bytes) == (2, 90)
    assert store.add([9, *range(60)], saved(95)) == [41, 42], "bytes bound too"
    assert store.bytes == 95


class Words:
    """A tokenizer whose tokens are letters."""

    eos_token_id = 0
    chat_template = "x"

    def apply_chat_template(self, turns: list[dict[str, str]], add_generation_prompt: bool, tokenize: bool) -> str:
        return "".join(f"[{t['role']}]{t['content']}" for t in turns) + "[assistant]"

    def __call__(self, text: str, add_special_tokens: bool) -> Any:
        return SimpleNamespace(input_ids=[ord(c) for c in text])

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return bytes(ids).decode("utf-8", "replace")


def test_characters_of_several_tokens_come_whole(chat: SimpleNamespace) -> None:
    text = chat.prompt.Detokenizer(Words())
    parts = [text.push([b]) for b in "牛a顿".encode()]
    assert parts == ["", "", "牛", "a", "", "", "顿"]


def test_prompts(chat: SimpleNamespace) -> None:
    made = {"model": {"path": "x"}, "cache": {"context": 256}, "prompt": {"system": "user", "think_prefix": "<think>\n"}}
    made["generation"] = {"default": {"max_new_tokens": 64}, "math": {"directive": "BOX"}}
    settings = chat.settings.read(made)
    messages = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>\nhm</think>\nHello"},
        {"role": "user", "content": "1+1等于几"},
    ]  # fmt: skip
    prepared = chat.prompt.prepare(Words(), settings, messages)
    text = "".join(map(chr, prepared.tokens))
    assert text == "[user]Be brief.\n\nHi[assistant]Hello[user]1+1等于几\nBOX[assistant]<think>\n"
    assert (prepared.kind, prepared.thinking) == ("math", True)
    long = [
        {"role": "user", "content": "a" * 150},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c" * 40},
    ]
    with pytest.raises(chat.prompt.TooLongError):
        chat.prompt.prepare(Words(), settings, long)
    assert "a" not in "".join(map(chr, chat.prompt.prepare(Words(), settings, long, drop=True).tokens)).replace("assistant", "")
    half = chat.prompt.prepare(Words(), settings, [{"role": "user", "content": "\ud800 hi"}])  # JSON can say this, UTF-8 cannot
    assert "? hi" in "".join(map(chr, half.tokens))


def test_a_number_that_is_none_has_no_effect(chat: SimpleNamespace) -> None:
    """Gradio's number field passes NaN on, which is in no range and breaks every comparison of the sampling."""
    settings = chat.settings.read({"model": {"path": "x"}})
    prepared = chat.prompt.prepare(Words(), settings, [{"role": "user", "content": "hi"}])
    job = chat.answer.limits(settings, prepared, temperature=float("nan"), max_new_tokens=7)
    assert (job.sampling.temperature, job.sampling.max_new_tokens) == (0.6, 7)


def test_what_cannot_fit_is_not_read(chat: SimpleNamespace) -> None:
    """Fifty million characters took a minute, and everybody's text stood still; a long history was read once for each turn that left."""
    settings = chat.settings.read(
        {"model": {"path": "x"}, "cache": {"context": 256}, "generation": {"default": {"max_new_tokens": 64}}}
    )
    read: list[int] = []

    class Counted(Words):
        def __call__(self, text: str, add_special_tokens: bool) -> Any:
            read.append(len(text))
            return super().__call__(text, add_special_tokens)

    with pytest.raises(chat.prompt.TooLongError, match="50000000 characters"):
        chat.prompt.prepare(Counted(), settings, [{"role": "user", "content": "x" * 50_000_000}])
    assert read == []
    turns = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} words"} for n in range(2001)]
    turns[100] = {"role": "user", "content": "y" * 1_000_000}
    text = "".join(map(chr, chat.prompt.prepare(Counted(), settings, turns, drop=True).tokens))
    assert "2000 words" in text
    assert "1994 words" in text
    assert len(read) < 40


# The engine, over a device that keeps account of what its cache holds


class OutOfMemoryError(Exception):
    """Named as torch's."""


class Device:
    """Stands for the decoder. The next token follows from all tokens of the row alone, so a wrong cache gives a wrong text.

    Raises on whatever the engine must not do: reading behind what a row holds, decoding a row that holds another text.
    """

    def __init__(self, slots: int, context: int, kind: str = "cpu", too_long: int = 10**9) -> None:
        self.rows: list[list[int]] = [[] for _ in range(slots)]
        self.ids = SimpleNamespace(device=SimpleNamespace(type=kind))
        self.current: dict[int, int] = {}
        self.graphs: dict[Any, Any] = {}
        self.unrecorded = ""
        self.cache, self.context, self.too_long = self, context, too_long
        self.batches: list[int] = []
        self.steps = 0
        self.gate: threading.Event | None = None

    @staticmethod
    def next(tokens: list[int]) -> int:
        return 100 + zlib.crc32(repr(tokens).encode()) % 10_000

    def bytes(self) -> int:
        return 0

    def warm_up(self) -> float:
        return 0.0

    def copy(self, source: int, target: int, length: int) -> None:
        assert len(self.rows[source]) >= length
        self.rows[target] = self.rows[source][:length]

    def save(self, slot: int, length: int) -> list[Any]:
        assert len(self.rows[slot]) >= length
        return [SimpleNamespace(nbytes=length, held=self.rows[slot][:length])]

    def restore(self, slot: int, saved: list[Any], length: int) -> None:
        self.rows[slot] = saved[0].held[:length]

    def prefill(self, prompts: list[tuple[int, int, list[int]]]) -> list[int]:
        assert len(prompts) == 1 or all(start == 0 for _, start, _ in prompts)
        if sum(len(t) for _, _, t in prompts) > self.too_long:
            raise OutOfMemoryError("out of memory")
        for slot, start, tokens in prompts:
            assert len(self.rows[slot]) >= start
            self.rows[slot] = [*self.rows[slot][:start], *tokens]
        self.batches.append(len(prompts))
        return [self.next(self.rows[slot]) for slot, _, _ in prompts]

    def join(self, logits: list[int], joining: list[tuple[int, int, float, float, int]]) -> list[int]:
        for token, (slot, length, *_) in zip(logits, joining, strict=True):
            assert len(self.rows[slot]) == length
            self.current[slot] = token
        return logits

    def leave(self, slot: int) -> None:
        self.current.pop(slot, None)

    def decode(self, rows: int, length: int) -> Callable[[], list[int]]:
        if self.gate:
            self.gate.wait(5)
        self.steps += 1
        out = [0] * rows
        for slot, token in list(self.current.items()):
            assert slot < rows
            assert len(self.rows[slot]) < length
            self.rows[slot].append(token)
            out[slot] = self.current[slot] = self.next(self.rows[slot])
        return lambda: out


def expected(prompt: list[int], count: int) -> list[int]:
    """What one row alone would give."""
    row = list(prompt)
    for _ in range(count):
        row.append(Device.next(row))
    return row[len(prompt) :]


class Bench:
    """An engine over a device, and a way to ask it."""

    def __init__(self, chat: SimpleNamespace, kind: str = "cpu", too_long: int = 10**9, eos: int = -1, **server: Any) -> None:
        settings = {"model": {"path": "x"}, "server": {"concurrency": 4, "queue": 64, **server}, "cache": {"context": 8192}}
        self.chat, self.settings = chat, chat.settings.read(settings)
        self.device, self.made = Device(self.settings.slots, 8192, kind, too_long), 0
        self.engine = chat.engine.Engine(self.settings, chat.trace.Trace(chat.settings.Log(level="ERROR")), self.make, {eos})

    def make(self) -> Device:
        self.made += 1
        self.device.rows = [[] for _ in self.device.rows]
        return self.device

    def job(self, prompt: list[int], count: int = 20) -> Any:
        return self.chat.engine.Job(list(prompt), self.chat.settings.Sampling(max_new_tokens=count))

    async def ask(self, prompt: list[int], count: int = 20) -> Any:
        job = self.engine.submit(self.job(prompt, count))
        got: list[int] = []
        while True:
            tokens, finish = await asyncio.wait_for(job.inbox.get(), 10)
            got += tokens
            if finish:
                job.got = got
                return job

    def run(self, body: Callable[[], Any]) -> Any:
        async def all_of_it() -> Any:
            self.engine.start(asyncio.get_running_loop())
            try:
                return await body()
            finally:
                await asyncio.to_thread(self.engine.close, 5)

        return asyncio.run(all_of_it())


def prompt(seed: int, length: int = 50) -> list[int]:
    return [1 + (seed * 7919 + i * 104729) % 97 for i in range(length)]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_many_answers_at_once_are_each_right(chat: SimpleNamespace, kind: str) -> None:
    bench = Bench(chat, kind)
    asked = [(prompt(n, 3 + 37 * n % 200), 5 + n % 30) for n in range(40)]
    jobs = bench.run(lambda: asyncio.gather(*(bench.ask(p, c) for p, c in asked)))
    for job, (p, count) in zip(jobs, asked, strict=True):
        assert job.got == expected(p, count)
        assert job.finish == "length"
    assert max(bench.device.batches) > 1, "waiting prompts are read together"
    assert bench.device.steps < sum(c for _, c in asked) / 2, "answers share their steps"


def test_a_conversation_is_not_read_twice(chat: SimpleNamespace) -> None:
    bench = Bench(chat)

    async def turns() -> Any:
        first = await bench.ask(prompt(1, 100), 20)
        other = await asyncio.gather(*(bench.ask(prompt(n, 120), 10) for n in range(2, 9)))  # their slots are taken over
        second = await bench.ask([*prompt(1, 100), *first.got, *prompt(9, 30)], 20)
        return first, other, second

    first, _, second = bench.run(turns)
    assert second.reused >= 119
    assert second.got == expected([*prompt(1, 100), *first.got, *prompt(9, 30)], 20)


def test_long_prompts_are_read_in_parts_between_the_steps_of_others(chat: SimpleNamespace) -> None:
    bench = Bench(chat)

    async def both() -> Any:
        short = asyncio.create_task(bench.ask(prompt(1), 400))
        await asyncio.sleep(0.02)
        long = await bench.ask(prompt(2, 3 * PREFILL // 2), 3)
        return await short, long

    short, long = bench.run(both)
    assert short.got == expected(prompt(1), 400)
    assert long.got == expected(prompt(2, 3 * PREFILL // 2), 3)


def test_out_of_memory_answers_that_request_alone(chat: SimpleNamespace) -> None:
    bench = Bench(chat, too_long=300)

    async def mixed() -> Any:
        lengths = (50, 60, 2000, 70, 80)
        return await asyncio.gather(*(bench.ask(prompt(n, length)) for n, length in enumerate(lengths))), await bench.ask(
            prompt(9)
        )

    jobs, after = bench.run(mixed)
    assert [j.finish for j in jobs] == ["length", "length", "error", "length", "length"]
    assert "not enough memory for a prompt of 2000 tokens" in jobs[2].error
    assert all(j.got == expected(prompt(n, len(j.prompt)), 20) for n, j in enumerate(jobs) if n != 2)
    assert after.finish == "length"
    assert bench.engine.trace.counters["out_of_memory"] == 1


def test_the_queue_is_bounded_and_says_so(chat: SimpleNamespace) -> None:
    bench = Bench(chat, concurrency=2, queue=3)
    bench.device.gate = threading.Event()

    async def crowd() -> tuple[int, int]:
        tasks = []
        refused = 0
        for n in range(12):
            try:
                bench.engine.submit(job := bench.job(prompt(n)))
                tasks.append(job)
            except chat.engine.BusyError as error:
                refused += "waiting already" in str(error)
            await asyncio.sleep(0.02)
        bench.device.gate.set()
        bench.device.gate = None
        for job in tasks:
            while not (await asyncio.wait_for(job.inbox.get(), 10))[1]:
                pass
        return len(tasks), refused

    taken, refused = bench.run(crowd)
    assert (taken, refused) == (5, 7)


def test_an_answer_that_nobody_reads_frees_its_slot(chat: SimpleNamespace) -> None:
    bench = Bench(chat, concurrency=1)

    async def leave() -> Any:
        job = bench.engine.submit(bench.job(prompt(1), 7000))
        await job.inbox.get()
        bench.engine.cancel(job)
        after = await bench.ask(prompt(2), 5)
        return job, after

    job, after = bench.run(leave)
    assert job.finish == "cancelled"
    assert len(job.tokens) < 7000
    assert after.got == expected(prompt(2), 5)


def test_time_is_bounded_waiting_and_running(chat: SimpleNamespace) -> None:
    bench = Bench(chat, concurrency=1, timeout=1)
    real = bench.device.decode

    def slow(rows: int, length: int) -> Any:
        time.sleep(0.05)
        return real(rows, length)

    bench.device.decode = slow  # type: ignore[method-assign]

    async def both() -> Any:
        return await asyncio.gather(bench.ask(prompt(1), 5000), bench.ask(prompt(2), 5))

    running, waiting = bench.run(both)
    assert running.finish == "timeout"
    assert 5 < len(running.got) < 40
    assert running.got == expected(prompt(1), len(running.got))
    assert (waiting.finish, waiting.error) == ("error", "no place within 1 s")


def test_who_had_no_place_is_told_to_come_back(chat: SimpleNamespace) -> None:
    """Not that the request failed: waiting too long and a server that closes are the busy answer (503), as a full queue is."""
    bench = Bench(chat, concurrency=1)
    bench.device.gate = threading.Event()

    async def closing() -> None:
        running = bench.engine.submit(bench.job(prompt(1), 30))
        waiting = chat.answer.answer(bench.engine, Words(), bench.job(prompt(2)), False)
        first = asyncio.create_task(anext(waiting))
        while len(bench.engine.waiting) != 1 or running.slot < 0:
            await asyncio.sleep(0.01)
        end = asyncio.create_task(asyncio.to_thread(bench.engine.close, 5))
        while not bench.engine.closing:
            await asyncio.sleep(0.01)
        bench.device.gate.set()
        await end
        with pytest.raises(chat.engine.BusyError, match="the server is closing"):
            await first

    bench.run(closing)


def test_a_runaway_is_stopped(chat: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "next", staticmethod(lambda tokens: 198))
    bench = Bench(chat)
    job = bench.run(lambda: bench.ask(prompt(1), 5000))
    assert job.finish == "runaway"
    assert 96 <= len(job.got) <= 104


def test_the_end_token_ends_and_is_not_shown(chat: SimpleNamespace) -> None:
    whole = expected(prompt(1), 30)
    bench = Bench(chat, eos=whole[9])
    job = bench.run(lambda: bench.ask(prompt(1), 30))
    assert (job.finish, job.got) == ("stop", whole[: whole.index(whole[9])])


def test_an_idle_model_leaves_and_comes_back(chat: SimpleNamespace) -> None:
    bench = Bench(chat, idle_unload_s=0.1)

    async def pause() -> Any:
        first = await bench.ask(prompt(1, 100), 10)
        for _ in range(100):
            await asyncio.sleep(0.05)
            if bench.engine.decoder is None:
                break
        gone = bench.engine.decoder is None
        return gone, first, await bench.ask([*prompt(1, 100), *first.got, 5], 10)

    gone, first, again = bench.run(pause)
    assert gone
    assert bench.made == 2
    assert again.reused >= 109, "the conversation was kept in host memory"
    assert again.got == expected([*prompt(1, 100), *first.got, 5], 10)


def test_running_answers_finish_when_the_server_ends(chat: SimpleNamespace) -> None:
    bench = Bench(chat, concurrency=1)

    async def end() -> Any:
        job = bench.engine.submit(bench.job(prompt(1), 300))
        await job.inbox.get()
        await asyncio.to_thread(bench.engine.close, 5)
        with pytest.raises(chat.engine.BusyError):
            bench.engine.submit(bench.job(prompt(2)))
        return job

    job = bench.run(end)
    assert (job.finish, len(job.tokens)) == ("length", 300)


def test_a_broken_device_tells_everyone_and_ends_the_process(chat: SimpleNamespace, killed: list[int]) -> None:
    bench = Bench(chat)

    def broken(rows: int, length: int) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    bench.device.decode = broken  # type: ignore[method-assign]
    job = bench.run(lambda: bench.ask(prompt(1)))
    assert job.finish == "error"
    assert killed
    assert "illegal memory access" in bench.engine.failed


def test_a_model_that_cannot_be_loaded_is_said_without_a_traceback(
    chat: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(chat)
    stopped: list[bool] = []

    def lost() -> Any:
        raise chat.settings.SettingsError("model.path: a file of /m is damaged")

    bench.engine.make, bench.engine.stop = lost, lambda: stopped.append(True)
    bench.run(lambda: asyncio.to_thread(bench.engine.thread.join, 5))
    assert stopped == [True]
    with pytest.raises(chat.engine.BusyError, match="is damaged"):
        bench.engine.submit(bench.job(prompt(1)))
    assert bench.engine.failed == "model.path: a file of /m is damaged"
    assert "Traceback" not in capsys.readouterr().err


def test_the_log_names_events_and_no_words(chat: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "requests.jsonl"
    trace = chat.trace.Trace(chat.settings.Log(file=str(file), max_mb=0.1, keep=2))
    trace("cache", "reused", tokens=812, slot=3)
    for n in range(3000):
        trace("request", "stop", id=n, kind="math", prompt=40, tokens=100)
    assert "[DYNAMIC_CACHE] cache reused tokens=812 slot=3" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["requests.jsonl", "requests.jsonl.1", "requests.jsonl.2"]
    assert json.loads(file.read_text().splitlines()[-1])["tokens"] == 100


def test_a_log_that_cannot_be_written_is_said(chat: SimpleNamespace, tmp_path: Path) -> None:
    chat.trace.Trace(chat.settings.Log(file=str(tmp_path / "logs/new/requests.jsonl")))
    assert (tmp_path / "logs/new/requests.jsonl").exists()
    (tmp_path / "file").touch()
    with pytest.raises(chat.settings.SettingsError, match=r"^log\.file: .*file/x\.jsonl cannot be written: "):
        chat.trace.Trace(chat.settings.Log(file=str(tmp_path / "file/x.jsonl")))


def test_a_full_disk_is_told_once(chat: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback for every line filled what was left."""
    trace = chat.trace.Trace(chat.settings.Log(file=str(tmp_path / "log.jsonl")))
    file = trace.log.handlers[1]
    stream, file.stream = file.stream, open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115
    for n in range(50):
        trace("request", "stop", id=n)
    said = capsys.readouterr().err
    assert said.count("log.jsonl cannot be written: No space left on device; the server goes on") == 1
    assert said.count("request stop") == 50
    assert "Traceback" not in said
    file.stream = stream
    trace("request", "stop", id=50)
    assert "log.jsonl is written again; 50 lines are lost" in capsys.readouterr().err
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["id"] == 50


def test_counters_are_told_in_full(chat: SimpleNamespace) -> None:
    """Six digits would let the rate of a counter past a million stand still and jump."""
    trace = chat.trace.Trace(chat.settings.Log(level="ERROR"))
    trace.count("output_tokens", 12_345_678)
    assert "chat_output_tokens_total 12345678\n" in trace.prometheus({})
    trace.count("output_tokens")
    text = trace.prometheus({"cache_bytes": 234_881_024, "cache_usage": 0.25})
    assert "chat_output_tokens_total 12345679\n" in text
    assert "chat_cache_bytes 234881024\n" in text
    assert "chat_cache_usage 0.25\n" in text


def test_metrics_are_prometheus_text(chat: SimpleNamespace) -> None:
    trace = chat.trace.Trace(chat.settings.Log(level="ERROR"))
    trace.count("output_tokens", 7)
    for seconds in (0.01, 0.2, 300):
        trace.observe("time_to_first_token", seconds)
    text = trace.prometheus({"requests_running": 2})
    assert "chat_requests_running 2\n" in text
    assert "chat_output_tokens_total 7\n" in text
    assert 'chat_time_to_first_token_seconds_bucket{le="0.25"} 2\n' in text
    assert 'chat_time_to_first_token_seconds_bucket{le="+Inf"} 3\n' in text


def test_the_page_speaks_two_languages(folder: Path) -> None:
    tree = ast.parse((folder / "chat/ui.py").read_text())
    (texts,) = (n.value for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "TEXTS")
    for key, (en, zh) in ast.literal_eval(texts).items():
        assert en.isascii(), key
        assert any("\u4e00" <= c <= "\u9fff" for c in zh), key
    assert lang.current() == "en"
