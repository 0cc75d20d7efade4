"""The naive Gradio program, what `dstune fix` makes of it, and the program of `dstune generate app`, with a real small model on the CPU.

Greedy and in float32, so that texts can be compared to the letter. Speed of a shared CPU says little: only orders are held here.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from dstune.load.client import Answer
from dstune.load.gradio import read
from tests.real import servers
from tests.real.servers import Server, free_port, serve

QUESTIONS = ("What is the capital of France?", "Name three colours of the rainbow.", "Write one sentence about rain.")
TOKENS = 40
ENV = {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
REFERENCE = f"""
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tok = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
out = {{}}
for q in json.loads(sys.argv[2]):
    ids = tok(tok.apply_chat_template([{{"role": "user", "content": q}}], add_generation_prompt=True, tokenize=False), add_special_tokens=False, return_tensors="pt").input_ids
    done = model.generate(ids, max_new_tokens={TOKENS}, do_sample=False)[0, ids.shape[1]:]
    out[q] = tok.decode(done, skip_special_tokens=True)
print(json.dumps(out))
"""


@dataclass
class Reply:
    """An answer of the API: its text, when text first came and when it ended (seconds after the request)."""

    text: str
    first: float
    ended: float
    usage: dict[str, Any]


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    """What `generate` of transformers writes, greedily."""
    command = [servers.python("app"), "-c", REFERENCE, str(servers.MODEL), json.dumps(QUESTIONS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={"PATH": "/usr/bin:/bin", **ENV})
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def app(logs: Path) -> Iterator[Server]:
    """The generated program, three answers at once, one more waiting."""
    out = logs / "my-chat"
    words = [
        "generate",
        "app",
        "--gpu",
        "4090",
        "--model",
        str(servers.MODEL),
        "--mode",
        "throughput",
        "--concurrency",
        "3",
        "--context",
        "1024",
    ]
    subprocess.run([sys.executable, "-m", "dstune", *words, "-o", str(out)], check=True, capture_output=True)
    config = yaml.safe_load((out / "config.yaml").read_text())
    config["model"]["dtype"] = "float32"
    config["server"] |= {"port": free_port(), "queue": 1, "timeout": 300}
    config["generation"]["default"] |= {"temperature": 0, "max_new_tokens": TOKENS}
    (out / "config.yaml").write_text(yaml.safe_dump(config))
    port = config["server"]["port"]
    command = [servers.python("app"), str(out / "app.py"), "--config", str(out / "config.yaml")]
    with serve(command, port, "/v1/models", logs / "app.log", ENV) as server:
        end = time.monotonic() + 120
        while not _healthy(server.url) and time.monotonic() < end:
            time.sleep(0.3)
        assert _healthy(server.url), server.log.read_text()[-2000:]
        yield server


def _open(url: str, body: Any = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=300)


def _healthy(url: str) -> bool:
    try:
        return bool(_open(url + "/health").status == 200)
    except OSError:
        return False


def ask(url: str, question: str, **more: Any) -> Reply:
    """One streamed answer."""
    begin, first, text, usage = time.monotonic(), 0.0, "", {}
    body = {
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    with _open(url + "/v1/chat/completions", body) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                if event["choices"] and (piece := event["choices"][0]["delta"].get("content")):
                    text, first = text + piece, first or time.monotonic() - begin
    return Reply(text, first, time.monotonic() - begin, usage)


def together(url: str, questions: tuple[str, ...], **more: Any) -> list[Reply]:
    """All at once."""
    found: dict[int, Reply] = {}
    threads = [
        threading.Thread(target=lambda n=n, q=q: found.__setitem__(n, ask(url, q, **more))) for n, q in enumerate(questions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[n] for n in range(len(questions))]


def test_greedy_text_is_that_of_transformers_alone_and_in_a_batch(app: Server, reference: dict[str, str]) -> None:
    alone = [ask(app.url, q) for q in QUESTIONS]
    assert [r.text for r in alone] == [reference[q] for q in QUESTIONS]
    batch = together(app.url, QUESTIONS)
    assert [r.text for r in batch] == [reference[q] for q in QUESTIONS]
    assert any(r.usage["prompt_tokens_details"]["cached_tokens"] > 30 for r in batch), "the last question is still in its slot"


def test_text_comes_early_and_users_do_not_wait_for_each_other(app: Server) -> None:
    replies = together(app.url, QUESTIONS, ignore_eos=True, max_tokens=TOKENS)
    assert all(r.usage["completion_tokens"] == TOKENS for r in replies)
    first_end = min(r.ended for r in replies)
    assert max(r.first for r in replies) < first_end, "everyone has text before anyone is finished"


def test_a_full_queue_is_told(app: Server) -> None:
    codes: list[int] = []
    said: list[str] = []

    def one(n: int) -> None:
        try:
            ask(app.url, f"{n}: {QUESTIONS[1]}", ignore_eos=True, max_tokens=60)
            codes.append(200)
        except urllib.error.HTTPError as error:
            codes.append(error.code)
            said.append(error.read().decode())

    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes.count(503) >= 3
    assert codes.count(200) >= 4
    assert all("waiting already" in text for text in said)


def test_what_is_wrong_is_said(app: Server) -> None:
    for body, word in (
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, "leave room for an answer"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "the last one must be the user's"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "should be 'text'"),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            _open(app.url + "/v1/chat/completions", body)
        assert refused.value.code == 400
        assert word in json.loads(refused.value.read())["error"]["message"]


def test_what_is_too_large_is_refused_and_stops_nobody(app: Server) -> None:
    """Fifty million characters: a minute in which everybody's text stood still, and 3 GB."""
    before = psutil.Process(app.process.pid).memory_info().rss
    for size, code, word in (
        (50_000_000, 413, "a request has 8388608 at most"),
        (7_000_000, 400, "the prompt has 7000000 characters"),
    ):
        begin = time.monotonic()
        with pytest.raises(urllib.error.HTTPError) as refused:
            _open(app.url + "/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * size}]})
        assert refused.value.code == code
        assert word in json.loads(refused.value.read())["error"]["message"]
        assert time.monotonic() - begin < 5
    assert psutil.Process(app.process.pid).memory_info().rss - before < 200e6
    assert ask(app.url, "Half a character: \ud800", max_tokens=2).usage["completion_tokens"] == 2


NEUTRAL = {
    "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "logprobs": False, "n": 1, "frequency_penalty": 0, "presence_penalty": 0.0,
    "logit_bias": {}, "user": "u1", "seed": 7, "parallel_tool_calls": True, "store": False, "service_tier": "auto", "top_k": -1, "stop": None,
}  # fmt: skip


def test_fields_of_the_api_are_honoured_or_refused(app: Server, reference: dict[str, str]) -> None:
    """Greedy, so a seed is harmless; what asks for nothing changes nothing."""
    assert ask(app.url, QUESTIONS[0], **NEUTRAL).text == reference[QUESTIONS[0]]
    cut = ask(app.url, QUESTIONS[0], max_completion_tokens=3)
    assert cut.usage["completion_tokens"] == 3
    for more, said in (
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "tools: this server calls no tools"),
        ({"response_format": {"type": "json_object"}}, "response_format: "),
        ({"logprobs": True, "top_logprobs": 2}, "logprobs: "),
        ({"n": 2}, "n: one request gives one answer"),
        ({"seed": 7, "temperature": 1}, "seed: "),
        ({"presence_penalty": 1.5}, "presence_penalty: "),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}, {"role": "user", "content": "x"}]},
            "messages: this server calls no",
        ),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            _open(app.url + "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **more})
        assert refused.value.code == 400
        assert json.loads(refused.value.read())["error"]["message"].startswith(said)


def test_stop_texts_and_models_and_metrics(app: Server, reference: dict[str, str]) -> None:
    whole = reference[QUESTIONS[0]]
    assert ask(app.url, QUESTIONS[0], stop=["is"]).text == whole.split("is")[0]
    with _open(app.url + "/v1/models") as answer:
        assert json.load(answer)["data"][0]["max_model_len"] == 1024
    with _open(app.url + "/metrics") as answer:
        text = answer.read().decode()
    assert "chat_requests_stop_total" in text
    assert "chat_model_loaded 1" in text


def test_who_leaves_is_not_computed_for(app: Server) -> None:
    """Clients that close their connection, streaming or not, running or waiting, free their places at once."""
    body = {"messages": [{"role": "user", "content": QUESTIONS[1]}], "max_tokens": 700, "ignore_eos": True, "temperature": 0}
    host, port = app.url.removeprefix("http://").split(":")
    lines = []
    for stream in (True, False, True, False):
        data = json.dumps({**body, "stream": stream}).encode()
        line = socket.create_connection((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        line.sendall(head.encode() + data)
        lines.append(line)
    assert wait_for(lambda: gauge(app, "running") + gauge(app, "waiting") == 4), "all four are in"
    for line in lines:
        line.close()
    assert wait_for(lambda: gauge(app, "running") + gauge(app, "waiting") == 0), "none is computed for"


def gauge(app: Server, name: str) -> int:
    with _open(app.url + "/metrics") as answer:
        return int(re.search(rf"^chat_requests_{name} (\d+)", answer.read().decode(), re.MULTILINE)[1])  # type: ignore[index]


def wait_for(what: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.05)
    return what()


def gradio_answer(url: str, question: str, more: list[Any], route: str = "chat") -> tuple[str, float, float]:
    """Text, seconds to the first event with text, seconds to the end: through the page's queue, as a browser asks."""
    with _open(url + "/config") as found:
        config = json.load(found)
    number = next(d["id"] for d in config["dependencies"] if d.get("api_name") == route)
    session = f"s{time.monotonic_ns()}"
    begin = time.monotonic()
    _open(url + config["api_prefix"] + "/queue/join", {"data": [question, *more], "fn_index": number, "session_hash": session})
    pieces: list[tuple[float, bytes]] = []
    with _open(f"{url}{config['api_prefix']}/queue/data?session_hash={session}") as answer:
        while line := answer.readline():
            pieces.append((time.monotonic(), line))
            if b'"process_completed"' in line:
                pieces.append((time.monotonic(), b"\n"))
                break
    made = Answer(0, begin)
    made.sent, made.status, made.pieces, made.ended = begin, 200, pieces, time.monotonic()
    reply = read(made)
    assert not reply.error, (reply.error, reply.detail)
    return reply.text, (reply.ttft or 0.0), made.ended - begin


def test_the_page_streams_the_same_text(app: Server, reference: dict[str, str]) -> None:
    text, first, ended = gradio_answer(app.url, QUESTIONS[2], [[], None, None])
    # an answer that the limit cuts carries a remark
    assert text.split("\n\n*[")[0].strip() == reference[QUESTIONS[2]].strip()
    assert first < ended / 2


def test_the_page_says_that_it_is_busy(app: Server) -> None:
    """Three run and one waits; the fifth is told so in the page's words, by no queue of Gradio's."""
    found: list[str] = []

    def one(n: int) -> None:
        found.append(gradio_answer(app.url, f"{n}: {QUESTIONS[1]} And some more.", [[], None, 200])[0])

    threads = [threading.Thread(target=one, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    busy = [text for text in found if text.startswith("The server is busy: ")]
    assert len(busy) + 4 <= len(found) == 10
    assert busy


def naive(logs: Path, name: str, fixed: bool) -> tuple[list[str], int]:
    """The naive example for this model, greedy and on the CPU, `dstune fix` applied or not: its command and port."""
    port = free_port()
    source = (Path(__file__).parents[2] / "examples/gradio-naive-interface/app.py").read_text()
    for old, new in (
        ("/root/.cache/huggingface/deepseek-ai/DeepSeek-R1-Distill-Qwen-1___5B", str(servers.MODEL)),
        ("do_sample=True", "do_sample=False"), ("7860", str(port)),
    ):  # fmt: skip
        assert old in source
        source = source.replace(old, new)
    folder = logs / name
    folder.mkdir()
    (folder / "app.py").write_text(source)
    if fixed:
        done = subprocess.run(
            [sys.executable, "-m", "dstune", "fix", "--no-host", "--write", str(folder / "app.py")],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return [servers.python("app"), str(folder / "app.py")], port


def test_before_and_after(app: Server, logs: Path) -> None:
    """First text: the naive program shows it with the last, the fixed and the generated one early. Memory: not higher after."""
    shown: dict[str, float] = {}
    held: dict[str, int] = {}
    for name, fixed in (("naive", False), ("fixed", True)):
        command, port = naive(logs, name, fixed)
        with serve(command, port, "/config", logs / f"{name}.log", ENV) as server:
            with _open(server.url + "/config") as found:
                config = json.load(found)
            route = next(d["api_name"] for d in config["dependencies"] if d.get("api_name") in ("predict", "chat", "submit"))
            text, first, ended = gradio_answer(server.url, QUESTIONS[1], [0.6, TOKENS], route)
            assert text
            shown[name] = first / ended
            held[name] = psutil.Process(server.process.pid).memory_info().rss
    _, first, ended = gradio_answer(app.url, QUESTIONS[1] + " Please.", [[], None, None])
    shown["generated"] = first / ended
    assert shown["naive"] > 0.95
    assert shown["fixed"] < 0.6
    assert shown["generated"] < 0.6
    assert held["fixed"] < 1.1 * held["naive"]


@pytest.mark.parametrize(
    ("section", "changed", "said"),
    [
        ("model", {"path": "/nowhere/model"}, "model.path: there is no folder /nowhere/model"),
        ("model", {"path": "no-one/no-model"}, "model.path: no-one/no-model cannot be read: "),
        ("model", {"quantization": "nf4"}, "model.quantization: nf4 needs an NVIDIA card, and torch 2."),
        ("server", {}, "server.port: "),  # the port that the running app holds
    ],
)
def test_what_is_missing_is_said(logs: Path, app: Server, section: str, changed: dict[str, Any], said: str) -> None:
    out = logs / "my-chat"
    config = yaml.safe_load((out / "config.yaml").read_text())
    config["server"]["port"] = config["server"]["port"] if section == "server" else free_port()
    config[section] |= changed
    (logs / "lost.yaml").write_text(yaml.safe_dump(config))
    command = [servers.python("app"), str(out / "app.py"), "--config", str(logs / "lost.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"PATH": "/usr/bin:/bin", **ENV})
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_file_is_said_by_the_worker(logs: Path, app: Server) -> None:
    """What only loading can find: one sentence, and the process ends."""
    out, folder = logs / "my-chat", logs / "damaged"
    folder.mkdir()
    for path in servers.MODEL.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).symlink_to(path)
    (folder / "model.safetensors").write_bytes((servers.MODEL / "model.safetensors").read_bytes()[:200_000])
    config = yaml.safe_load((out / "config.yaml").read_text())
    config["model"]["path"], config["server"]["port"] = str(folder), free_port()
    (logs / "damaged.yaml").write_text(yaml.safe_dump(config))
    command = [servers.python("app"), str(out / "app.py"), "--config", str(logs / "damaged.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"PATH": "/usr/bin:/bin", **ENV})
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"model.path: a file of {folder} is damaged (")
    assert "Traceback" not in done.stderr


def test_it_ends_in_order(app: Server) -> None:
    """The last test of this file: a signal ends the server while answers run, one waits and a page is open. What runs ends whole."""
    found: list[Reply] = []
    codes: list[int] = []
    with _open(app.url + "/config") as answer:
        prefix = json.load(answer)["api_prefix"]
    page = _open(f"{app.url}{prefix}/heartbeat/open")
    assert b"ALIVE" in page.readline()

    def one(n: int) -> None:
        try:
            found.append(ask(app.url, f"{n}: {QUESTIONS[1]} Now.", ignore_eos=True, max_tokens=TOKENS))
        except urllib.error.HTTPError as error:
            codes.append(error.code)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    assert wait_for(lambda: (gauge(app, "running"), gauge(app, "waiting")) == (3, 1))
    app.process.terminate()
    for thread in threads:
        thread.join(60)
    assert [reply.usage["completion_tokens"] for reply in found] == [TOKENS] * 3
    assert codes == [503], "who has no place yet is told to come back"
    assert app.process.wait(10) in (0, -15)  # uvicorn ends in order, then as the signal says; it waits for no open page
    assert "server stopped" in app.log.read_text()
    assert "Traceback" not in app.log.read_text()
