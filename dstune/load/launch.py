"""Starting a user's program to measure it: the command, its environment, waiting until it serves, the end of all its processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dstune.catalog import root
from dstune.errors import DstuneError, UnobservableError
from dstune.lang import say
from dstune.load.detect import Server, detect, fetch
from dstune.load.local import last_words

KILL_S = 5.0
"""Seconds that killed processes get to be gone."""
TERM_S = 15.0
"""Seconds a program gets to end by itself before it is killed."""
ODD_S = 60.0
"""Seconds that a port may answer with something unknown before that is the answer: pages mount their routes late."""
DEAF_S = 3.0
"""Seconds until a port that speaks no HTTP is tried again: engines listen on ports for their own processes too."""
LOADING = "loading"
_PORT_FLAG = {"vllm": "--port", "sglang": "--port", "llama-server": "--port", "transformers": "--port", "llama_cpp": "--port"}


@dataclass(frozen=True, slots=True)
class Program:
    """What is started: `argv` in `cwd`. `tokens`: answers are held to so many, without sampling; 0 leaves the program as it is."""

    argv: tuple[str, ...]
    cwd: str
    tokens: int = 0
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The command for people."""
        return shlex.join(self.argv)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def interpreter(beside: str, wanted: str = "") -> str:
    """The Python of a program in folder `beside`: the one named, else of a venv beside it, else of the active one, else python on PATH."""
    if wanted:
        found = shutil.which(wanted) if os.sep not in wanted else wanted if os.access(wanted, os.X_OK) else None
        if found is None or os.path.isdir(found):
            raise DstuneError(say(f"{wanted} is no interpreter", f"{wanted} 不是解释器"), "", "--python .venv/bin/python")
        return os.path.abspath(found)
    for name in (".venv", "venv", "env"):
        path = os.path.join(os.path.abspath(beside), name, "bin", "python")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("python3") or shutil.which("python")
    if found is None:
        raise DstuneError(say("no Python on PATH", "PATH 中没有 Python"), "", "--python /path/to/python")
    return found


def with_port(argv: Sequence[str], port: int) -> tuple[str, ...]:
    """A command of a known server with a port, where it names none."""
    names = {os.path.basename(word) for word in argv[:3]}
    module = next((w.split(".")[0] for flag, w in itertools.pairwise(argv) if flag == "-m"), "")
    flag = next((_PORT_FLAG[n] for n in (*sorted(names), module) if n in _PORT_FLAG), "")
    if not flag or any(re.match(rf"{flag}(=|$)", word) for word in argv):
        return tuple(argv)
    return (*argv, flag, str(port))


GUARD = "import os, signal, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), signal.SIGKILL)"
"""Ends the program when dstune is gone without having ended it (SIGKILL, out of memory): the pipe closes then. Else a card would stay full."""


class Running:
    """A program that was started. `log` is the file of its output, `calls` the start-up hook's."""

    def __init__(self, program: Program, folder: str, name: str) -> None:
        self.program = program
        self.port = free_port()
        self.log = os.path.join(folder, f"{name}.log")
        self.calls = os.path.join(folder, f"{name}.calls")
        self.begun = time.monotonic()
        self.up_s = 0.0
        with open(self.log, "wb") as out:
            try:
                self.process = subprocess.Popen(
                    with_port(program.argv, self.port), cwd=program.cwd, env=self._environment(), stdin=subprocess.DEVNULL, stdout=out,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise UnobservableError(
                    say(f"{program.argv[0]} could not be started", f"无法启动 {program.argv[0]}"), error.strerror or str(error)
                ) from None

        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-c", GUARD, str(self.process.pid)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        env = {**os.environ, **self.program.env}
        hook = str(root() / "scripts" / "verify")
        env["PYTHONPATH"] = os.pathsep.join(p for p in (hook, env.get("PYTHONPATH", "")) if p)
        env |= {"DSTUNE_VERIFY_LOG": self.calls, "DSTUNE_VERIFY_PORT": str(self.port)}
        env |= {"GRADIO_SERVER_PORT": str(self.port), "GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_ANALYTICS_ENABLED": "False"}
        env |= {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("no_proxy", "NO_PROXY"):
            env[name] = ",".join(p for p in (env.get(name, ""), "127.0.0.1", "localhost") if p)
        if self.program.tokens:
            env["DSTUNE_VERIFY_TOKENS"] = str(self.program.tokens)
        return env

    def words(self) -> str:
        """The last words of the program: its exception, else its last line."""
        try:
            with open(self.log, "rb") as f:
                f.seek(max(0, os.fstat(f.fileno()).st_size - 65536))
                return last_words(f.read().decode("utf-8", "replace").splitlines())
        except OSError:
            return ""

    def ready(
        self, ports: Callable[[int], Sequence[int]], within_s: float, headers: dict[str, str], tick: Callable[[float], None]
    ) -> Server:
        """The server as soon as it serves. Raises `UnobservableError` where it ends, or does not serve within `within_s`.

        `ports` gives the ports that the processes of the program listen on: a program may have a mind of its own about that.
        """
        odd: dict[int, float] = {}
        deaf: dict[int, float] = {}
        refusal = ""
        while True:
            if self.process.poll() is not None:
                raise self._failed(
                    say(f"it ended with code {self.process.returncode}", f"进程已退出，退出码 {self.process.returncode}")
                )
            spent = time.monotonic() - self.begun
            if spent > within_s:
                raise self._failed(
                    refusal or say(f"nothing served within {within_s:.0f} s", f"{within_s:.0f} 秒内没有开始服务")
                )
            tick(spent)
            for port in ports(self.process.pid):
                if time.monotonic() < deaf.get(port, 0.0):
                    continue
                found = _server(port, headers)
                if isinstance(found, Server):
                    self.up_s = time.monotonic() - self.begun
                    return found
                if not found:
                    deaf[port] = time.monotonic() + DEAF_S
                    continue
                refusal = found
                if found != LOADING and time.monotonic() - odd.setdefault(port, time.monotonic()) > ODD_S:
                    raise self._failed(found)
            time.sleep(0.25)

    def _failed(self, reason: str) -> UnobservableError:
        words = self.words()
        return UnobservableError(
            say(f"{self.program.shown} does not serve", f"{self.program.shown} 没有开始服务"),
            reason + (f"; {words}" if words else ""),
            f"dstune doctor --log {self.log}",
        )

    def stop(self, members: Callable[[int], Sequence[int]], alive: Callable[[Sequence[int]], Sequence[int]]) -> None:
        """TERM to the group, KILL to every process of the tree that is left after `TERM_S`. `members` and `alive` look at processes."""
        self._guard.kill()
        self._guard.wait()
        known = set(members(self.process.pid))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGTERM)
        end = time.monotonic() + TERM_S
        while time.monotonic() < end:
            self.process.poll()
            known |= set(members(self.process.pid))
            if not alive(sorted(known)):
                return
            time.sleep(0.1)
        left = alive(sorted(known | set(members(self.process.pid))))
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + KILL_S
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_S)
        while alive(left) and time.monotonic() < end:  # each holds its memory, the card's too, until it is gone
            time.sleep(0.05)


def _server(port: int, headers: dict[str, str]) -> Server | str:
    """The server at a port; else why not: `LOADING`, words, or "" where no HTTP is spoken."""
    base = f"http://127.0.0.1:{port}"
    try:
        fetch(base + "/", timeout_s=2.0)
    except DstuneError:
        return ""
    try:
        server = detect(base, headers)
        status, _, _ = fetch(base + "/health", timeout_s=2.0)
    except DstuneError as error:
        return f"{error.what}: {error.why}"
    return server if status != 503 else LOADING


class Workspace:
    """A folder for logs and patched copies. It goes at the end, unless `keep` was set since somebody is told to look into it."""

    def __init__(self) -> None:
        self.keep = False

    def __enter__(self) -> Workspace:
        self.folder = tempfile.mkdtemp(prefix="dstune-verify-")
        return self

    def __exit__(self, *error: object) -> None:
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)
