"""Breaks real servers on purpose and keeps what they print, as a person would paste it: tests/logs/provoked/<cause>--<short>.log.

    python -m tests.real.provoke              all that are missing
    python -m tests.real.provoke NAME…        these anew; --list shows them

Needs what `.ci/real.sh` builds, and root for those that use a memory cgroup or a mount namespace.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dstune.redact import redact
from tests.real import servers
from tests.real.servers import CACHE, GGUF, MODEL, NO_PROXY, QUIET, free_port, launch, python, ready

OUT = Path(__file__).parents[1] / "logs" / "provoked"
LINES = 220
"""A longer log loses its middle: the head has the launch, the tail the failure."""


class Box:
    """One provoked failure: a scratch folder and the text that a person would see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = ""
        self.count = 0
        self.group = 0

    def say(self, text: str) -> None:
        """Adds lines to the paste."""
        self.text += text.rstrip("\n") + "\n"

    def run(self, command: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 150, show: bool = True) -> int:
        """A command to its end (or killed after `timeout`); its output joins the paste."""
        log = self._log()
        if show:
            self.say(
                "$ "
                + " ".join([*(f"{k}={v}" for k, v in (env or {}).items() if k != "PYTHONPATH"), *map(shlex.quote, command)])
            )
        process = launch(command, log, env, self.folder)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            servers.Server(process, "", log).stop()
        self.say(log.read_text(errors="replace"))
        return process.returncode or 0

    def script(self, venv: str, source: str, env: Mapping[str, str] | None = None, timeout: float = 120) -> None:
        """A Python program of a user, in one of the environments; only its output is kept."""
        file = self.folder / "app.py"
        file.write_text(source)
        self.say("$ python app.py")
        self.run([python(venv), "app.py"], env, timeout, show=False)

    def server(
        self,
        command: Sequence[str],
        port: int,
        path: str,
        asks: Callable[[str], None],
        env: Mapping[str, str] | None = None,
        within_s: float = 150,
    ) -> None:
        """A server, then what `asks` does to it; what the client saw comes after the server's log."""
        log = self._log()
        self.say("$ " + " ".join([*(f"{k}={v}" for k, v in (env or {}).items()), *map(shlex.quote, command)]))
        server = servers.Server(launch(command, log, env, self.folder), f"http://127.0.0.1:{port}", log)
        self.group = server.process.pid
        end = time.monotonic() + within_s
        try:
            while not ready(server.url, path) and server.process.poll() is None and time.monotonic() < end:
                time.sleep(0.3)
            before = self.text
            self.text = ""
            asks(server.url)
            seen = self.text
            time.sleep(1)
            self.text = before
        finally:
            server.stop()
        self.say(log.read_text(errors="replace"))
        self.text += seen

    def ask(self, url: str, body: Any, timeout: float = 60) -> None:
        """A request as curl would show it."""
        data = json.dumps(body)
        self.say(f"$ curl {url} -d {shlex.quote(data if len(data) < 300 else data[:300] + '…')}")
        request = urllib.request.Request(url, data.encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout) as answer:
                self.say(answer.read(6000).decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            self.say(f"HTTP {error.code} {error.read(3000).decode('utf-8', 'replace')}")
        except OSError as error:
            self.say(f"curl: {error}")

    def model(self, name: str = "DeepSeek-R1-Distill-Qwen-1.5B") -> Path:
        """A copy of the small model under another name, whose files may be spoilt (weights are linked)."""
        out = self.folder / "models" / name
        out.mkdir(parents=True)
        for file in MODEL.iterdir():
            if file.suffix == ".safetensors":
                (out / file.name).symlink_to(file)
            else:
                shutil.copy(file, out)
        return out

    def _log(self) -> Path:
        self.count += 1
        return self.folder / f"out{self.count}.log"


def changed(file: Path, **keys: Any) -> None:
    """A JSON file with some keys changed (None: taken out)."""
    data = json.loads(file.read_text())
    for key, value in keys.items():
        data.pop(key, None)
        if value is not None:
            data[key] = value
    file.write_text(json.dumps(data, indent=2))


def cleaned(text: str) -> str:
    """The paste without this machine: other paths, no colours, no progress bars but their last state, the middle cut where long."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    text = "\n".join(line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").split("\n"))
    for venv, shown in (
        ("vllm", "/opt/vllm"),
        ("llamacpp", "/opt/llama"),
        ("gradio6", "/opt/venv"),
        ("gradio4", "/opt/venv"),
        ("gradio4_unpinned", "/opt/venv"),
    ):
        text = re.sub(re.escape(str(CACHE / venv)) + r"(?=/)", shown, text)
    text = text.replace(str(MODEL), "/data/models/DeepSeek-R1-Distill-Qwen-1.5B").replace(
        str(GGUF), "/data/models/DeepSeek-R1-Distill-Qwen-1.5B-Q4_K_M.gguf"
    )
    text = text.replace(str(CACHE), "/opt")
    text = re.sub(r"/\S*?dstune-provoke-\w+", "/srv/llm", text)
    text = (
        re.sub(r"/root/\.pyenv/versions/[\d.]+", "/usr", text)
        .replace("/root/", "/home/user/")
        .replace(str(servers.HERE), "/srv/llm")
    )
    lines = [redact(line.rstrip()[:700]) for line in text.split("\n")]
    lines = [line for line in lines if not re.search(r"(?:Loading safetensors|shards): +\d+%.*0/1", line)]
    if len(lines) > LINES:
        lines = [*lines[:60], f"[… {len(lines) - LINES} lines …]", *lines[60 - LINES :]]
    return "\n".join(lines).strip("\n") + "\n"


def main() -> None:
    """Runs the missing or the named ones."""
    from tests.real.provocations_others import ALL  # registers both files' failures

    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    if "--list" in sys.argv:
        print("\n".join(ALL))
        return
    OUT.mkdir(parents=True, exist_ok=True)
    for name, make in ALL.items():
        if (names and not any(n in name for n in names)) or (not names and (OUT / f"{name}.log").exists()):
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="dstune-provoke-") as folder:
            box = Box(Path(folder))
            try:
                make(box)
            except Exception as error:  # one that cannot be provoked here must not stop the others
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                continue
            (OUT / f"{name}.log").write_text(cleaned(box.text))
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()


__all__ = ["CACHE", "GGUF", "MODEL", "NO_PROXY", "QUIET", "Box", "changed", "free_port", "python"]
