"""Starts and stops the real servers that `.ci/real.sh` has built. Nothing here decides anything: commands, waiting, logs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(
    os.environ.get("DSTUNE_CI_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dstune-ci"
)
MODEL = CACHE / "smollm2" / "hf"
GGUF = CACHE / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "GRADIO_ANALYTICS_ENABLED": "False"}
NO_PROXY = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"), "")


def python(venv: str) -> str:
    """The interpreter of one of the built environments."""
    return str(CACHE / venv / "bin" / "python")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Server:
    """A running server; `log` is the file of its output."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def stop(self) -> None:
        """Ctrl-C to the leader, as a person would; then the whole group."""
        for number, wait in ((signal.SIGINT, 20), (signal.SIGKILL, 5)):
            with contextlib.suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(self.process.pid, number)
                else:
                    self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def launch(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """The process in a group of its own, output in `log`. It is nicer than the tests, whose client and screen must not wait for it."""
    with log.open("ab") as out:
        return subprocess.Popen(
            ["nice", "-n", "5", *command], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, cwd=cwd,
            env={**os.environ, **QUIET, **NO_PROXY, **(env or {})},
        )  # fmt: skip


def ready(url: str, path: str) -> bool:
    """Whether the server answers that route with anything below 500."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url + path, timeout=2) as answer:
            return bool(answer.status < 500)
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False


@contextlib.contextmanager
def serve(
    command: Sequence[str], port: int, path: str, log: Path, env: Mapping[str, str] | None = None, within_s: float = 240,
) -> Iterator[Server]:  # fmt: skip
    """A server until the block ends. Raises `RuntimeError` with the end of its log when it does not come up."""
    server = Server(launch(command, log, env), f"http://127.0.0.1:{port}", log)
    try:
        end = time.monotonic() + within_s
        while not ready(server.url, path):
            if server.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{command[0]} did not come up:\n" + log.read_text(errors="replace")[-3000:])
            time.sleep(0.3)
        yield server
    finally:
        server.stop()


def vllm(port: int, *flags: str, model: Path | str = MODEL) -> list[str]:
    """`vllm serve`, eager: compiling would take a minute more."""
    return [
        str(CACHE / "vllm" / "bin" / "vllm"), "serve", str(model), "--served-model-name", "smollm2", "--host", "127.0.0.1", "--port", str(port),
        "--max-model-len", "2048", "--enforce-eager", "--dtype", "bfloat16", *flags,
    ]  # fmt: skip


VLLM_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}


def transformers(port: int, *flags: str) -> list[str]:
    """`transformers serve`; requests name the model by its path."""
    return [
        str(CACHE / "vllm" / "bin" / "transformers"),
        "serve",
        str(MODEL),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--device",
        "cpu",
        *flags,
    ]


def llamacpp(port: int, *flags: str) -> list[str]:
    """The server of llama-cpp-python. By default it cancels a running answer when another request comes."""
    return [
        python("llamacpp"), "-m", "llama_cpp.server", "--model", str(GGUF), "--model_alias", "smollm2", "--host", "127.0.0.1", "--port", str(port),
        "--n_ctx", "4096", "--chat_format", "chatml", "--interrupt_requests", "false", *flags,
    ]  # fmt: skip


def gradio(venv: str, port: int, app: str = "chat.py", *more: str) -> list[str]:
    """One of the apps in tests/real/apps."""
    return [python(venv), str(HERE / "apps" / app), str(port), *more]
