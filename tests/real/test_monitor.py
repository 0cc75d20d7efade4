"""The monitor in a real terminal beside a real vLLM: a load makes the finding, its fix is read, written and taken back."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import test_monitor_terminal as base
from tests.real.servers import Server
from tests.test_monitor_terminal import Terminal

LAUNCH = "#!/bin/sh\nexec vllm serve smollm2 --served-model-name smollm2 --max-model-len 2048 --max-num-seqs 8\n"


terminal, env, monitor = base.terminal, base.env, base.monitor
"""The fixtures of those tests: tmux, the stand-in NVML library, the command."""


@pytest.fixture
def screen(terminal: Terminal, env: dict[str, str], vllm: Server, monitor: Callable[..., str], tmp_path: Path) -> Terminal:
    """The monitor beside the server, with its launch script and its log."""
    (tmp_path / "launch.sh").write_text(LAUNCH)
    terminal.start(monitor(vllm.url, "--file", "launch.sh", "--log", vllm.log), env)
    return terminal


def test_load_finding_fix_and_back(screen: Terminal, tmp_path: Path) -> None:
    before = screen.until("smollm2", r"running \d", "TTFT", seconds=90)
    assert "admission-limit-with-free-kv" not in before
    screen.keys("3", "c", "c", "s")
    screen.until("32 clients", r"[1-9]\d* answers", seconds=120)
    screen.keys("1")
    screen.until(r"running 8 +waiting \d\d", "admission-limit-with-free-kv", seconds=60)
    screen.keys("2")
    screen.until("admission-limit-with-free-kv")
    screen.keys("F")
    shown = screen.until(r"\+\+\+ .*launch.sh", r"\+exec vllm serve")
    assert re.search(r"\+exec vllm serve.*--max-num-seqs \d+", shown)
    screen.keys("w")
    screen.until("Write the shown changes to", "launch.sh")
    screen.keys("y")
    screen.until("written; u")
    assert "--max-num-seqs 8\n" not in (tmp_path / "launch.sh").read_text()
    screen.keys("u")
    screen.until("Take the last write back")
    screen.keys("y")
    screen.until("taken back")
    assert (tmp_path / "launch.sh").read_text() == LAUNCH
    screen.keys("3")
    screen.until("first token", "requests/s", seconds=120)  # the load has ended, and says what it measured
    screen.keys("q")
    screen.until("STATUS 0")
