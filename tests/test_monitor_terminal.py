"""The monitor in a real terminal (tmux), against the stand-in NVML library and a real server: a whole sitting, and every way out."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LAUNCH = "#!/bin/sh\nexec vllm serve deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B --max-model-len 8192 --max-num-seqs 4\n"
PATIENCE_S = 120
"""For one word to tmux. It answers in milliseconds, but a shared machine has once stood still for more than 20 seconds."""


class Terminal:
    """A tmux session of its own server; `screen()` is what a person sees."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "tmux")
        self.folder = folder

    def tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", self.socket, *words], capture_output=True, text=True, timeout=PATIENCE_S
        )
        return done.stdout

    def start(self, command: str, env: dict[str, str], size: tuple[int, int] = (100, 30)) -> None:
        script = self.folder / "run.sh"
        settings = "".join(f"export {k}='{v}'\n" for k, v in env.items())
        script.write_text(
            f"{settings}cd '{self.folder}'\n{command}\necho STATUS $?\nstty -a | tr ';' '\\n' | grep -w -e echo -e icanon\nsleep 600\n"
        )
        self.tmux("new-session", "-d", "-s", "t", "-x", str(size[0]), "-y", str(size[1]), f"sh {script}")

    def keys(self, *keys: str) -> None:
        for key in keys:
            self.tmux("send-keys", "-t", "t", key)
            time.sleep(0.05)

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p", "-t", "t")

    def until(self, *words: str, seconds: float = 60) -> str:
        """The screen that shows all words. Raises `AssertionError` when it is late, but only after a hundred looks: a machine that
        stands still for a while spends the seconds, not the looks."""
        end = time.monotonic() + seconds
        looks = 0
        while looks < 100 or time.monotonic() < end:
            shown = self.screen()
            if all(re.search(w, shown) for w in words):
                return shown
            time.sleep(0.1)
            looks += 1
        raise AssertionError(f"never seen: {words}\n{shown}")

    def child(self) -> int:
        """Process id of the monitor in the pane."""
        shell = self.tmux("display-message", "-p", "-t", "t", "#{pane_pid}").strip()
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", shell], capture_output=True, text=True).stdout.split()
        return int(found[0])


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if not shutil.which("tmux") or not shutil.which("gcc"):
        pytest.fail("these tests need tmux and gcc")
    made = Terminal(tmp_path)
    yield made
    made.tmux("kill-server")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    source = ROOT / "tests" / "fakenvml" / "fakenvml.c"
    target = tmp_path / "nvml" / "libnvidia-ml.so.1"
    target.parent.mkdir()
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1", "-o", target, source], check=True)
    board = tmp_path / "board.ini"
    board.write_text((ROOT / "tests" / "fakenvml" / "rtx4090-thermal.ini").read_text())
    return {
        "LD_LIBRARY_PATH": str(target.parent), "FAKENVML": str(board), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"],
    }  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[int]:
    pages = tmp_path / "metrics.prom"
    pages.write_text((ROOT / "tests" / "data" / "scenario_queue.prom").read_text())
    command = [
        sys.executable,
        "-m",
        "tests.servers.mock",
        "--ttft-ms",
        "30",
        "--itl-ms",
        "2",
        "--tokens",
        "32",
        "--metrics",
        str(pages),
    ]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    yield int(child.stdout.readline().split()[1])
    child.kill()
    child.wait()


@pytest.fixture
def monitor() -> Callable[..., str]:
    def command(*words: object) -> str:
        return " ".join([sys.executable, "-m", "dstune", "monitor", *map(str, words)])

    return command


def test_a_sitting(terminal: Terminal, env: dict[str, str], server: int, monitor: Callable[..., str], tmp_path: Path) -> None:
    """Look, load, see the findings change, read a fix as a diff, write it, take it back, leave."""
    launch = tmp_path / "launch.sh"
    launch.write_text(LAUNCH)
    terminal.start(monitor(f"http://127.0.0.1:{server}", "--file", "launch.sh", "--log", "server.log"), env)
    terminal.until("RTX 4090", "running", "gpu-throttled-thermal-power", "HW hot|HW slowdown")
    before = terminal.until(r"Doctor·(\d+)")
    terminal.keys("3", "s")
    terminal.until(r"\d+ answers", "first byte")
    (tmp_path / "server.log").write_text("ValueError: To serve at least one request with the model's max seq len (8192), (0.18 GiB KV cache is needed, "
                                         "which is larger than the available KV cache memory (0.05 GiB). Based on the available memory, the estimated maximum model length is 2432.\n")  # fmt: skip
    terminal.keys("2")
    terminal.until("vllm-max-len-exceeds-kv")
    assert "vllm-max-len-exceeds-kv" not in before
    terminal.keys("3", "s")
    terminal.until("first token", "requests/s")
    terminal.keys("2", "F")
    terminal.until(r"\+\+\+ .*launch.sh", r"\+.*--max-model-len 2", "-exec vllm serve")
    assert launch.read_text() == LAUNCH
    terminal.keys("w")
    terminal.until("Write the shown changes to", "launch.sh", "y yes")
    terminal.keys("y")
    terminal.until("written; u")
    assert "--max-model-len 2304" in launch.read_text()
    terminal.keys("u")
    terminal.until("Take the last write back", "launch.sh")
    terminal.keys("y")
    terminal.until("taken back")
    assert launch.read_text() == LAUNCH
    terminal.keys("q")
    terminal.until("STATUS 0", " echo", " icanon")


@pytest.mark.parametrize(
    ("how", "status"), [("q", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)], ids=str
)
def test_every_way_out_gives_the_terminal_back(
    terminal: Terminal, env: dict[str, str], monitor: Callable[..., str], how: str | signal.Signals, status: int
) -> None:
    terminal.start(monitor("--ascii"), env, (80, 24))
    terminal.until("RTX 4090")
    if isinstance(how, str):
        terminal.keys(how)
    else:
        os.kill(terminal.child(), how)
    shown = terminal.until(f"STATUS {status}", r"(^|\s)echo", r"(^|\s)icanon")
    assert "RTX 4090" not in shown  # the alternate screen is left
    assert not re.search(r"(^|\s)-(echo|icanon)(\s|$)", shown)


def test_resized_to_nothing_and_back_while_the_card_is_lost(
    terminal: Terminal, env: dict[str, str], monitor: Callable[..., str]
) -> None:
    terminal.start(monitor(), env)
    terminal.until("RTX 4090")
    terminal.tmux("resize-window", "-t", "t", "-x", "40", "-y", "10")
    terminal.until("the terminal is 40x10")
    board = Path(env["FAKENVML"])
    board.write_text(board.read_text().replace("[gpu0]\n", "[gpu0]\nerr.* = 15\n"))
    terminal.tmux("resize-window", "-t", "t", "-x", "100", "-y", "30")
    terminal.until("GPU LOST|GPU is lost")


@pytest.mark.parametrize("how", ["q", signal.SIGTERM], ids=str)
def test_log_of_a_container_and_nobody_left_behind(
    terminal: Terminal, env: dict[str, str], monitor: Callable[..., str], tmp_path: Path, how: str | signal.Signals
) -> None:
    """The container's log, an error in it that leads to its finding; after the end no `docker logs -f` goes on."""
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.write_text(
        f"#!/bin/sh\n[ $1 = logs ] || exit 1  # the monitor also asks which containers run\necho $$ > {tmp_path}/docker.pid\necho INFO started\nwhile :; do cat {tmp_path}/more 2>/dev/null && rm {tmp_path}/more; sleep 0.1; done\n"
    )
    docker.chmod(0o755)
    terminal.start(monitor("--log", "docker:web", "--screen", "log"), {**env, "PATH": f"{docker.parent}:{env['PATH']}"})
    terminal.until("INFO started")
    (tmp_path / "written").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free.\n"
    )
    (tmp_path / "written").rename(tmp_path / "more")  # whole at once: `cat` of an empty file would be followed by its `rm`
    terminal.until(r"CUDA out of memory.*◀ [\w-]+")
    terminal.keys("n", "Enter")
    terminal.until("OutOfMemoryError", "▼")  # the finding, opened
    child = int((tmp_path / "docker.pid").read_text())
    if isinstance(how, str):
        terminal.keys(how)
    else:
        os.kill(terminal.child(), how)
    terminal.until(r"STATUS \d+")
    end = time.monotonic() + 20
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < end, "docker logs -f is still there"
        time.sleep(0.05)


def test_several_servers_and_one_that_dies(
    terminal: Terminal, env: dict[str, str], server: int, monitor: Callable[..., str]
) -> None:
    terminal.start(monitor(f"127.0.0.1:{server}", "127.0.0.1:9"), env, (80, 24))
    terminal.until("SERVER +RUN +WAIT", rf":{server} ", ":9 does not answer")
    terminal.keys("3", "e")
    terminal.until("e server|e  server", "http://127.0.0.1:9")


def test_mouse_and_mig_in_a_terminal(terminal: Terminal, env: dict[str, str], monitor: Callable[..., str]) -> None:
    """A click as a terminal sends it; slices with their own memory beside a lost card, whose finding names it."""
    Path(env["FAKENVML"]).write_text((ROOT / "tests" / "fakenvml" / "h100-mig.ini").read_text())
    terminal.start(monitor(), env)
    shown = terminal.until(r"1g\.10gb .* 0\.0G/9\.6G", r"3g\.40gb .* 19\.5G/39\.5G", "GPU LOST", "GPU 1 gpu-fallen-off-bus")
    column = shown.splitlines()[0].index("2 Doctor") + 1
    for end in "Mm":
        terminal.tmux("send-keys", "-t", "t", "-l", f"\x1b[<0;{column};1{end}")
    terminal.until("gpu-fallen-off-bus @ GPU 1")


def test_dstune_alone_in_a_terminal_is_the_monitor(terminal: Terminal, env: dict[str, str]) -> None:
    terminal.start(f"{sys.executable} -m dstune", env)
    terminal.until("1 Overview", "RTX 4090")


def test_no_colour(terminal: Terminal, env: dict[str, str], monitor: Callable[..., str]) -> None:
    terminal.start(monitor(), {**env, "NO_COLOR": "1"})
    terminal.until("RTX 4090", "▲ gpu-throttled-thermal-power")
    painted = terminal.tmux("capture-pane", "-p", "-e", "-t", "t")
    assert {tuple(c.split(";")[-3:]) for c in re.findall(r"\x1b\[[\d;]*38;2;(\d+;\d+;\d+)m", painted)} <= {
        (n, n, n) for n in map(str, range(256))
    }  # greys at most
