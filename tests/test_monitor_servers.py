"""Several servers at once in the monitor: real ones, live, one of them killed and started again."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dstune.model import Evidence
from dstune.tui.app import Monitor
from dstune.tui.doctor import View, doctor
from dstune.tui.doing import Actions
from dstune.tui.feed import LiveFeed
from dstune.tui.overview import overview
from dstune.tui.state import State
from tests import monitor_samples as canned

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
QUEUE = ROOT / "tests" / "data" / "scenario_queue.prom"


class Server:
    """A mock server that can be killed and started again on its port."""

    def __init__(self, metrics: str = "") -> None:
        self.port, self.metrics = 0, metrics
        self.start()

    def start(self) -> None:
        words = ["--port", str(self.port), "--ttft-ms", "20", "--itl-ms", "1"]
        words += ["--metrics", self.metrics] if self.metrics else []
        self.child = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.mock", *words], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self.child.stdout is not None
        self.port = int(self.child.stdout.readline().split()[1])

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    made = Server(str(QUEUE)), Server()
    yield made
    for one in made:
        one.kill()


async def until(pilot: Any, seen: Callable[[], object], what: str) -> None:
    for _ in range(300):
        await pilot.pause(0.05)
        if seen():
            return
    raise AssertionError(f"never seen: {what}\n{pilot.app.text_of('overview')}")


def session(test: Callable[[Any, Monitor], Awaitable[None]], *servers: Server, size: tuple[int, int] = (100, 30)) -> None:
    async def run() -> None:
        app = Monitor(LiveFeed([s.url for s in servers], 0.2), servers[0].url, actions=Actions())
        async with app.run_test(size=size) as pilot:
            await test(pilot, app)

    asyncio.run(run())


def row(app: Monitor, server: Server) -> str:
    """The line of a server on the Overview, "" where there is none."""
    return next((line for line in app.text_of("overview").splitlines() if f":{server.port}" in line), "")


def test_two_servers_one_killed_and_back(pair: tuple[Server, Server]) -> None:
    first, second = pair

    async def watch(pilot: Any, app: Monitor) -> None:
        await until(pilot, lambda: re.search(r"\d+ +\d+ .*%", row(app, first)), "figures of the first")
        await until(pilot, lambda: "mock" in row(app, second), "the model of the second")
        second.kill()
        await until(pilot, lambda: "does not answer" in row(app, second), "that the second is gone")
        assert "does not answer" not in row(app, first)
        second.start()
        await until(pilot, lambda: row(app, second) and "does not answer" not in row(app, second), "that the second is back")

    session(watch, first, second)


def test_load_goes_to_the_server_that_is_chosen(pair: tuple[Server, Server]) -> None:
    first, second = pair

    async def choose(pilot: Any, app: Monitor) -> None:
        app.load_seconds = 0.8
        await until(pilot, lambda: len(app.state.urls()) == 2, "both servers")
        await pilot.press("3")
        assert first.url in app.text_of()
        await pilot.press("e")
        assert second.url in app.text_of()
        await pilot.press("s")
        await until(pilot, lambda: app.load.outcome is not None and not app.load.running, "the load")
        assert app.load.ran == second.url
        await pilot.press("E", "s")
        await until(pilot, lambda: app.load.ran == first.url and not app.load.running, "the load of the first")
        assert app.load.before is None  # another server is no run before

    session(choose, first, second)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_what_tells_servers_apart_is_seen(width: int) -> None:
    made = [
        *canned.card(0),
        *canned.HOST,
        *canned.server(),
        *canned.server("server1", url="http://10.0.3.7:8001", models=["Qwen/Qwen3-4B-Instruct-2507"], waiting=0),
        *canned.server("server2", url="http://127.0.0.1:8002", reachable=False),
    ]
    state = State()
    state.take(Evidence(tuple(made)), None)
    lines = [line.plain for line in overview(state, width - 1, 40)]
    shown = "\n".join(lines)
    assert re.search(r":8000.*R1", shown)
    assert re.search(r"10\.0\.3\.7:8001.*Qwen3-4B", shown)
    assert re.search(r":8002.*does not answer", shown)
    assert "batch-limit-too-small" not in shown
    state.diagnosis, state.diagnosed = canned.diagnosis(), True
    shown = "\n".join(line.plain for line in overview(state, width - 1, 40))
    assert ":8000 batch-limit-too-small" in shown  # which of the servers it is about
    assert "batch-limit-too-small @ :8000" in "\n".join(line.plain for line in doctor(state, View(), width)[0])
    if width == 200:
        assert shown.count("prefix hits") == 2  # room for all figures of each
