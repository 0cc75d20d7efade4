"""How the probes read: small files and short commands, bounded in size and time, and never with an exception."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dstune.lang import say
from dstune.model import Fact, Gap

Item = Fact | Gap


@dataclass(frozen=True, slots=True)
class Options:
    """What a probe may need to know. `python`: interpreter whose packages count; `cache`: look into the model caches too;
    `deadline_s`: time for one probe; `root`: where the file system begins (tests lay one out)."""

    python: str | None = None
    model_dirs: tuple[str, ...] = ()
    cache: bool = True
    deadline_s: float = 8.0
    root: str = "/"

    def at(self, path: str) -> str:
        """An absolute path below the root."""
        return path if self.root == "/" else os.path.join(self.root, path.lstrip("/"))


def text_of(path: str, limit: int = 1 << 20) -> str | None:
    """Up to `limit` bytes of a file as text; None where it cannot be read."""
    try:
        with open(path, "rb") as f:
            return f.read(limit).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def line_of(path: str) -> str | None:
    """A one-line file without its line end; None where it cannot be read."""
    text = text_of(path, 4096)
    return None if text is None else text.strip().strip("\0")


def integer_of(path: str) -> int | None:
    """A file that holds one integer."""
    try:
        return int(line_of(path) or "")
    except ValueError:
        return None


def listing(path: str) -> list[str]:
    """Names in a folder, sorted; empty where it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


_MOST = 16 << 20


def run(argv: Sequence[str], timeout_s: float = 2.0) -> str | None:
    """Standard output of a short command, children and all; None when it is absent, fails, takes longer or says over 16 MB."""
    import contextlib
    import signal
    import subprocess
    import threading

    quiet = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            argv, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, env={**os.environ, "LC_ALL": "C"}, start_new_session=True
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None

    def stop() -> None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(timeout_s, stop)
    timer.start()
    try:
        with process:
            assert process.stdout is not None
            said = process.stdout.read(_MOST + 1)
            if len(said) > _MOST:
                stop()
            code = process.wait()
    except BaseException:
        stop()
        raise
    finally:
        timer.cancel()
    return said.decode("utf-8", "replace") if code == 0 and len(said) <= _MOST else None


def facts(subject: str, source: str, **values: object) -> Iterator[Fact]:
    """A fact per value that is not None."""
    for name, value in values.items():
        if value is not None:
            yield Fact(subject, name, value, source)  # type: ignore[arg-type]


def numbered(family: str, index: int) -> str:
    """Subject of the n-th of a family whose first is bare: `model`, `model1`."""
    return family if index == 0 else f"{family}{index}"


def mib(count: float) -> int:
    """Bytes → MiB, rounded down as nvidia-smi does."""
    return int(count) >> 20


def timed_out(subject: str, seconds: float) -> Gap:
    """The gap of a reading that took too long."""
    return Gap(
        subject,
        "*",
        say(f"no answer within {seconds:.0f} s", f"{seconds:.0f} 秒内没有应答"),
        say(
            "the driver, a network disk or a mount does not answer: look at `dmesg` and `mount`",
            "驱动、网络盘或某个挂载点没有响应：请查看 `dmesg` 和 `mount`",
        ),
    )
