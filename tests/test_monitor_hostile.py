"""The monitor where things go wrong: a driver that hangs, text that commands terminals, recordings that are no recordings."""

import io
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from dstune import lang
from dstune.derive import derive
from dstune.diagnose import diagnose
from dstune.errors import DstuneError
from dstune.model import Evidence, Fact, Gap
from dstune.probes import nvidia_watch
from dstune.probes.nvidia_watch import GpuWatch
from dstune.probes.server import read_endpoint
from dstune.tui import logs, sampling
from dstune.tui.app import Monitor
from dstune.tui.card import card
from dstune.tui.feed import CannedFeed, LiveFeed
from dstune.tui.panel import Panel, harmless
from dstune.tui.state import State
from tests import monitor_samples as canned
from tests import test_monitor_feed as feeds
from tests.test_monitor import session, until
from tests.test_monitor_feed import wait

library, snapshot, watch = feeds.library, feeds.snapshot, feeds.watch
"""The fixtures of those tests: the stand-in NVML library, a board of it, a watch that is ended."""


def reasons(gpus: GpuWatch) -> list[str]:
    return [i.reason for i in gpus.latest() if isinstance(i, Gap) and i.name == "*"]


@pytest.mark.slow
def test_a_driver_that_hung_is_called_so_until_it_answers(
    snapshot: Callable[..., Path], watch: Callable[..., GpuWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child that waited in the driver is ended; why there are no readings must not change with that."""
    monkeypatch.setattr(nvidia_watch, "STALE_S", 0.6)
    monkeypatch.setattr(nvidia_watch, "AGAIN_S", 1.5)
    board = snapshot("stuck")
    gpus = watch()
    wait(lambda: reasons(gpus))
    end = time.monotonic() + 1.2  # the child is dead by now, and none runs in its place
    while time.monotonic() < end:
        assert reasons(gpus) == ["the NVIDIA driver does not answer"]
        time.sleep(0.05)
    board.write_text((feeds.HERE / "fakenvml" / "t4.ini").read_text())
    monkeypatch.setattr(nvidia_watch, "STALE_S", 10.0)
    wait(lambda: feeds.value(gpus.latest(), "gpu0", "name") == "Tesla T4")
    assert reasons(gpus) == []


def test_readings_from_before_a_hang_are_not_shown_as_of_now() -> None:
    feed = LiveFeed(["http://127.0.0.1:9"], 0.2)
    feed._gpus.close()

    class Silent:
        def latest(self) -> list[Fact | Gap]:
            return [Gap("gpu", "*", "the NVIDIA driver does not answer")]

        def well(self) -> bool:
            return False

        def close(self) -> None:
            pass

    feed._gpus = Silent()  # type: ignore[assignment]
    feed._quick, feed._read_at = False, time.monotonic()
    feed._still = Evidence((*canned.card(0), *canned.process(0, 0, 20100, "vllm serve m")))
    seen = feed.sample()
    feed.close()
    assert seen is not None
    state = State()
    state.take(seen, None)
    assert state.value("gpu0", "name") == "NVIDIA GeForce RTX 4090"
    assert state.value("gpu0", "memory_total_mib") == 24564
    for name in ("utilization_pct", "memory_used_mib", "power_draw_w", "temperature_c", "clock_event_reasons"):
        assert state.value("gpu0", name) is None
    assert state.processes() == []
    shown = "\n".join(line.plain for line in card(state, "gpu0", 78, 1))
    assert "97%" not in shown
    assert "-/24.0G" in shown


def test_text_of_others_does_not_command_the_terminal() -> None:
    """C1 controls (0x9B is ESC [, 0x90 swallows what follows), and signs that turn the order of letters."""
    hostile = "a\x9b2Jb\x90c\x1b]0;t\x07d\x7fe\u202ef"
    shown = harmless(Text(hostile, "red")).plain
    assert shown == "a\ufffd2Jb\ufffdc\ufffd]0;td\ufffde\ufffdf"  # rich itself drops the bell
    letters = "中文 é ▶ 😀 …"
    assert harmless(Text(letters)).plain == letters

    async def look(pilot: object, app: Monitor) -> None:
        panel = app.query_one("#overview", Panel)
        panel.show([Text(hostile, "red"), Text("next")])
        out = io.StringIO()
        Console(file=out, force_terminal=True).print(*panel.render_line(0))
        assert not any(c in out.getvalue() for c in "\x9b\x90\x7f\u202e")

    session(look)


def test_a_log_of_junk_leaves_the_other_lines_where_they_are(tmp_path: Path) -> None:
    log = tmp_path / "junk.log"
    log.write_bytes(bytes(range(256)) * 40 + "\n\x1b[2Jlast \u0090 line\n".encode())

    async def look(pilot: object, app: Monitor) -> None:
        await until(pilot, lambda: app.log_state.number > 1, "the log")
        panel = app.query_one("#log", Panel)
        text = "\n".join("".join(s.text for s in panel.render_line(y)) for y in range(panel.size.height))
        assert "last \ufffd line" in text
        assert not [c for c in text if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f"]

    session(look, Monitor(canned.feed(3), log=str(log), actions=canned.actions(), start="log"))


def test_trouble_is_told_in_words_not_by_the_name_of_a_class() -> None:
    assert (
        sampling.worded(DstuneError("x.json is no evidence", "Expecting value", "")) == "x.json is no evidence: Expecting value"
    )
    assert sampling.worded(ValueError("bad")) == "ValueError: bad"


def test_where_the_samples_come_from_follows_the_language() -> None:
    feed = LiveFeed(["http://127.0.0.1:9"], 1.0)
    feed.close()
    lang.use("zh")
    assert feed.place == "实时，1 秒"
    lang.use("en")
    assert feed.place == "live, 1 s"


def test_temperature_without_a_known_limit_is_drawn_of_100() -> None:
    state = State()
    facts = [f for f in canned.card(0, temperature_c=44) if f.name != "temperature_slowdown_c"]
    for _ in range(3):
        state.take(Evidence(tuple(facts)), None)
    lines = [line.plain for line in card(state, "gpu0", 80, 2, 10)]
    assert any("temperature °C, of 100" in line for line in lines)


def test_no_sample_at_all_is_no_crash() -> None:
    async def look(pilot: object, app: Monitor) -> None:
        assert "reading" in app.text_of("overview")

    session(look, Monitor(CannedFeed([])))


def test_a_server_that_hangs_is_not_said_to_be_gone() -> None:
    """A listener that never accepts: the kernel takes the connection, nobody answers, nothing was refused."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        found = read_endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.3)
    causes = {f.cause for f in diagnose(derive(found)).findings}
    assert "server-silent" in causes
    assert "server-not-running" not in causes


def test_a_server_on_the_loopback_of_a_container_is_no_error_to_who_stands_in_it() -> None:
    """Whatever order the facts come in: the log first, the container with the slow reading, the server when it answered."""
    log = logs.LogState(source="server.log")
    log.feed("INFO:     Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)\n")
    container = canned.facts("container", inside=True, libcuda=False)
    up = canned.server()
    for facts in ([], up, container, [*container, *up]):
        found = diagnose(derive(Evidence(tuple(facts)).merged(log.evidence)))
        assert "bind-address-loopback" not in {f.cause for f in found.findings}
    assert "bind-address-loopback" in {u.cause for u in found.unknown}  # open, with what would decide it
    published = [*container, *canned.facts("docker", publishes=True)]
    found = diagnose(derive(Evidence(tuple(published)).merged(log.evidence)))
    assert "bind-address-loopback" in {f.cause for f in found.findings}
