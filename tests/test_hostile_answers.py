"""Servers, model folders and interpreters that lie: an error by name, within seconds and in bounded memory."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dstune.catalog.model_config import from_dir, header
from dstune.errors import DstuneError, UnobservableError
from dstune.load.answers import read
from dstune.load.client import MAX_BODY, Answer, Connection
from dstune.load.detect import detect, fetch
from dstune.probes.reading import run
from dstune.probes.server import _Client, read_endpoint

OK = b"HTTP/1.1 200 OK\r\n"
CONFIG = {"model_type": "qwen2", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 10}


@pytest.fixture
def liar() -> Iterator[Callable[[list[bytes], float], str]]:
    """`liar(pieces, pause)`: the address of a server that answers anything with these pieces, again and again with a pause."""
    listening: list[socket.socket] = []

    def start(pieces: list[bytes], pause: float = 0.0) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def answer(peer: socket.socket) -> None:
            with peer:
                try:
                    peer.recv(65536)
                    for piece in pieces:
                        peer.sendall(piece)
                    while pause:
                        time.sleep(pause)
                        peer.sendall(pieces[-1])
                except OSError:
                    pass

        def accept() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(peer,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server in listening:
        server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff\x16\x03\r\n\r\n" * 10,
        OK + b"X: y\r\n" * 1000 + b"\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFFFF\r\nhi\r\n-1\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"",
    ],
)
def test_no_http_is_no_answer(answer: bytes, liar: Callable[..., str]) -> None:
    with pytest.raises(UnobservableError, match="does not answer"):
        fetch(liar([answer]) + "/v1/models")


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b"x", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_trickle_is_given_up(piece: bytes, liar: Callable[..., str]) -> None:
    url = liar([b"HTTP/1.1 100 Continue\r\n\r\n", piece], 0.05)
    began = time.monotonic()
    with pytest.raises(UnobservableError):
        fetch(url, timeout_s=0.5)
    assert isinstance(_Client(url, 0.5).get("/health"), str)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:abc", "http://127.0.0.1:99999"])
def test_addresses_that_are_none(url: str) -> None:
    for ask in (detect, read_endpoint):
        with pytest.raises(DstuneError, match="no http address"):
            ask(url)


EVENTS = (
    {"choices": 5}, {"choices": [None]}, {"choices": [{"delta": 5}]}, {"choices": [{"delta": {"content": {"a": 1}}}]}, [], 7, None,
    {"choices": [{"message": {"content": 5}}]}, {"usage": {"completion_tokens": "x"}, "choices": []}, {"usage": 5, "choices": {"a": 1}},
)  # fmt: skip


@pytest.mark.parametrize("event", EVENTS)
def test_events_of_another_shape(event: object) -> None:
    data = json.dumps(event).encode()
    for kind, body in (("text/event-stream", b"data: " + data + b"\n\n"), ("application/json", data)):
        assert read(Answer(0, 0.0, 0.0, 1.0, 200, {"content-type": kind}, [(0.5, body)])).error


def test_an_answer_without_end_is_dropped() -> None:
    import asyncio

    async def ask() -> tuple[Answer, Answer]:
        answers = []
        for pieces in (
            [OK + b"\r\n"] + [b"x" * (1 << 20)] * (2 + MAX_BODY // (1 << 20)),
            [OK] + [b"X-Y: " + b"a" * 1000 + b"\r\n"] * 3000,
        ):
            connection = Connection()
            connection.transport = _Deaf()  # type: ignore[assignment]
            answer = Answer(0, 0.0)
            asking = asyncio.create_task(connection.ask(b"GET / HTTP/1.1\r\n\r\n", answer, 10))
            await asyncio.sleep(0)
            for piece in pieces:
                connection.data_received(piece)
            await asking
            answers.append(answer)
        return answers[0], answers[1]

    for answer in asyncio.run(ask()):
        assert (answer.error, answer.pieces, answer.headers) == ("too-long", [], {})


class _Deaf:
    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...


@pytest.mark.parametrize(
    "config",
    ["[1]", "5", "[" * 100_000, "", json.dumps({**CONFIG, "hidden_size": "x"}), json.dumps({**CONFIG, "num_attention_heads": []}),
     json.dumps({**CONFIG, "vocab_size": float("inf")}), json.dumps({**CONFIG, "text_config": 5})],
)  # fmt: skip
def test_config_that_is_none(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(DstuneError, match=r"config\.json"):
        from_dir(tmp_path)


def test_config_of_a_gigabyte_or_a_pipe(tmp_path: Path) -> None:
    import os

    with (tmp_path / "config.json").open("wb") as f:
        f.truncate(1 << 30)
    with pytest.raises(DstuneError, match=r"config\.json"):
        from_dir(tmp_path)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(DstuneError, match=r"config\.json"):
        from_dir(tmp_path)
    assert header(tmp_path / "model.safetensors") == {}


@pytest.mark.parametrize(
    "table",
    [b"[" * 1000, b"[]", b"5", b'{"a": 5, "b": [], "c": {}}', b'{"a": {"shape": [-1], "dtype": "BF16"}}',
     b'{"a": {"shape": ["x"], "dtype": "BF16"}}', b'{"a": {"shape": [1e400], "dtype": 5}}'],
)  # fmt: skip
def test_headers_of_no_tensors(table: bytes, tmp_path: Path) -> None:
    for size in (len(table), 2**63, 10**8):
        (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", size) + table)
        assert header(tmp_path / "model.safetensors") == {}


def test_interpreters_that_do_not_answer() -> None:
    began = time.monotonic()
    assert run(["yes", "garbage"]) is None
    assert run(["sh", "-c", "trap '' TERM INT; sleep 500 & sleep 500"], 0.5) is None
    assert run(["sh", "-c", "sleep 500 & echo out"], 0.5) == "out\n"
    assert run(["sh", "-c", "echo out; exit 3"]) is None
    assert time.monotonic() - began < 10
