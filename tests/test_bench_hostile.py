"""Servers, options, files and interruptions that a load must survive, and say the truth about."""

import asyncio
import contextlib
import gzip
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dstune.cli.bench_compare import compare, outcomes
from dstune.cli.doctor import of_run
from dstune.errors import DstuneError, UnobservableError
from dstune.load import gradio
from dstune.load.answers import Reply, events, read, server_words
from dstune.load.behaviour import CAUSES, interval
from dstune.load.client import Answer, Pool, Target, closed_loop, now, pause
from dstune.load.detect import Server, api_key, detect, fetch, same_place
from dstune.load.run import Options, hidden, trial
from dstune.load.runner import run
from dstune.load.stats import outcome
from dstune.load.sweep import sweep
from dstune.model.plan import Trial, Workload
from dstune.probes.recording import write
from dstune.report.trial import _PROBES, behaviours_text, trials_text
from tests.test_load import start

Serve = Callable[..., str]


@pytest.fixture
def talk() -> Any:
    """Serves whole connections by a coroutine `(reader, writer)`; gives its address."""
    stops = []

    def begin(handle: Callable[[Any, Any], Any]) -> str:
        ready, port = threading.Event(), [0]
        loop = asyncio.new_event_loop()

        async def main() -> None:
            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            port[0] = server.sockets[0].getsockname()[1]
            ready.set()

        def work() -> None:
            loop.run_until_complete(main())
            loop.run_forever()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        ready.wait(5)
        stops.append((loop, thread))
        return f"http://127.0.0.1:{port[0]}"

    yield begin
    for loop, thread in stops:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)


def ask(url: str, times: int = 1, pause: float = 0.0) -> list[Answer]:
    """Requests one after the other over one pool."""

    async def main() -> list[Answer]:
        pool = Pool(Target(url, timeout_s=5))
        answers = [Answer(i, now()) for i in range(times)]
        for answer in answers:
            answer.due = now()
            await pool.send(pool.target.request(b"{}"), answer)
            await asyncio.sleep(pause)
        pool.close()
        return answers

    found: list[Answer] = run(main())
    return found


WHOLE = b'{"model":"m","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"completion_tokens":2,"prompt_tokens":3}}'


def body(data: bytes, kind: str = "application/json", **headers: str) -> Answer:
    return Answer(
        0, 0.0, 0.0, 1.0, 200, {"content-type": kind, **{k.replace("_", "-"): v for k, v in headers.items()}}, [(0.5, data)]
    )


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: a\r\ntransfer-encoding: x\r\n\r\n"]
)
def test_an_interim_answer_is_not_the_answer(talk: Serve, interim: bytes) -> None:
    async def handle(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"{}")
        writer.write(interim)
        await asyncio.sleep(0.02)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(WHOLE) + WHOLE)

    (answer,) = ask(talk(handle))
    assert (answer.status, read(answer).text) == (200, "hi")


def test_http_1_0_with_a_length_is_asked_anew(talk: Serve) -> None:
    async def handle(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-length: %d\r\n\r\n" % len(WHOLE) + WHOLE)
        await asyncio.sleep(0.03)
        writer.close()

    assert [a.error for a in ask(talk(handle), 4)] == [""] * 4


def test_second_attempt_opens_a_connection(talk: Serve) -> None:
    """Kept connections that die when they are used next: a retry over another kept one would die too."""

    async def handle(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await reader.readuntil(b"{}")
        writer.transport.abort()

    async def main(url: str) -> list[Answer]:
        pool = Pool(Target(url, timeout_s=5))
        for _ in range(2):
            wave = [Answer(i, now()) for i in range(4)]
            await asyncio.gather(*(pool.send(pool.target.request(b"{}"), a) for a in wave))
        pool.close()
        return wave

    assert [a.error for a in run(main(talk(handle)))] == [""] * 4


def test_compressed_bodies_are_read() -> None:
    event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    assert read(body(gzip.compress(WHOLE), content_encoding="gzip")).text == "hi"
    assert read(body(gzip.compress(event * 3), "text/event-stream", content_encoding="gzip")).text == "aaa"
    assert read(body(b"no gzip at all", content_encoding="gzip")).error == "no-json"
    bomb = gzip.compress(b"x" * (64 << 20))
    assert read(body(bomb, content_encoding="gzip")).error == "no-json"


@pytest.mark.parametrize("kind", ["text/plain", "Text/Event-Stream", "application/octet-stream", ""])
def test_streams_under_another_type(kind: str) -> None:
    found = read(body(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 2, kind))
    assert (found.text, found.error) == ("aa", "")


def test_redirects_and_pages_say_what_they_are() -> None:
    moved = Answer(0, 0, 0, 1, 307, {"location": "https://other/v1"}, [])
    assert (read(moved).error, read(moved).detail) == ("http-307", "location: https://other/v1")
    page = b"<html><head><style>b {color: red}</style></head><body><h1>413 Request Entity Too Large</h1><hr>nginx</body></html>"
    assert server_words(page) == "413 Request Entity Too Large nginx"
    assert read(body(b"")).error == "empty"


USAGE: tuple[dict[str, Any], ...] = (
    {"usage": {"completion_tokens": 2, "prompt_tokens": "many"}},
    {"usage": {"completion_tokens": -5, "prompt_tokens": -3}},
    {"usage": {"completion_tokens": 10**400, "prompt_tokens": 1}},
    {"usage": {"completion_tokens": True}},
    {"usage": {"completion_tokens": 2, "prompt_tokens_details": "x"}},
    {"timings": [1]},
    {"timings": "x"},
    {"choices": [{"message": {"content": "a"}, "delta": {"content": "a"}, "finish_reason": ["x"]}]},
    {"choices": [{"message": {"content": [{"type": "text", "text": "a"}]}, "delta": {"content": [{"text": "a"}]}}]},
    {"choices": [{"message": {"content": "\ud83d"}, "delta": {"content": "\ud83d"}}]},
)


@pytest.mark.parametrize("odd", USAGE)
def test_figures_of_another_shape_break_no_report(odd: dict[str, Any]) -> None:
    event = {"choices": [{"message": {"content": "a"}, "delta": {"content": "a"}, "finish_reason": None}]}
    from dstune.load.shape import shape

    for kind, before in (("text/event-stream", b"data: "), ("application/json", b"")):
        answer = body(before + json.dumps({**event, **odd}).encode() + b"\n\n", kind)
        replies = [read(answer), read(answer)]
        assert all(r.ok and r.text for r in replies)
        found = {**outcome(replies, Workload(), {"cpu_s": 0.1}), **shape(replies)}
        assert found["output_tokens"] >= 0
        json.dumps(found).encode()


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_every_line_end_of_the_standard(ends: str, size: int) -> None:
    text = ": ping\n\nid: 1\ndata: a\n\nevent: x\ndata: b\ndata: c\n\n".replace("\n", ends).encode()
    pieces = [(float(at), text[at : at + size]) for at in range(0, len(text), size)]
    found = list(events(pieces))
    assert [(name, data) for _, name, data in found] == [(b"", b"a"), (b"x", b"b\nc")]
    done = len(text) - 1 if ends != "\r\n" else len(text) - 2  # the CR ends the line; its LF ends nothing more
    assert found[-1][0] == done // size * size


def test_bytes_that_are_no_utf8_do_not_cost_the_answer() -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"caf\xe9 "},"finish_reason":null}]}\n\n'
    reply = read(body(3 * event, "text/event-stream"))
    assert (reply.error, reply.text, len(reply.stamps)) == ("", "caf\ufffd " * 3, 3)
    whole = WHOLE.replace(b"hi", b"caf\xe9")
    assert read(body(whole)).text == "caf\ufffd"


def test_error_that_is_null_is_none() -> None:
    said = b'data: {"error":null,"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
    counted = b'data: {"error":null,"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
    reply = read(body(said + counted, "text/event-stream"))
    assert (reply.error, reply.text, reply.output_tokens) == ("", "hi", 1)
    assert read(body(WHOLE.replace(b"{", b'{"error":null,', 1))).text == "hi"


def test_body_that_is_packed_otherwise_says_so() -> None:
    reply = read(body(b"\x8b\x02\x80", "text/event-stream", content_encoding="br"))
    assert (reply.error, reply.detail) == ("no-json", "content-encoding: br")


def test_error_event_in_plain_words() -> None:
    reply = read(body(b"event: error\ndata: CUDA error: out of memory\n\n", "text/event-stream"))
    assert (reply.error, reply.detail) == ("server-error", "CUDA error: out of memory")


def test_error_event_by_name() -> None:
    found = read(body(b'event: error\ndata: {"detail": "boom"}\n\n', "text/event-stream"))
    assert (found.error, found.detail) == ("server-error", "boom")


def test_an_event_of_megabytes_costs_no_minutes() -> None:
    pieces = [(0.0, b"data: ")] + [(float(i), b"x" * 1000) for i in range(12_000)] + [(1.0, b"\r\n\r"), (2.0, b"\n")]
    began = time.process_time()
    ((at, _, data),) = events(pieces)
    assert time.process_time() - began < 2
    assert (at, len(data)) == (1.0, 12_000_000), "the second CR ends the event"


def test_short_or_failed_loads_do_not_blame_the_client() -> None:
    failed = [Reply(0.0, 11.0, 11.0, error="timeout") for _ in range(4)]
    assert not outcome(failed, Workload(), {"cpu_s": 5.0})["client_bottleneck"]
    far = [Reply(0.0, 0.2, 3.0, stamps=(1.0, 2.0), output_tokens=2) for _ in range(4)]
    assert not outcome(far, Workload(rate=5.0), {"cpu_s": 0.1})["client_bottleneck"]  # 0.2 s went into connecting
    late = [Reply(0.0, 0.2, 3.0, stamps=(1.0, 2.0), output_tokens=2, lag=0.2) for _ in range(4)]
    assert outcome(late, Workload(rate=5.0), {"cpu_s": 0.1})["client_bottleneck"]


def test_key_repeated_by_a_server_is_taken_out() -> None:
    replies = [
        Reply(0, 0, 1, error="http-401", detail="Incorrect API key: plain-key-123"),
        Reply(0, 0, 1, text="plain-key-123"),
    ]
    found = hidden(replies, Options(Workload(), headers=(("Authorization", "Bearer plain-key-123"),)))
    assert [r.detail or r.text for r in found] == ["Incorrect API key: <redacted>", "<redacted>"]


class _Moved(BaseHTTPRequestHandler):
    seen: ClassVar[list[tuple[str, str]]] = []
    to = ""

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization", "")))
        if self.to:
            self.send_response(302)
            self.send_header("Location", self.to)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "m"}]}')

    def log_message(self, *args: Any) -> None:
        pass


def test_key_does_not_follow_a_redirect_to_another_place() -> None:
    target: Any = type("T", (_Moved,), {"seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), target) as there:
        threading.Thread(target=there.serve_forever, args=(0.02,), daemon=True).start()
        moved = type("M", (_Moved,), {"seen": [], "to": f"http://127.0.0.1:{there.server_port}/v1/models"})
        with ThreadingHTTPServer(("127.0.0.1", 0), moved) as here:
            threading.Thread(target=here.serve_forever, args=(0.02,), daemon=True).start()
            url = f"http://127.0.0.1:{here.server_port}"
            assert fetch(f"{url}/v1/models", {"Authorization": "Bearer k"})[0] == 200
            with pytest.raises(UnobservableError, match="redirects"):
                detect(url, {"Authorization": "Bearer k"})
            assert detect(url).base == f"http://127.0.0.1:{there.server_port}"
            here.shutdown()
        there.shutdown()
    assert target.seen
    assert {key for _, key in target.seen} == {""}


def test_same_place() -> None:
    assert same_place("http://h/v1", "https://h/v1")
    assert same_place("http://h:8000/v1", "http://h:8000/api/v1")
    assert not same_place("https://h/v1", "http://h/v1")
    assert not same_place("http://h/v1", "http://g/v1")
    assert not same_place("http://h:8000/v1", "http://h:9000/v1")


def test_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    process, url = start("--tls", str(cert), str(key))
    url = url.replace("http:", "https:")
    try:
        with pytest.raises(UnobservableError, match="not trusted") as error:
            detect(url)
        assert "--insecure" in error.value.next
        assert detect(url, verify_tls=False).models == ("mock",)
    finally:
        process.kill()
        process.wait()


def test_gradio_mounted_under_a_path() -> None:
    config = {"api_prefix": "/gradio_api", "components": [{"id": 1, "type": "textbox"}], "dependencies": [{"id": 0, "api_name": "chat", "inputs": [1], "outputs": [1]}]}  # fmt: skip

    class App(_Moved):
        posted: ClassVar[list[str]] = []

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(config).encode())

        def do_POST(self) -> None:
            self.posted.append(self.path)
            self.send_error(503)

    with ThreadingHTTPServer(("127.0.0.1", 0), App) as app:
        threading.Thread(target=app.serve_forever, args=(0.02,), daemon=True).start()
        server = Server("gradio", f"http://127.0.0.1:{app.server_port}/chat", dialect="gradio")
        answer = Answer(0, now())
        run(gradio.asker(server, "chat", Pool(Target(server.base)))(answer))
        app.shutdown()
    assert App.posted == ["/chat/gradio_api/queue/join"]
    assert gradio.read(answer).error == "queue-full"


@pytest.mark.parametrize(
    "event",
    ["[1]", "5", '{"msg":"process_generating","output":[1]}', '{"msg":"process_generating","output":{"data":5}}', '{"msg":"process_completed","output":"x"}'],
)  # fmt: skip
def test_gradio_events_of_another_shape(event: str) -> None:
    assert gradio.read(body(f"data: {event}\n\n".encode(), "text/event-stream")).error


def test_gradio_edits_that_fit_nothing() -> None:
    first = 'data: {"msg":"process_generating","output":{"data":["a"]}}\n\n'
    edit = 'data: {"msg":"process_generating","output":{"data":[[["append",[3,"x"],"b"]]]}}\n\n'
    assert gradio.read(body((first + edit).encode(), "text/event-stream")).error == "no-json"


def test_sweep_on_a_server_that_refuses_has_no_knee() -> None:
    figures: dict[str, Any] = {
        "requests": {"ok": 0, "failed": 20},
        "output_tok_s": 0.0,
        "errors": {"http-500": 20},
        "error_words": {"http-500": "no"},
    }
    (found,) = sweep(Workload(), lambda work: dict(figures))
    assert (found["stopped"], found["knee"]) == ("errors", 0)
    one = Trial(Workload(), {}, found)
    text = trials_text((one, one))
    assert "no load held" in text
    assert "20 × http-500: no" in text


def test_sweep_goes_on_to_four_clients() -> None:
    """With two alone nobody can tell a serial server from one at its limit (doctor asks for 2.5 in flight)."""

    def step(work: Workload) -> dict[str, Any]:
        return {"requests": {"ok": 5, "failed": 0}, "output_tok_s": 10.0}

    assert [f["concurrency"] for f in sweep(Workload(), step)] == [1, 2, 4]
    (last,) = [f for f in sweep(Workload(), step) if "knee" in f]
    assert (last["knee"], last["stopped"]) == (1, "throughput")


def test_ctrl_c_between_two_steps_keeps_the_first() -> None:
    def step(work: Workload) -> dict[str, Any]:
        if work.concurrency > 1:
            raise KeyboardInterrupt
        return {"requests": {"ok": 5, "failed": 0}, "output_tok_s": 10.0}

    found = list(sweep(Workload(), step))
    assert [(f["concurrency"], f["stopped"], f["knee"]) for f in found] == [(1, "interrupted", 1)]


@pytest.mark.parametrize(
    "options",
    [("--rate", "nan"), ("--rate", "inf"), ("--timeout", "nan"), ("--timeout", "0"), ("--temperature", "nan"), ("--slo-ttft", "nan"),
     ("--slo-itl", "-1"), ("--duration", "nan"), ("http://127.0.0.1:2",), ("-o", "/no/such/folder/run.json"), ("-o", "/tmp")],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused_before_the_load(options: tuple[str, ...], run_dstune: Any) -> None:
    done = run_dstune("bench", "http://127.0.0.1:1", *options)
    assert done.returncode == 2
    assert "error" in done.stderr


def saved(path: Path, *runs: tuple[int, float], **more: Any) -> str:
    """A report of runs (clients, first token in ms), each of 10 requests with 1,280 tokens."""
    trials = [
        {
            "requests": {"ok": 10, "failed": 0}, "output_tokens": 1280, "output_tok_s": 1000.0 / ttft, "ttft_ms": {"p50": ttft, "p95": ttft},
            "request_s": 1.0, "workload": {"concurrency": clients, "rate": None, "output_tokens": 128}, "settings": {"model": "m"}, **more,
        }
        for clients, ttft in runs
    ]  # fmt: skip
    path.write_text(json.dumps({"schema": "dstune.report/1", "trials": trials}))
    return str(path)


def test_sweeps_are_compared_load_by_load(tmp_path: Path, run_dstune: Any) -> None:
    """The mean over the steps hides that four clients wait twice as long, and is longer for a sweep that went further."""
    a = saved(tmp_path / "a.json", (1, 50), (2, 60), (4, 70))
    b = saved(tmp_path / "b.json", (1, 50), (2, 60), (4, 140), (8, 200))
    rows = {(v.load, v.claim): v for v in compare((a, b)).verdicts}
    assert rows["1 client", "ttft_ms p50"].met
    assert rows["2 clients", "ttft_ms p50"].after == 60
    assert not rows["4 clients", "ttft_ms p50"].met
    assert not any(load == "8 clients" for load, _ in rows)
    done = run_dstune("bench", "compare", a, b)
    assert done.stdout.index("4 clients") < done.stdout.index("worse")
    assert "8 clients" not in done.stdout
    with pytest.raises(DstuneError, match="no load in common"):
        compare((a, saved(tmp_path / "c.json", (16, 50))))


def test_what_else_differs_is_told(tmp_path: Path) -> None:
    a = saved(tmp_path / "a.json", (8, 50), (8, 51))
    same = compare((a, saved(tmp_path / "b.json", (8, 52))))
    assert same.notes == ()
    assert {v.load for v in same.verdicts} == {""}
    found = compare((a, saved(tmp_path / "c.json", (64, 50), output_tokens=320, client_bottleneck=True)))
    assert "load 8 clients / 64 clients" in found.notes[0]
    assert "128 / 32 tokens long" in found.notes[1]
    assert "bottleneck" in found.notes[2]
    assert "request_s" not in {v.claim for v in found.verdicts}


@pytest.mark.parametrize(
    ("where", "value"), [("failed", 1e308), ("failed", 10**400), ("errors", [1]), ("finish", {"length": 10**400})]
)
def test_figures_that_no_server_has(tmp_path: Path, where: str, value: Any) -> None:
    more: dict[str, Any] = {"requests": {"ok": 1, "failed": value}} if where == "failed" else {where: value}
    path = saved(tmp_path / "a.json", (8, 50), (8, 50), **more)
    for work in (lambda: compare((path, path)), lambda: of_run(path)):
        with contextlib.suppress(DstuneError):
            work()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sweep", "--rate", "5"), "--sweep takes no --rate"),
        (("--sweep", "-c", "8", "--repeat", "2"), "--sweep takes no --concurrency, --repeat"),
        (("--rate", "5", "-c", "8"), "--rate takes no --concurrency"),
        (("--behaviour", "--sweep", "--duration", "5s"), "--behaviour takes no --sweep, --duration"),
        (("--local", "/tmp", "--rate", "5"), "--local takes no --rate"),
        (("--gradio", "http://127.0.0.1:1", "--max-tokens", "8", "--model", "m"), "--gradio takes no --max-tokens, --model"),
    ],
)
def test_options_of_which_one_would_be_dropped(options: tuple[str, ...], said: str, run_dstune: Any) -> None:
    done = run_dstune("bench", *options)
    assert done.returncode == 2
    assert said in done.stderr


def test_files_that_are_no_reports(tmp_path: Path) -> None:
    good: dict[str, Any] = {"requests": {"ok": 1, "failed": 0}, "output_tok_s": 5.0, "ttft_ms": {"p50": 1.0}}
    odd: tuple[dict[str, Any], ...] = (
        {"requests": 5},
        {"requests": {}},
        {"output_tok_s": "abc"},
        {"ttft_ms": {"p50": []}},
        {"output_tok_s": float("nan")},
    )
    path = tmp_path / "bad.json"
    for bad in odd:
        path.write_text(json.dumps({"trials": [{**good, **bad}]}))
        with pytest.raises(DstuneError, match="no report"):
            outcomes(str(path))
    path.write_text('{"trials": []}')
    with pytest.raises(DstuneError, match="no report"):
        outcomes(str(path))
    path.write_text(json.dumps({"trials": [good]}))
    assert outcomes(str(path)) == [good]


def test_a_pipe_or_device_stays_what_it_is(tmp_path: Path) -> None:
    pipe, real, link = tmp_path / "pipe", tmp_path / "real.json", tmp_path / "link.json"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write(str(pipe), "hello")
    reader.join(5)
    assert got == ["hello"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    real.write_text("old")
    link.symlink_to(real)
    write(str(link), "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    with pytest.raises(OSError, match="nowhere") as error:
        write(str(tmp_path / "nowhere" / "x"), "")
    assert error.value.filename.endswith("nowhere/x")


def test_full_disk_does_not_cost_the_report(run_dstune: Any) -> None:
    process, url = start("--ttft-ms", "2", "--itl-ms", "1")
    try:
        done = run_dstune("bench", url, "-n", "2", "--max-tokens", "3", "--warmup", "0", "-o", "/dev/full")
    finally:
        process.kill()
        process.wait()
    assert "2 answered" in done.stdout
    assert done.returncode == 3
    assert "/dev/full" in done.stderr
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


@pytest.mark.slow
def test_workers_leave_with_a_parent_that_was_killed() -> None:
    process, url = start("--ttft-ms", "5", "--itl-ms", "2")
    parent = subprocess.Popen(
        [sys.executable, "-m", "dstune", "bench", url, "-c", "4", "--workers", "2", "--duration", "60s"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = time.monotonic() + 30
        while len(children := _children(parent.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(1.0)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        end = time.monotonic() + 10
        while any(_runs(c) for c in children) and time.monotonic() < end:
            time.sleep(0.1)
        assert len(children) >= 2
        assert not [c for c in children if _runs(c)]
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_ctrl_c_while_behaviour_is_asked_gives_the_report_so_far() -> None:
    process, url = start("--ttft-ms", "5", "--itl-ms", "2")
    try:
        asking = subprocess.Popen(
            [sys.executable, "-m", "dstune", "bench", url, "--behaviour", "-c", "1"], stdout=subprocess.PIPE, text=True
        )
        end = time.monotonic() + 30
        while time.monotonic() < end:
            time.sleep(0.2)
            with urllib.request.urlopen(f"{url}/stats") as f:
                if json.load(f)["asked"] >= 3:  # one client: two were answered, or cut since they loop
                    break
        asking.send_signal(signal.SIGINT)
        out, _ = asking.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert asking.returncode == 0
    assert "interrupted" in out
    assert "never stops" in out


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one", "two"])
def test_ctrl_c_pressed_twice_still_ends_with_the_report(workers: tuple[str, ...]) -> None:
    """The second signal fell into the ending of the first, which then nothing woke again: the command stood still for ever."""
    process, url = start("--ttft-ms", "5", "--itl-ms", "2")
    try:
        asking = subprocess.Popen(
            [sys.executable, "-m", "dstune", "bench", url, "-c", "4", "--max-tokens", "12", "--duration", "60s", *workers],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + 30
        while time.monotonic() < end:
            time.sleep(0.2)
            with urllib.request.urlopen(f"{url}/stats") as f:
                if json.load(f)["requests"] >= 20:
                    break
        for _ in range(2):
            os.killpg(asking.pid, signal.SIGINT)
            time.sleep(0.0005)
        out, _ = asking.communicate(timeout=20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(asking.pid, signal.SIGKILL)
        process.kill()
        process.wait()
    assert "interrupted: the figures so far" in out
    assert asking.returncode in (0, -signal.SIGINT), "a signal that comes when all is said finds an interpreter that is leaving"


@pytest.mark.slow
def test_several_processes_tell_their_progress() -> None:
    from dstune.load.run import Live
    from dstune.load.workers import trial as trial_of_many

    process, url = start("--ttft-ms", "5", "--itl-ms", "2")
    seen: list[tuple[int, int]] = []

    def tick(live: Live) -> None:
        seen.append((live.done, len(live.first_bytes)))

    try:
        options = Options(Workload(output_tokens=12, concurrency=4), model="mock", duration_s=2.0, warmup=0)
        found = trial_of_many(detect(url), options, 2, tick=tick).outcome
    finally:
        process.kill()
        process.wait()
    assert len(seen) > 3
    assert 0 < seen[1][0] < seen[-1][0] <= found["requests"]["ok"]
    assert seen[-1][1] == seen[-1][0]


@pytest.mark.parametrize("held", [b"sk-abc\nsecond", b"\xb4\xff\x00", "sk-\u00e4".encode()])
def test_file_that_holds_no_key(tmp_path: Path, held: bytes) -> None:
    (tmp_path / "key").write_bytes(held)
    with pytest.raises(DstuneError, match="no API key") as error:
        api_key(str(tmp_path / "key"))
    assert "sk-" not in str(error.value) + error.value.why


def _children(pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                line = Path("/proc", name, "stat").read_text()
                if int(line.rpartition(")")[2].split()[1]) == pid and b"workers" in Path("/proc", name, "cmdline").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_server_that_restarts_is_not_refused_thousands_of_times() -> None:
    """A port that nobody listens on for the whole load: each client asks ten times a second, and the load ends early."""
    found, _ = trial(Server("mock", "http://127.0.0.1:1", ("mock",)), Options(Workload(concurrency=2), duration_s=3, warmup=0))
    assert set(found.outcome["errors"]) == {"refused"}
    assert 8 <= found.outcome["requests"]["failed"] <= 62, (
        "two clients, ten times a second, for three seconds at most; late where the machine is busy"
    )


def busy(slots: int, answer_s: float, retry: str = "") -> Callable[[Any, Any], Any]:
    """A server with room for so many: the others get 503."""
    running = [0]

    async def handle(reader: Any, writer: Any) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next((int(h.split(b":")[1]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length")), 0)
            await reader.readexactly(length)
            if running[0] >= slots:
                writer.write(b"HTTP/1.1 503 Busy\r\n%scontent-length: 0\r\n\r\n" % retry.encode())
                continue
            running[0] += 1
            await asyncio.sleep(answer_s)
            running[0] -= 1
            said = b'{"choices":[{"message":{"content":"yes"}}],"usage":{"completion_tokens":1}}'
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(said), said)
            )

    return handle


def quick(kind: str, text: bytes, status: str) -> Callable[[Any, Any], Any]:
    """A server that answers every question with this at once."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(text)}\r\n\r\n".encode()

    async def handle(reader: Any, writer: Any) -> None:
        try:
            while True:
                asked = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(asked.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
                writer.write(head + text)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    return handle


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "text", "status", "error"),
    [
        ("text/html", b"<html>log in</html>", "200 OK", "no-json"),
        ("text/event-stream", b'data: {"error":{"message":"no"}}\n\n', "200 OK", "server-error"),
        ("text/event-stream", b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n', "200 OK", "empty"),
        ("text/plain", b"", "308 Permanent Redirect", "http-308"),
    ],
)
def test_failure_under_a_good_status_is_not_asked_thousands_of_times(
    talk: Serve, kind: str, text: bytes, status: str, error: str
) -> None:
    url = talk(quick(kind, text, status))
    options = Options(Workload(concurrency=2), model="m", duration_s=8.0, warmup=0)
    begin = time.monotonic()
    found, _ = trial(Server("unknown", url), options)
    assert found.outcome["errors"].keys() == {error}
    assert found.outcome["requests"]["failed"] < 60, "two clients, ten times a second, for two seconds"
    assert found.outcome["hopeless"] is True
    assert time.monotonic() - begin < 5


@pytest.mark.slow
def test_busy_server_is_asked_for_the_whole_duration(talk: Serve) -> None:
    """16 clients, room for 2: most are refused before the first answer is there; the load goes on, and clients come back later."""
    url = talk(busy(2, 1.2))
    found, _ = trial(Server("mock", url, ("mock",)), Options(Workload(concurrency=16), duration_s=4, warmup=0))
    o = found.outcome
    assert o["duration_s"] > 3.5
    assert o["requests"]["ok"] >= 4
    assert set(o["errors"]) == {"http-503"}
    assert o["errors"]["http-503"] < 14 * 4 / 0.2 / 2, "clients wait longer each time"
    assert "hopeless" not in o


def test_a_timer_that_ends_early_is_no_reason_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    sleep = asyncio.sleep

    async def early(seconds: float) -> None:
        await sleep(max(0.0, seconds - 0.01))

    async def ask(answer: Answer) -> None:
        asked.append(answer.number)
        answer.status, answer.sent = 503, 1.0

    monkeypatch.setattr(asyncio, "sleep", early)
    asyncio.run(closed_loop(ask, 1, None, 0.15, lambda answer: True))
    assert asked == [0], "the next one is due after 0.2 s, behind the end"


@pytest.mark.slow
def test_retry_after_is_kept_to(talk: Serve) -> None:
    url = talk(busy(0, 1.0, "Retry-After: 2\r\n"))
    found, _ = trial(Server("mock", url, ("mock",)), Options(Workload(concurrency=5), duration_s=3, warmup=0))
    assert found.outcome["errors"] == {"http-503": 10}, "at once, and after 2 s"


@pytest.mark.parametrize(
    ("said", "refused", "seconds"),
    [("", 0, 0.1), ("", 1, 0.2), ("", 3, 0.8), ("", 9, 2.0), ("7", 1, 7.0), ("9000", 1, 60.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 1, 0.2), ("-3", 1, 0.2), ("nan", 2, 0.4)],
)  # fmt: skip
def test_when_a_client_comes_back(said: str, refused: int, seconds: float) -> None:
    answer = Answer(0, 0.0, status=503, headers={"retry-after": said} if said else {})
    assert pause(answer, refused) == pytest.approx(seconds)


def repeated(*figures: float, **more: Any) -> tuple[Trial, ...]:
    outcome = {"requests": {"ok": 5, "failed": 0}, "errors": {}, "ttft_ms": None, "itl_ms": None}
    return tuple(
        Trial(
            Workload(concurrency=8),
            {"server": "unknown", "model": "m", "profile": "chat"},
            {**outcome, "output_tok_s": f, **more},
        )
        for f in figures
    )


def test_repeated_runs_show_their_spread() -> None:
    text = trials_text(repeated(100.0, 110.0, 90.0))
    assert "unknown server · m · chat" in text
    assert "mean of 3 runs (least–most):\n  tokens/s 100.0 (90.0–110.0)" in text
    assert "bottleneck" not in text


def test_a_table_says_that_the_client_was_the_bottleneck() -> None:
    assert trials_text(repeated(1.0, 2.0, client_bottleneck=True)).count("the client was the bottleneck") == 1


def test_texts_without_a_fault_are_said_to_have_none() -> None:
    low, high = interval(0, 24)
    assert low == 0
    assert f"none of 24 texts misbehaves (95 % interval 0–{high:.0%})" in behaviours_text((), 24)
    assert behaviours_text(()) == ""


def test_gradio_says_which_way_it_was_asked() -> None:
    one = replace(repeated(1.0)[0], settings={"server": "gradio", "server_version": "6.31.0", "dialect": "gradio"})
    assert "through the app's queue" in trials_text((one, one))


def test_every_probe_has_a_name() -> None:
    assert set(_PROBES) == set(CAUSES)


@pytest.mark.slow
def test_load_that_ends_early_says_so() -> None:
    found, _ = trial(Server("mock", "http://127.0.0.1:1", ("mock",)), Options(Workload(concurrency=4), duration_s=9, warmup=0))
    assert found.outcome["hopeless"]
    assert found.outcome["duration_s"] < 5
    assert "! ended after " in trials_text((found,))
    assert "requests, none answered" in trials_text((found,))


def gradio_reply(data: str) -> Reply:
    told = f'data: {{"msg":"process_completed","success":true,"output":{{"data":[{data}]}}}}\n\n'
    return gradio.read(body(told.encode(), "text/event-stream"))


def test_answer_without_text_is_none() -> None:
    """A page that shows nothing, and a stream of tokens that have no text."""
    assert (gradio_reply('""').error, gradio_reply('" \\n"').error, gradio_reply('"", []').error) == ("empty", "empty", "empty")
    assert gradio_reply('"Light."').error == ""
    usage = b'{"choices":[{"message":{"content":""}}],"usage":{"completion_tokens":9}}'
    assert (read(body(usage)).error, read(body(usage)).detail) == ("empty", "9 tokens, no text")
