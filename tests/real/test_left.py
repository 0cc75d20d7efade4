"""What `dstune fix` writes stops generating when its reader leaves: seen from outside, the process has nothing to do any more."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.real import servers
from tests.real.servers import Server, free_port, serve

ENV = {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def fixed(logs: Path) -> Iterator[Server]:
    """The page and the route of apps/both.py after `dstune fix`. Each answer has 2,000 tokens."""
    port, program = free_port(), logs / "both.py"
    program.write_text((servers.HERE / "apps/both.py").read_text())
    command = [sys.executable, "-m", "dstune", "fix", "--no-host", "--advice", "--write", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert program.read_text().count(".is_set()") == 2, done.stdout + done.stderr
    command = [servers.python("app"), str(program), str(port), str(servers.MODEL)]
    with serve(command, port, "/page/config", logs / "both.log", ENV) as server:
        yield server


def _open(url: str, body: Any = None, method: str = "GET") -> Any:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST" if data else method)
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60)


def route(server: Server) -> Callable[[], None]:
    """Reads the first events of the streaming route; the call that is given back closes the connection."""
    answer = _open(server.url + "/ask/stream?question=Name%20all%20rivers.", method="POST")
    assert b"data: " in answer.readline()
    return answer.close  # type: ignore[no-any-return]


def page(server: Server) -> Callable[[], None]:
    """As a browser: joins the queue, reads until text comes; then the page is closed."""
    with _open(server.url + "/page/config") as found:
        config = json.load(found)
    number = next(d["id"] for d in config["dependencies"] if d.get("api_name") == "predict")
    root = server.url + "/page" + config.get("api_prefix", "")
    _open(f"{root}/queue/join", {"data": ["Name all rivers."], "fn_index": number, "session_hash": "leaves"})
    answer = _open(f"{root}/queue/data?session_hash=leaves")
    while b"process_generating" not in answer.readline():
        pass
    return answer.close  # type: ignore[no-any-return]


@pytest.mark.parametrize("come", [route, page])
def test_nobody_reads_and_nothing_is_generated(fixed: Server, come: Callable[[Server], Callable[[], None]]) -> None:
    process = psutil.Process(fixed.process.pid)

    def busy(seconds: float = 1.0) -> float:
        """Seconds of processor time a second."""
        before = sum(process.cpu_times()[:2])
        time.sleep(seconds)
        return (sum(process.cpu_times()[:2]) - before) / seconds

    leave = come(fixed)
    assert busy() > 0.2, "it generates while somebody reads"
    leave()
    end = time.monotonic() + 15
    while (now := busy()) > 0.1 and time.monotonic() < end:
        pass
    assert now < 0.1, "it goes on generating for nobody"
