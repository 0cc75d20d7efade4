"""Servers: recognised by command line and port, read over HTTP, and their metrics as four engines write them."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dstune.model import Evidence, Fact
from dstune.probes import metrics, server
from dstune.probes.processes import Process, engine_of, listening
from dstune.probes.reading import Options

SAVED = Path(__file__).parent / "evidence/metrics"


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("/opt/venv/bin/python /opt/venv/bin/vllm serve Qwen/Qwen2.5-1.5B --port 8000", "vllm"),
        ("python3 -m vllm.entrypoints.openai.api_server --model x", "vllm"),
        ("VLLM::EngineCore", "vllm"),
        ("python -m sglang.launch_server --model-path x --port 30000", "sglang"),
        ("/usr/bin/llama-server -m model.gguf -ngl 99", "llama.cpp"),
        ("./server -m model.gguf", "llama.cpp"),
        ("python -m llama_cpp.server --model m.gguf", "llama-cpp-python"),
        ("/usr/bin/python3 /usr/local/bin/transformers serve", "transformers"),
        ("text-generation-launcher --model-id x", "tgi"),
        ("/usr/local/bin/ollama serve", "ollama"),
        ("/usr/bin/ollama runner --model x", "ollama"),
        ("python -X utf8 /usr/bin/lmdeploy serve api_server x", "lmdeploy"),
        ("/venv/bin/python /venv/bin/streamlit run app.py", "streamlit"),
        ("/usr/bin/ollama pull qwen", None),
        ("vllm bench serve-x", None),
        ("python -c import os", None),
        ("python -m http.server", None),
        ("python", None),
        ("vim vllm", None),
        ("grep -r vllm serve", None),
        ("", None),
    ],
)
def test_engine_of_a_command_line(command: str, engine: str | None) -> None:
    assert engine_of(tuple(command.split())) == engine


def test_script_is_known_by_what_it_imports(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import torch\nimport gradio as gr\n")
    (tmp_path / "api.py").write_text("from fastapi import FastAPI\nfrom transformers import pipeline\napp = FastAPI()\n")
    (tmp_path / "train.py").write_text("from transformers import Trainer\n")
    (tmp_path / "client.py").write_text("# import gradio\nimport openai\n")
    for command, engine in (
        ("python app.py", "gradio"),
        ("python -u app.py --share", "gradio"),
        ("python api.py", "transformers"),
        ("/venv/bin/uvicorn api:app --port 8000", "transformers"),
        ("python train.py", None),
        ("python client.py", None),
        ("python gone.py", None),
    ):
        assert engine_of(tuple(command.split()), str(tmp_path)) == engine, command


def test_listening_sockets() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0\n"
        "   1: 0100007F:1F41 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0 100 0 0 10 0\n"
    )
    assert list(listening(table)) == [("127.0.0.1", 8000, "4242")]
    six = "head\n   0: 00000000000000000000000001000000:1F90 0:0 0A 0:0 0:0 0 0 0 77 1\n"
    assert list(listening(six)) == [("::1", 8080, "77")]


def test_running_app_is_found_with_its_port(tmp_path: Path) -> None:
    script = (
        "import socket, time\ntry:\n    import gradio\nexcept ImportError:\n    pass\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(60)\n"
    )
    (tmp_path / "app.py").write_text(script)
    command = [sys.executable, "app.py", "--hf-token", "hf_" + "a" * 20]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            items = list(server.probe(Options()))
            subject = next(i.subject for i in items if i.name == "pid" and getattr(i, "value", 0) == child.pid)
            found = {i.name: getattr(i, "value", i) for i in items if i.subject == subject}
            assert found["engine"] == "gradio"
            assert (found["port"], found["bind"], found["ports"]) == (port, "127.0.0.1", [port])
            assert found["ours"] is True
            assert "a" * 20 not in found["command"]
            assert os.path.basename(found["working_directory"]) == tmp_path.name
            evidence = Evidence(tuple(i for i in items if isinstance(i, Fact)))
            assert server.subject_of(evidence, f"http://localhost:{port}/v1") == subject
            assert server.subject_of(evidence, "http://localhost:1") != subject
        finally:
            child.kill()


def test_process_that_is_gone() -> None:
    gone = Process(2**22 + 7)
    assert (gone.argv, gone.name, gone.uid, gone.parent, gone.readable, gone.ports()) == ((), "", None, 0, False, [])


def read(text: str, before: str = "", seconds: float = 0) -> dict[str, Any]:
    return {f.name: f.value for f in metrics.read_metrics(text, before=before, seconds=seconds)}


def test_recorded_vllm_under_load() -> None:
    found = read((SAVED / "vllm-0.32-loaded.prom").read_text())
    assert (found["engine"], found["running"], found["waiting"], found["kv_usage_pct"]) == ("vllm", 16, 8, 4.41)
    assert (found["kv_blocks"], found["kv_block_size"], found["kv_tokens"]) == (364, 128, 46592)
    assert (found["prefix_caching"], found["gpu_memory_utilization"], found["kv_cache_dtype"]) == (True, 0.92, "auto")
    assert (found["requests"], found["length_finish_pct"], found["preemptions"]) == (19, 100.0, 0)
    assert (found["generation_tokens_mean"], found["models"], found["sleeping"]) == (64.0, ["smollm2"], False)
    assert 1000 < found["ttft_p50_ms"] < 2500


def test_recorded_preemptions() -> None:
    found = read((SAVED / "vllm-0.32-preempted.prom").read_text())
    assert (found["preemptions"], found["kv_blocks"]) == (9, 18)


V06 = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 2.0
vllm:num_requests_waiting{model_name="m"} 5.0
vllm:num_requests_swapped{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.985
vllm:cpu_cache_usage_perc{model_name="m"} 0.25
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.125
vllm:num_preemptions_total{model_name="m"} 7.0
vllm:time_per_output_token_seconds_bucket{le="0.01",model_name="m"} 0.0
vllm:time_per_output_token_seconds_bucket{le="0.025",model_name="m"} 90.0
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 100.0
vllm:request_success_total{finished_reason="stop",model_name="m"} 3.0
vllm:request_success_total{finished_reason="length",model_name="m"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="False",gpu_memory_utilization="0.9",num_gpu_blocks="2048"} 1.0
"""


def test_vllm_of_2024() -> None:
    found = read(V06)
    assert (found["kv_usage_pct"], found["cpu_kv_usage_pct"], found["swapped"]) == (98.5, 25.0, 1)
    assert (found["prefix_hit_pct"], found["preemptions"], found["prefix_caching"]) == (12.5, 7, False)
    assert found["kv_tokens"] == 2048 * 16
    assert found["length_finish_pct"] == 25.0
    assert found["itl_p50_ms"] == round(1000 * (0.01 + 0.015 * 50 / 90), 1)
    assert found["itl_p99_ms"] == 25.0  # in the open bucket: its lower bound


def test_other_engines() -> None:
    sglang = read(
        'sglang:num_running_reqs{model_name="q"} 3\nsglang:num_queue_reqs{model_name="q"} 2\nsglang:token_usage{model_name="q"} 0.5\n'
        'sglang:gen_throughput{model_name="q"} 120.5\nsglang:prompt_tokens_total{model_name="q"} 200\n'
        'sglang:cached_tokens_total{model_name="q"} 50\nsglang:max_total_num_tokens{model_name="q"} 4096\n'
    )
    assert (sglang["engine"], sglang["running"], sglang["waiting"], sglang["kv_usage_pct"]) == ("sglang", 3, 2, 50.0)
    assert (sglang["generation_tok_s"], sglang["prefix_hit_pct"], sglang["kv_tokens"]) == (120.5, 25.0, 4096)
    llama = read(
        "llamacpp:requests_processing 1\nllamacpp:requests_deferred 4\nllamacpp:tokens_predicted_total 900\n"
        "llamacpp:predicted_tokens_seconds 41.5\nllamacpp:kv_cache_usage_ratio 0.25\n"
    )
    assert (llama["engine"], llama["running"], llama["waiting"], llama["kv_usage_pct"]) == ("llama.cpp", 1, 4, 25.0)
    assert (llama["generation_tok_s"], llama["generation_tokens"]) == (41.5, 900)
    tgi = read(
        "tgi_batch_current_size 4\ntgi_queue_size 7\ntgi_request_generated_tokens_sum 800\ntgi_request_generated_tokens_count 8\n"
    )
    assert (tgi["engine"], tgi["running"], tgi["waiting"], tgi["generation_tokens_mean"]) == ("tgi", 4, 7, 100.0)
    assert read("process_cpu_seconds_total 1\npython_info 1\n") == {}
    assert read("<html>not metrics</html>") == {}


def test_the_program_of_generate_app() -> None:
    text = """\
chat_requests_running 3
chat_requests_waiting 2
chat_cache_usage 0.25
chat_output_tokens_total 300
chat_prompt_tokens_total 1000
chat_prompt_tokens_reused_total 400
chat_requests_stop_total 6
chat_requests_length_total 2
chat_requests_runaway_total 2
chat_time_to_first_token_seconds_bucket{le="0.05"} 8
chat_time_to_first_token_seconds_bucket{le="0.1"} 10
chat_time_to_first_token_seconds_bucket{le="+Inf"} 10
chat_time_to_first_token_seconds_count 10
chat_time_to_first_token_seconds_sum 0.4
"""
    found = {f.name: f.value for f in metrics.read_metrics(text)}
    assert found["engine"] == "dstune-app"
    assert (found["running"], found["waiting"], found["kv_usage_pct"], found["prefix_hit_pct"]) == (3, 2, 25, 40)
    assert (found["requests"], found["length_finish_pct"], found["repetition_finish_pct"]) == (10, 20, 20)
    assert found["ttft_p50_ms"] == pytest.approx(31.2, abs=0.1)


def test_window_is_the_difference_of_two_scrapes() -> None:
    template = (
        'vllm:generation_tokens_total{{model_name="m"}} {tokens}\nvllm:num_preemptions_total{{model_name="m"}} {preempted}\n'
        'vllm:time_to_first_token_seconds_bucket{{le="0.1",model_name="m"}} {fast}\n'
        'vllm:time_to_first_token_seconds_bucket{{le="1.0",model_name="m"}} {all}\n'
        'vllm:time_to_first_token_seconds_bucket{{le="+Inf",model_name="m"}} {all}\n'
    )
    before = template.format(tokens=1000, preempted=3, fast=100, all=100)
    after = template.format(tokens=1500, preempted=5, fast=100, all=110)
    found = read(after, before, 10)
    assert (found["generation_tok_s"], found["preemptions"], found["preemptions_s"]) == (50.0, 2, 0.2)
    assert found["ttft_p50_ms"] == 550.0  # all ten of the window lie between 0.1 and 1 s; since the start it would be below 0.1
    assert read(after)["ttft_p50_ms"] < 100


def test_quantile_edges() -> None:
    assert metrics.quantile([], 0.5) is None
    assert metrics.quantile([(1.0, 0.0), (float("inf"), 0.0)], 0.5) is None
    assert metrics.quantile([(float("inf"), 5.0)], 0.5) == 0.0


Answers = dict[str, tuple[int, str]]


@pytest.fixture
def serve() -> Iterator[Callable[[Answers], str]]:
    """`serve({"/health": (200, "")})` → base URL; other paths answer 404."""
    running: list[http.server.ThreadingHTTPServer] = []

    def start(answers: Answers) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answers.get(self.path, (404, ""))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *args: object) -> None:
                pass

        instance = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=instance.serve_forever, args=(0.02,), daemon=True).start()
        running.append(instance)
        return f"http://127.0.0.1:{instance.server_address[1]}"

    yield start
    for instance in running:
        instance.shutdown()
        instance.server_close()


def test_endpoint_of_a_vllm(serve: Callable[[Answers], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a proxy that is dead: this machine must not go through it
    models = {"object": "list", "data": [{"id": "r1", "owned_by": "vllm", "root": "/models/r1", "max_model_len": 8192}]}
    url = serve(
        {
            "/health": (200, ""),
            "/version": (200, '{"version": "0.8.5"}'),
            "/v1/models": (200, json.dumps(models)),
            "/metrics": (200, (SAVED / "vllm-0.32-loaded.prom").read_text()),
        }
    )
    evidence = server.read_endpoint(url + "/v1")
    found = {f.name: f.value for f in evidence.facts}
    assert (found["reachable"], found["health_status"], found["version"]) == (True, 200, "0.8.5")
    assert (found["models"], found["max_model_len"], found["model_root"]) == (["r1"], 8192, "/models/r1")
    assert (found["running"], found["waiting"]) == (16, 8)
    assert not evidence.gaps


def test_endpoint_with_less_to_say(serve: Callable[[Answers], str]) -> None:
    url = serve(
        {
            "/health": (200, "{}"),
            "/v1/models": (401, ""),
            "/props": (200, '{"total_slots": 4, "default_generation_settings": {"n_ctx": 2048}}'),
        }
    )
    evidence = server.read_endpoint(url)
    found = {f.name: f.value for f in evidence.facts}
    assert (found["needs_key"], found["slots"], found["slot_context"]) == (True, 4, 2048)
    assert any(g.name == "running" and "--metrics" in g.hint for g in evidence.gaps)


def test_engine_of_servers_without_metrics(serve: Callable[[Answers], str]) -> None:
    ollama = serve(
        {
            "/v1/models": (200, '{"data": [{"id": "qwen", "owned_by": "library"}]}'),
            "/api/version": (200, '{"version": "0.5.1"}'),
        }
    )
    found = {f.name: f.value for f in server.read_endpoint(ollama).facts}
    assert (found["engine"], found["version"], found["models"]) == ("ollama", "0.5.1", ["qwen"])
    gradio = serve({"/config": (200, '{"version": "6.31.0", "components": [], "mode": "blocks"}')})
    found = {f.name: f.value for f in server.read_endpoint(gradio).facts}
    assert (found["engine"], found["version"], found["health_status"]) == ("gradio", "6.31.0", 404)


def test_port_in_a_command_line() -> None:
    assert server._stated_port(("vllm", "serve", "m", "--port", "8001")) == 8001
    assert server._stated_port(("vllm", "serve", "m", "--port=8002")) == 8002
    assert server._stated_port(("vllm", "serve", "m", "--port")) is None
    assert server._stated_port(("python", "app.py")) is None


def test_endpoint_where_nobody_listens() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    evidence = server.read_endpoint(f"127.0.0.1:{port}")
    assert [(f.name, f.value) for f in evidence.facts] == [
        ("url", f"http://127.0.0.1:{port}"),
        ("reachable", False),
        ("failure", "refused"),
    ]
    assert evidence.gaps[0].name == "*"


@pytest.mark.parametrize(
    ("answer", "failure"),
    [(b"", "reset"), (b"SSH-2.0-OpenSSH_9.0\r\n", "other"), (None, "timeout")],
    ids=["ends", "ssh", "silent"],
)
def test_endpoint_that_is_no_http_server(answer: bytes | None, failure: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def talk() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                if answer is not None:
                    peer.sendall(answer)
                    peer.close()
                else:
                    time.sleep(5)

        threading.Thread(target=talk, daemon=True).start()
        start = time.monotonic()
        evidence = server.read_endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.5)
        assert time.monotonic() - start < 4
        assert evidence.first("server", "reachable") is False
        assert evidence.first("server", "failure") == failure
