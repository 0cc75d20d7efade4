"""Where the memory of a card goes: real processes with such command lines, the stand-in NVML library, recordings of a real card."""

import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dstune import serving
from dstune.model import Evidence, Fact, from_json
from dstune.plan.decompose import Holder, decompose
from dstune.probes import model_shape
from dstune.probes.processes import Process

HERE = Path(__file__).parent
R1 = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
WEIGHTS = 1_777_088_000 * 2 / 2**20
SLEEP = "import time\ntime.sleep(120)\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "R1-1.5B"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**R1, "id2label": {"0": "x"}}))
    return folder


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`start("vllm", "serve", …)`: a sleeping Python program of that name with these arguments."""
    made: list[subprocess.Popen[bytes]] = []

    def run(program: str, *words: str, text: str = SLEEP) -> subprocess.Popen[bytes]:
        path = tmp_path / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        made.append(subprocess.Popen([sys.executable, str(path), *words], cwd=tmp_path))
        end = time.monotonic() + 10
        while words and words[-1] not in Process(made[-1].pid).argv:
            assert time.monotonic() < end
            time.sleep(0.01)
        return made[-1]

    yield run
    for child in made:
        child.kill()
        child.wait()


def evidence(
    *processes: tuple[int, float], card: str = "NVIDIA GeForce RTX 4090", total: int = 24564, **more: object
) -> Evidence:
    """A card with these (pid, MiB), as the probes tell it; engine and the rest are read from the real process."""
    from dstune.probes.processes import engine_of_process

    facts = [Fact("gpu0", "name", card), Fact("gpu0", "memory_total_mib", total), Fact("gpu0", "memory_reserved_mib", 430)]
    facts.append(Fact("gpu0", "memory_used_mib", sum(mib for _, mib in processes) + 10))
    for number, (pid, mib) in enumerate(processes):
        subject = f"process{number or ''}"
        facts += [Fact(subject, "pid", pid), Fact(subject, "gpu", 0), Fact(subject, "memory_mib", mib)]
        if engine := engine_of_process(Process(pid)):
            facts.append(Fact(subject, "engine", engine))
    facts += [Fact("server", name, value) for name, value in more.items()]  # type: ignore[arg-type]
    found = Evidence(tuple(facts))
    return found.plus(serving.known(found))


def only(found: Evidence) -> Holder:
    (holder,) = decompose(found)
    return holder


def test_vllm_by_its_command_line(start: Callable[..., subprocess.Popen[bytes]], model: Path) -> None:
    child = start(
        "vllm", "serve", str(model), "--max-model-len=8192", "--gpu-memory-utilization", "0.85", "--max-num-seqs", "16"
    )
    holder = only(evidence((child.pid, 21_500)))
    assert (holder.engine, holder.pid, holder.model) == ("vllm", child.pid, str(model))
    assert holder.of("weights") == pytest.approx(WEIGHTS, rel=0.001)
    assert holder.of("context") > 100
    assert holder.of("graphs") > 0
    assert holder.of("activations") > 0
    assert holder.of("kv") > 10_000  # what 85 % of the card leaves
    assert holder.rest is not None
    assert holder.estimate + holder.rest == pytest.approx(21_500)
    less = only(evidence((start("vllm", "serve", str(model), "--gpu-memory-utilization", "0.5").pid, 21_500)))
    assert less.of("kv") < 0.6 * holder.of("kv")  # the setting moved the pool
    assert not less.within
    assert less.rest is not None
    assert less.rest > 5000


def test_worker_of_a_server_takes_the_settings_of_its_parent(
    start: Callable[..., subprocess.Popen[bytes]], model: Path, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    text = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen(['VLLM::EngineCore', '-c', {SLEEP!r}], executable={sys.executable!r})\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\ntry:\n    time.sleep(120)\nfinally:\n    child.kill()\n"
    )  # fmt: skip
    head = start("vllm", "serve", str(model), "--enforce-eager", "--kv-cache-dtype", "fp8", text=text)
    end = time.monotonic() + 10
    while not note.exists() or not note.read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    pid = int(note.read_text())
    try:
        found = evidence((pid, 21_900))
        facts = {f.name: f.value for f in found.facts if f.subject == "process"}
        assert facts["launched_by"] == head.pid
        assert "--enforce-eager" in str(facts["launch"])
        holder = only(found)
        assert holder.of("graphs") == 0  # --enforce-eager
        both = decompose(evidence((pid, 21_900), (head.pid, 420)))  # an API server with a context of its own on the card
        assert [bool(h.parts) for h in both] == [True, False]
        assert str(pid) in both[1].why
        plain = only(evidence((start("vllm", "serve", str(model), "--enforce-eager").pid, 21_900)))
        assert holder.kv_tokens == pytest.approx(2 * (plain.kv_tokens or 0), rel=0.01)  # fp8: twice the tokens
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def test_metrics_replace_the_estimate_and_tell_what_is_used(start: Callable[..., subprocess.Popen[bytes]], model: Path) -> None:
    child = start("vllm", "serve", str(model), "--port", "8123")
    holder = only(
        evidence(
            (child.pid, 21_900),
            url="http://127.0.0.1:8123",
            engine="vllm",
            version="0.11.0",
            kv_tokens=600_000,
            kv_usage_pct=25.0,
        )
    )
    size = 600_000 * 28 * 2 * 2 * 128 * 2 / 2**20
    assert holder.of("kv") == pytest.approx(size, rel=0.001)
    assert holder.kv_used_mib == pytest.approx(size / 4, rel=0.001)
    assert next(p for p in holder.parts if p.kind == "kv").read.startswith("server")
    assert holder.version == "0.11.0"


def test_log_of_the_engine_replaces_the_estimate(start: Callable[..., subprocess.Popen[bytes]], model: Path) -> None:
    found = evidence((start("vllm", "serve", str(model)).pid, 21_900))
    holder = only(
        found.plus([Fact("vllm", "weights_mib", 3440.0, "server.log"), Fact("vllm", "kv_available_mib", 14000.0, "server.log")])
    )
    assert (holder.of("weights"), holder.of("kv")) == (3440.0, 14000.0)


def test_program_of_transformers(start: Callable[..., subprocess.Popen[bytes]], model: Path) -> None:
    app = (
        "import time\nif 0:\n    import gradio as gr\n    import torch\n    from transformers import AutoModelForCausalLM\n"
        f"MODEL = {str(model)!r}\n"
        "def load():\n    return AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.float16, device_map='auto')\n"
        "def answer(model, ids):\n    return model.generate(ids, max_new_tokens=1024)\n"
        "time.sleep(120)\n"
    )  # fmt: skip
    child = start("app.py", "--share", text=app)
    holder = only(evidence((child.pid, 4700)))
    assert holder.engine in ("gradio", "transformers")
    assert holder.of("weights") == pytest.approx(WEIGHTS, rel=0.001)
    assert holder.within
    assert abs(holder.rest or 0) < 0.2 * 4700
    wide = only(
        evidence(
            (start("app.py", "--wide", text=app.replace("torch_dtype=torch.float16", "torch_dtype=torch.float32")).pid, 8000)
        )
    )
    assert wide.of("weights") == pytest.approx(2 * WEIGHTS, rel=0.001)  # a float32 load doubles them


def gguf(path: Path) -> None:
    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    numbers = {
        "embedding_length": 1536, "block_count": 28, "feed_forward_length": 8960, "attention.head_count": 12, "attention.head_count_kv": 2,
        "context_length": 131072,
    }  # fmt: skip
    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("qwen2"),
        text("general.file_type") + struct.pack("<II", 4, 15),
    ]
    pairs += [text(f"qwen2.{k}") + struct.pack("<II", 4, v) for k, v in numbers.items()]
    pairs.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 0, 151936) + b"\0" * 151936)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs))
    os.truncate(path, 1117 << 20)  # sparse: the size that the Q4_K_M file of the 1.5B has


def test_llama_server_by_the_header_of_its_file(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    gguf(tmp_path / "r1.gguf")
    holder = only(evidence((start("llama-server", "-m", "r1.gguf", "-c", "8192", "-ngl", "99").pid, 2000)))
    assert holder.engine == "llama.cpp"
    assert 800 < holder.of("weights") < 1117
    assert holder.of("kv") == pytest.approx(8192 * 28 * 2 * 2 * 128 * 2 / 2**20)
    half = only(evidence((start("llama-server", "-m", "r1.gguf", "-c", "8192", "-ngl", "14").pid, 2000)))
    assert half.of("kv") == pytest.approx(holder.of("kv") / 2)


def test_mig_slice_is_the_card_of_its_process(start: Callable[..., subprocess.Popen[bytes]], model: Path) -> None:
    """vLLM takes its share of the slice, not of the board that the slice is cut from."""
    child = start("vllm", "serve", str(model))
    board = evidence((child.pid, 9000), card="NVIDIA H100 80GB HBM3", total=81559)
    facts = {
        "mig": True,
        "mig_slices": ["MIG 1g.10gb", "MIG 3g.40gb"],
        "mig_slice_total_mib": [9856, 40448],
        "mig_slice_instance": [9, 2],
    }
    sliced = board.plus([Fact("process", "mig_instance", 9), *(Fact("gpu0", n, v) for n, v in facts.items())])  # type: ignore[arg-type]
    assert only(board).estimate > 70_000
    assert only(sliced).estimate < 9856


def test_what_cannot_be_told_says_why(start: Callable[..., subprocess.Popen[bytes]], model: Path) -> None:
    found = evidence(
        (start("train", "x").pid, 500), (start("vllm", "serve", "nobody/knows-this-model").pid, 4000), (2**22 + 1, 90)
    )
    stranger, vllm = (next(h for h in decompose(found) if h.mib == size) for size in (500, 4000))
    assert not stranger.parts
    assert "no model server" in stranger.why
    assert not vllm.parts
    assert "model config not found" in vllm.why
    assert "--model DIR" in vllm.why
    given = decompose(found.plus(serving.assumed(found, str(model))))
    assert next(h for h in given if h.mib == 4000).of("weights") == pytest.approx(WEIGHTS, rel=0.001)


def test_many_strangers_are_summed() -> None:
    from dstune.report.memory import memory_json, memory_text

    facts = [
        Fact("gpu0", "name", "NVIDIA H100 80GB HBM3"),
        Fact("gpu0", "memory_total_mib", 81559),
        Fact("gpu0", "memory_used_mib", 4650),
    ]
    for n in range(30):
        subject = f"process{n or ''}"
        facts += [
            Fact(subject, "pid", 100 + n),
            Fact(subject, "gpu", 0),
            Fact(subject, "memory_mib", 10 * (n + 1)),
            Fact(subject, "name", "train"),
        ]
    text = memory_text(Evidence(tuple(facts)))
    assert text.count("pid ") == 3
    assert "27 more processes" in text
    assert "3,780 MiB" in text
    assert len(memory_json(Evidence(tuple(facts)))[0]["processes"]) == 30


def test_no_secret_leaves_a_command_line(start: Callable[..., subprocess.Popen[bytes]], model: Path) -> None:
    found = evidence((start("vllm", "serve", str(model), "--api-key", "sk-verysecret123456").pid, 900))
    assert "verysecret" not in json.dumps([str(f.value) for f in found.facts])
    nested = {
        **R1,
        "note": "/home/alice/models",
        "text_config": {"_name_or_path": "/home/bob/x", "auth_token": "sk-abcdefgh12345678"},
    }
    (model / "config.json").write_text(json.dumps(nested))
    shape = str(model_shape.of_path(str(model))["model_config"])
    assert not [word for word in ("alice", "bob", "abcdefgh") if word in shape]
    assert json.loads(shape)["hidden_size"] == 1536


def test_evidence_is_whole_without_the_machine(start: Callable[..., subprocess.Popen[bytes]], model: Path) -> None:
    """What was recorded on the server is told the same elsewhere, after the process has ended and the folder is gone."""
    from dstune.model import to_json

    child = start("vllm", "serve", str(model), "--max-model-len", "4096")
    found = evidence((child.pid, 20_000))
    here = only(found)
    child.kill()
    shutil.rmtree(model)
    assert only(from_json(Evidence, json.loads(json.dumps(to_json(found))))) == here


def recorded(name: str) -> Evidence:
    data = json.loads((HERE / "evidence" / "recordings" / "h200-decode" / name).read_text())
    found: Evidence = from_json(Evidence, data.get("evidence", data))
    return found


def test_recording_of_an_h200(model: Path) -> None:
    """One stream of the 1.5B: 2.7 % of NVML's number is not in the parts. Batches of 64 are more than one request: said, not spread."""
    alone, many = (
        only(found.plus(serving.assumed(found, str(model)))) for found in map(recorded, ("000016.json", "000032.json"))
    )
    assert alone.within
    assert abs(alone.rest or 0) / 4338 < 0.03
    assert not many.within
    assert (many.rest or 0) > 6000


def test_rest_is_small_on_measured_processes() -> None:
    """NVML readings of real processes on an H200 that did what is assumed, one short request: the parts explain them."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("memory_holders", HERE.parent / "benchmarks" / "memory_holders.py")
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    found = [h for kind, _, h in bench.readings() if kind == "one short request"]
    rests = sorted(abs(h.rest) / h.mib for h in found)
    assert len(found) >= 30
    assert rests[len(rests) // 2] < 0.03
    assert rests[-1] < 0.15
    assert all(h.within for h in found)


@contextlib.contextmanager
def scraped(metrics: str) -> Iterator[int]:
    """A port that answers /metrics with this, and other questions with nothing of interest."""
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = ("# HELP x\n" + metrics if self.path == "/metrics" else "{}").encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_port
    server.shutdown()


def test_doctor_tells_it(
    start: Callable[..., subprocess.Popen[bytes]],
    run_dstune: Callable[..., subprocess.CompletedProcess[str]],
    model: Path,
    tmp_path: Path,
) -> None:
    """The whole way: NVML's list, the process table, the report as text, JSON, in Chinese."""
    if not shutil.which("gcc"):
        pytest.fail("this test needs gcc")
    library = tmp_path / "nvml" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, HERE / "fakenvml" / "fakenvml.c"],
        check=True,
    )
    child = start("vllm", "serve", str(model), "--max-model-len", "8192", "--gpu-memory-utilization", "0.8")
    board = (HERE / "fakenvml" / "rtx4090.ini").read_text()
    head, _, _ = board.partition("[gpu0.proc0]")
    (tmp_path / "board.ini").write_text(head + f"[gpu0.proc0]\npid = {child.pid}\ntype = C\nmem_mib = 20100\n")

    def doctor(*words: str) -> str:
        done = run_dstune("doctor", *words, FAKENVML=str(tmp_path / "board.ini"), LD_LIBRARY_PATH=str(library.parent))
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    (card,) = json.loads(doctor("--json"))["memory"]
    (process,) = card["processes"]
    parts = {p["kind"]: p["mib"] for p in process["parts"] if p["kind"] != "weights"}
    assert process["pid"] == child.pid
    assert process["engine"] == "vllm"
    assert process["mib"] == 20100
    assert process["rest_mib"] == pytest.approx(20100 - process["estimate_mib"], abs=0.2)
    assert parts["kv"] > 9000
    assert process["within_band"] == (process["low_mib"] <= 20100 <= process["high_mib"])
    with scraped(
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="30000",gpu_memory_utilization="0.8"} 1.0\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
    ) as port:
        other = start("vllm", "serve", str(model), "--port", str(port))
        (tmp_path / "board.ini").write_text(head + f"[gpu0.proc0]\npid = {other.pid}\ntype = C\nmem_mib = 20100\n")
        (card,) = json.loads(doctor("--json", "--endpoint", f"http://127.0.0.1:{port}"))["memory"]
    (process,) = card["processes"]
    pool = 30000 * 16 * 28672 / 2**20
    assert process["kv_tokens"] == 480_000
    assert process["kv_used_mib"] == pytest.approx(pool / 2, rel=0.001)
    assert [p["mib"] for p in process["parts"] if p["kind"] == "kv"] == pytest.approx([pool], rel=0.001)
    text = doctor("--lang", "zh")
    assert "的显存去向" in text
    assert "KV 缓存（预留）" in text
    assert "其余" in text


def test_server_of_llama_cpp_python_has_defaults_of_its_own(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Its flags have underscores; without -ngl nothing is on the card, and the context is 2,048."""
    package = tmp_path / "llama_cpp" / "server"
    package.mkdir(parents=True)
    (tmp_path / "llama_cpp" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SLEEP)
    gguf(tmp_path / "r1.gguf")

    def holder(*words: str) -> Holder:
        child = subprocess.Popen([sys.executable, "-m", "llama_cpp.server", "--model", "r1.gguf", *words], cwd=tmp_path)
        try:
            end = time.monotonic() + 10
            while "r1.gguf" not in Process(child.pid).argv:
                assert time.monotonic() < end
                time.sleep(0.01)
            return only(evidence((child.pid, 2000)))
        finally:
            child.kill()
            child.wait()

    assert holder().of("weights") == 0
    assert holder("--n_gpu_layers", "-1").of("kv") == pytest.approx(2048 * 28672 / 2**20)
    assert holder("--n_gpu_layers", "-1", "--n_ctx", "4096").of("kv") == pytest.approx(4096 * 28672 / 2**20)


def test_program_that_dstune_generated(tmp_path: Path) -> None:
    """Its settings stand in config.yaml: a static cache of 8 rows of 2,048 tokens. Measured on an H200 with that file: 4,802 MiB."""
    folder = tmp_path / "app"
    command = [
        sys.executable,
        "-m",
        "dstune",
        "generate",
        "app",
        "--gpu",
        "h200",
        "--context",
        "2048",
        "--concurrency",
        "8",
        "-o",
        str(folder),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    program = folder / "app.py"
    program.write_text(
        program.read_text().replace(
            "from __future__ import annotations\n", "from __future__ import annotations\n\nimport time\n\ntime.sleep(120)\n", 1
        )
    )
    child = subprocess.Popen([sys.executable, "app.py"], cwd=folder)
    try:
        end = time.monotonic() + 10
        while "app.py" not in Process(child.pid).argv:
            assert time.monotonic() < end
            time.sleep(0.01)
        holder = only(evidence((child.pid, 4802), card="NVIDIA H200", total=143771))
    finally:
        child.kill()
        child.wait()
    assert holder.engine == "gradio"
    assert holder.of("kv") == pytest.approx(8 * 2048 * 28672 / 2**20, rel=0.01)
    assert holder.within
    assert abs(holder.rest or 0) < 0.02 * 4802
