"""The instrument is calibrated before it is believed: against a server that knows its own latencies, and every way to fail."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dstune.errors import DstuneError, UnobservableError
from dstune.load.answers import Reply, events
from dstune.load.detect import detect
from dstune.load.local import run as run_local
from dstune.load.run import Options, _Seen, trial
from dstune.load.stats import outcome, percentile, spread
from dstune.load.sweep import sweep
from dstune.load.workload import Bodies, poisson, prompts
from dstune.model.plan import Workload
from dstune.report.trial import trial_text

ROOT = Path(__file__).parents[1]


def start(*args: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-m", "tests.servers.mock", *args], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    return process, f"http://127.0.0.1:{process.stdout.readline().split()[1]}"


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    process, url = start("--ttft-ms", "30", "--itl-ms", "4")
    yield url
    process.kill()
    process.wait()


def peek(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/stats") as f:
        return dict(json.load(f))


def stats(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/stats?reset=1") as f:
        return dict(json.load(f))


def load(
    url: str, model: str = "mock", n: int = 4, c: int = 2, tokens: int = 12, **more: Any
) -> tuple[dict[str, Any], list[Reply]]:
    work = more.pop("work", Workload(output_tokens=tokens, concurrency=c))
    found, replies = trial(detect(url), Options(work, model=model, requests=n, duration_s=20, **{"warmup": 0, **more}))
    return found.outcome, replies


def test_calibrated(mock: str) -> None:
    stats(mock)
    figures, replies = load(mock, n=64, c=16, tokens=60)
    true = stats(mock)
    assert figures["requests"] == {"ok": 64, "failed": 0}
    assert figures["output_tokens"] == 64 * 60 == true["chunks"]
    assert figures["ttft_ms"]["mean"] == pytest.approx(true["ttft_ms"][0], abs=4)
    assert figures["itl_ms"]["mean"] == pytest.approx(true["gap_ms"][0], rel=0.02)
    assert figures["tokens_counted_by"] == "usage"
    assert figures["connections"] == 16, "connections are kept"
    assert all(r.finish == "length" for r in replies)


@pytest.mark.parametrize(
    "how", ["no-done", "crlf", "split", "role-first", "jitter", "none-content", "no-done,no-usage,role-first"]
)
def test_reads_every_dialect(mock: str, how: str) -> None:
    figures, replies = load(mock, f"mock:{how}", n=4)
    assert figures["requests"] == {"ok": 4, "failed": 0}
    assert figures["output_tokens"] == 48
    assert all(r.text == " the" * 12 for r in replies)
    assert figures["tokens_counted_by"] == ("chunks" if "no-usage" in how else "usage")
    assert figures["ttft_ms"]["mean"] >= 29
    assert (figures["none_chunks"] > 0) == ("none-content" in how)


def test_reasoning_is_text_for_the_first_token(mock: str) -> None:
    _, replies = load(mock, "mock:reasoning", n=2)
    assert all(r.reasoning == " the" * 6 and r.text == " the" * 6 for r in replies)
    assert all(r.ttft is not None and r.ttft < 0.06 for r in replies)


def test_whole_answers(mock: str) -> None:
    figures, replies = load(mock, n=2, stream=False)
    assert figures["requests"]["ok"] == 2
    assert figures["ttft_ms"] is None, "an answer in one piece has no first token of its own"
    assert replies[0].text == " the" * 12


def test_all_at_once_is_seen(mock: str) -> None:
    figures, _ = load(mock, "mock:burst", n=2)
    assert figures["burst_share"] > 0.8


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("error-400", "http-400"),
        ("error-500", "http-500"),
        ("error-stream", "server-error"),
        ("cut", "truncated"),
        ("close", "disconnected"),
        ("empty", "empty"),
    ],
)
def test_failures_have_names(mock: str, how: str, error: str) -> None:
    figures, _ = load(mock, f"mock:{how}", n=3)
    assert figures["errors"] == {error: 3}
    assert figures["requests"] == {"ok": 0, "failed": 3}
    if "error" in how:
        assert "mock" in figures["error_words"][error]


def test_hanging_server_times_out(mock: str) -> None:
    figures, _ = load(mock, "mock:hang", n=2, timeout_s=0.4)
    assert figures["errors"] == {"timeout": 2}


def test_nobody_listens() -> None:
    with pytest.raises(UnobservableError, match="does not answer"):
        detect("http://127.0.0.1:9")


def test_open_loop_counts_from_when_it_was_due(mock: str) -> None:
    work = Workload(output_tokens=10, rate=20.0)
    figures, replies = load(mock, "mock:serial", n=12, work=work)
    assert figures["requests"]["ok"] == 12
    assert figures["ttft_ms"]["max"] > 2.5 * figures["ttft_ms"]["min"], "a serial server's queue must show"
    assert all(r.ttft is not None and r.ttft >= r.stamps[0] - r.sent for r in replies)


def test_sweep_finds_the_knee_of_a_serial_server(mock: str) -> None:
    def step(work: Workload) -> dict[str, Any]:
        return load(mock, "mock:serial", n=2 * work.concurrency, tokens=6, work=work)[0]

    found = list(sweep(Workload(output_tokens=6), step))
    assert found[-1]["stopped"] == "throughput"
    assert found[-1]["knee"] <= 2


def test_sweep_stops_when_the_objective_breaks(mock: str) -> None:
    def step(work: Workload) -> dict[str, Any]:
        return load(mock, "mock:serial", n=2 * work.concurrency, tokens=6, work=work)[0]

    found = list(sweep(Workload(output_tokens=6, slo_ttft_ms=70), step))
    assert found[-1]["stopped"] in ("objective", "throughput")
    assert found[-1]["goodput"]["share"] < 1


def test_tls_and_its_refusal(tmp_path: Path) -> None:
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    process, url = start("--ttft-ms", "5", "--itl-ms", "1", "--tls", str(cert), str(key))
    try:
        from dstune.load.detect import Server

        server = Server("mock", url.replace("http:", "https:"), ("mock",))
        options = Options(Workload(output_tokens=5), model="mock", requests=2, duration_s=5, warmup=0)
        refused, _ = trial(server, options)
        assert refused.outcome["errors"] == {"tls": 2}
        accepted, _ = trial(server, replace(options, verify_tls=False))
        assert accepted.outcome["requests"] == {"ok": 2, "failed": 0}
    finally:
        process.kill()
        process.wait()


def test_redirect_is_followed_before_the_load(mock: str) -> None:
    assert detect(f"{mock}/old").base == mock
    assert detect(f"{mock}/v1/chat/completions").base == mock
    assert detect(mock.removeprefix("http://")).models == ("mock",)


def test_command(mock: str, run_dstune: Any, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    done = run_dstune(
        "bench",
        mock,
        "-n",
        "6",
        "-c",
        "3",
        "--max-tokens",
        "8",
        "--json",
        "-o",
        str(out),
        "--slo-ttft",
        "500",
        OPENAI_API_KEY="sk-verysecretkey1",
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["schema"] == "dstune.report/1"
    assert data["trial"]["requests"] == {"ok": 6, "failed": 0}
    assert data["trial"]["goodput"]["share"] == 1.0
    assert json.loads(out.read_text()) == data
    assert "verysecret" not in done.stdout + done.stderr + out.read_text()
    text = run_dstune("bench", mock, "-n", "4", "--max-tokens", "8", LANG="zh_CN.UTF-8")
    assert "首 token" in text.stdout


def test_events_over_any_split() -> None:
    body = b'data: {"a": 1}\n\nevent: x\ndata: {"b":\ndata: 2}\n\n: comment\n\ndata: [DONE]\n\n'
    for size in (1, 2, 7, 50, 500):
        pieces = [(float(i), body[i : i + size]) for i in range(0, len(body), size)]
        assert [(n, d) for _, n, d in events(pieces)] == [(b"", b'{"a": 1}'), (b"x", b'{"b":\n2}'), (b"", b"[DONE]")]


def test_percentiles_are_numpys() -> None:
    assert percentile([1, 2, 3, 4], 0.5) == 2.5
    assert percentile([5], 0.99) == 5
    assert percentile(list(range(101)), 0.95) == 95
    assert spread([]) is None


def test_poisson_has_its_rate_and_repeats() -> None:
    times = list(poisson(50.0, 100.0, None, 3))
    assert len(times) == pytest.approx(5000, rel=0.05)
    assert times == list(poisson(50.0, 100.0, None, 3))
    assert times == sorted(times)


def test_prompts_differ_so_that_no_prefix_cache_helps() -> None:
    body = Bodies("chat", "m", 5)
    first = {json.loads(body(n))["messages"][0]["content"][:4] for n in range(9)}
    assert len(first) == 9
    assert all(prompts(p) for p in ("chat", "math", "code", "zh", "long"))


def test_outcome_of_nothing() -> None:
    figures = outcome([], Workload(), {"cpu_s": 0.0})
    assert figures["requests"] == {"ok": 0, "failed": 0}
    assert figures["ttft_ms"] is None


@pytest.mark.slow
def test_a_server_that_never_ends_does_not_hold_the_load(mock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs at the end of the duration gets as long again, not the whole timeout of a request; what is cut is told apart."""
    monkeypatch.setattr("dstune.load.run.GRACE_S", 0.5)
    begin = time.monotonic()
    work = Workload(output_tokens=3000, concurrency=3)
    slow, _ = trial(detect(mock), Options(work, model="mock:stall", duration_s=0.5, timeout_s=60, warmup=0))
    assert time.monotonic() - begin < 5
    assert slow.outcome["unfinished"]["requests"] == 3
    assert 0.9 < slow.outcome["unfinished"]["longest_s"] < 3
    assert slow.outcome["requests"]["ok"] == 0
    assert "3 requests were not answered when their time was over" in trial_text(slow)
    plain, _ = trial(
        detect(mock), Options(Workload(output_tokens=5, concurrency=3), model="mock", requests=6, duration_s=20, warmup=0)
    )
    assert "unfinished" not in plain.outcome


def test_a_long_load_does_not_keep_every_chunk(mock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dstune.load.run.KEPT_CHUNKS", 40)
    held: list[int] = []
    add = _Seen.add

    def watched(self: _Seen, answer: Any) -> None:
        add(self, answer)
        held.append(self.chunks)

    monkeypatch.setattr(_Seen, "add", watched)
    figures, replies = load(mock, n=24, c=4, tokens=12)
    assert figures["requests"] == {"ok": 24, "failed": 0}
    assert figures["output_tokens"] == 24 * 12
    assert max(held) <= 40 < 24 * 12
    assert len({r.due for r in replies}) == 24


LOADED = {
    "event": "loaded",
    "transformers": "5.0",
    "device": "cpu",
    "torch": "2.9",
    "dtype": "float32",
    "parameters": 1,
    "attention": "sdpa",
    "load_s": 1.0,
}
PASS = {"event": "run", "batch": 1, "number": 0, "ttft_s": 0.5, "steps": [0.1] * 9, "memory": {"rss": 1}}


def stand_in(folder: Path, *events: dict[str, Any], then: str = "") -> str:
    """A program in the place of Python that says what the child would."""
    (folder / "config.json").write_text("{}")
    (folder / "said").write_text("".join(json.dumps(e) + "\n" for e in events))
    program = folder / "python"
    program.write_text(f"#!/bin/sh\ncat {folder}/said\n{then}\n")
    program.chmod(0o755)
    return str(program)


def test_local_leaves_out_what_there_was_no_time_for(tmp_path: Path) -> None:
    python = stand_in(tmp_path, LOADED, PASS, {"event": "done", "left_out": [8, 32]})
    (only,) = run_local(str(tmp_path), python)
    assert (only.workload.concurrency, only.outcome["output_tokens"], only.outcome["requests"]["ok"]) == (1, 10, 1)


def test_local_gives_what_it_has_when_it_is_interrupted(tmp_path: Path) -> None:
    python = stand_in(tmp_path, LOADED, PASS, then="exec sleep 60")
    command = [sys.executable, "-m", "dstune", "bench", "--local", str(tmp_path), "--python", python, "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    ) as process:
        end = time.monotonic() + 30
        while (
            b"sleep" not in subprocess.run(["ps", "-o", "args=", "-g", str(process.pid)], capture_output=True).stdout
            and time.monotonic() < end
        ):
            time.sleep(0.1)
        time.sleep(0.5)  # the line is read
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(out)["trial"]["interrupted"] is True


@pytest.mark.slow
def test_ctrl_c_gives_the_report_so_far(mock: str) -> None:
    command = [sys.executable, "-m", "dstune", "bench", mock, "-c", "4", "--max-tokens", "12", "--duration", "60s", "--json"]
    for workers in ([], ["--workers", "2"]):
        begin = time.monotonic()
        stats(mock)
        process = subprocess.Popen(
            [*command, *workers], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )
        while peek(mock)["requests"] < 12:
            assert time.monotonic() - begin < 40, "no load after 40 s"
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
        out, err = process.communicate(timeout=20)
        assert time.monotonic() - begin < 60, err
        figures = json.loads(out)["trial"]
        assert figures["interrupted"] is True
        assert figures["requests"]["ok"] > 4, figures["errors"]
        assert figures["requests"]["failed"] == 0
        assert process.returncode == 0, err


def test_several_processes_share_the_load(mock: str) -> None:
    from dstune.load.run import processes
    from dstune.load.workers import shares, trial

    stats(mock)
    options = Options(Workload(output_tokens=12, concurrency=7), model="mock", requests=21, duration_s=20, warmup=0)
    found = trial(detect(mock), options, 3).outcome
    assert found["requests"] == {"ok": 21, "failed": 0}
    assert stats(mock)["requests"] == 21
    assert found["client_workers"] == 3
    assert found["connections"] == 7
    parts = shares(options, 3)
    assert sum(p.workload.concurrency for p in parts) == 7
    assert sum(p.requests or 0 for p in parts) == 21
    assert {p.lane for p in parts} == {(0, 3), (1, 3), (2, 3)}
    assert [processes(c) for c in (1, 512, 513, 2048)] == [1, 1, 2, 4]


def test_shape_tells_a_serial_server_from_one_that_batches(mock: str) -> None:
    serial, _ = load(mock, "mock:serial", n=6, c=6)
    batched, _ = load(mock, n=6, c=6)
    assert serial["at_once"]["streaming"] < 1.3
    assert serial["stairs"] > 0.95
    assert batched["at_once"]["streaming_peak"] == 6
    assert batched["stairs"] < 0.5
    line = batched["timeline"]
    assert sum(line["tok_s"]) * line["step_s"] == pytest.approx(72, rel=0.02)
    assert max(line["in_flight"]) == 6
    assert sum(c for _, c in batched["histogram"]["ttft_ms"]) == 6


def test_tokens_by_a_tokenizer_where_the_server_says_nothing(mock: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"the": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    told, _ = load(mock, "mock:no-usage", n=3, tokenizer=str(tmp_path))
    assert (told["tokens_counted_by"], told["output_tokens"]) == ("tokenizer", 36)
    said, _ = load(mock, n=3, tokenizer=str(tmp_path))
    assert said["tokens_counted_by"] == "usage", "what the server says goes before"
    with pytest.raises(DstuneError, match=r"no tokenizer\.json"):
        load(mock, "mock:no-usage", n=1, tokenizer=str(tmp_path / "nowhere"))


@pytest.mark.slow
def test_a_load_that_only_fails_ends_early(mock: str) -> None:
    begin = time.monotonic()
    found, _ = trial(
        detect(mock), Options(Workload(output_tokens=4, concurrency=4), model="mock:error-500", duration_s=20, warmup=0)
    )
    assert time.monotonic() - begin < 5
    assert found.outcome["requests"]["ok"] == 0
    assert found.outcome["requests"]["failed"] >= 20


@contextmanager
def answering(answers: dict[str, Any]) -> Iterator[str]:
    """The address of a server with these bodies by path (text as it is, else JSON); 404 for the rest."""
    import http.server
    import threading

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made = answers.get(self.path, {})
            data = made.encode() if isinstance(made, str) else json.dumps(made).encode()
            self.send_response(200 if self.path in answers else 404)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("route", "body", "kind"),
    [
        ("/info", {"model_id": "x", "version": "3.0"}, "tgi"),
        ("/info", {"named_endpoints": {}, "unnamed_endpoints": {}}, "unknown"),
        ("/config", {"version": "4.33.0", "dependencies": [], "components": []}, "gradio"),
        ("/version", {"version": "0.32.0"}, "vllm"),
        ("/api/version", {"version": "0.9"}, "ollama"),
    ],
)
def test_server_is_known_by_what_only_it_has(route: str, body: dict[str, Any], kind: str) -> None:
    with answering({"/v1/models": {"data": []}, route: body}) as url:
        assert detect(url).kind == kind


GRADIO = {"version": "6.31.0", "dependencies": [], "components": []}
OWN = "# TYPE chat_requests_running gauge\nchat_requests_running 0\n"


def test_a_page_with_an_api_beside_it_is_asked_through_the_api() -> None:
    listed = {"data": [{"id": "m", "owned_by": "local"}]}
    with answering({"/v1/models": listed, "/config": GRADIO}) as url:
        assert (detect(url).dialect, detect(url).models) == ("chat", ("m",))
        assert (detect(url, gradio=True).dialect, detect(url, gradio=True).version) == ("gradio", "6.31.0")
    with answering({"/v1/models": listed, "/config": GRADIO, "/metrics": OWN}) as url:
        assert (detect(url).kind, detect(url).metrics) == ("dstune-app", True)
        assert detect(url, gradio=True).dialect == "gradio"
    with answering({"/v1/models": listed}) as url, pytest.raises(UnobservableError, match="no Gradio app"):
        detect(url, gradio=True)
