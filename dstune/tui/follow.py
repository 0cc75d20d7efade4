"""Follows a log: a file through its rotations, a container or a unit through its restarts. Child processes; nothing is left running."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

from dstune.lang import say

TAIL = 256 << 10
"""Bytes of an existing file that are read at the start."""
AGAIN_S = 2.0
"""Seconds after which a command that ended is run again: a container that was stopped may be back."""
HOLD_S = 0.3
"""Seconds for which the first output is held: of a program that fails in them it is an error, told once."""
LONGEST_AGAIN_S = 15.0
"""As long as it ends at once, the wait doubles up to this."""


def follow(source: str) -> Iterator[str]:
    """Pieces of text as they come; "" when nothing is new. `docker:NAME`, `podman:NAME` and `journal:UNIT` follow those, anything else is a file."""
    kind, _, name = source.partition(":")
    if kind in ("docker", "podman", "journal") and name:
        yield from _program(kind, name)
    else:
        yield from _file(source)


def _file(path: str) -> Iterator[str]:
    position, inode, rest, failed = 0, -1, b"", ""
    while True:
        try:
            info = os.stat(path)
            if info.st_ino != inode or info.st_size < position:  # rotated or cut
                position, inode, rest = max(0, info.st_size - TAIL) if inode < 0 else 0, info.st_ino, b""
            if info.st_size == position:
                yield ""
                continue
            with open(path, "rb") as f:
                f.seek(position)
                data = f.read(1 << 20)
            failed = ""
        except OSError as error:
            words = f"{path}: {say('cannot be read', '无法读取')}: {error.strerror}\n"
            inode = 0  # what appears under the name later is read from its beginning
            yield words if words != failed else ""
            failed = words
            continue
        position += len(data)
        whole, newline, rest = (rest + data).rpartition(b"\n")
        yield (whole + newline).decode("utf-8", "replace")


def _command(kind: str, name: str, since: float) -> list[str]:
    """The program that follows; after the first time only what came since it ended."""
    if kind == "journal":
        return ["journalctl", "-f", "-u", name, *(["--since", f"@{since:.0f}"] if since else ["-n", "500"])]
    return [kind, "logs", "-f", *(["--since", f"{since:.3f}"] if since else ["--tail", "500"]), name]


def _program(kind: str, name: str) -> Iterator[str]:
    """Runs the program again whenever it ends: `docker logs -f` ends with its container, and does not come back with it."""
    since, wait, told = 0.0, AGAIN_S, ""
    while True:
        command, started = _command(kind, name, since), time.monotonic()
        try:
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            yield f"{command[0]}: {error.strerror}\n"
            return
        held, shown = b"", False
        with closing(_pieces(child)) as pieces:
            for piece in pieces:
                held += piece
                if not held or (not shown and time.monotonic() - started < HOLD_S):
                    yield ""
                    continue
                if told:
                    yield say(f"[{name} is followed again]\n", f"[已重新跟踪 {name}]\n")
                yield held.decode("utf-8", "replace")
                held, shown, told = b"", True, ""
        status = child.returncode
        words = _ended(kind, name, status, held)
        if held and not status:
            words, told = held.decode("utf-8", "replace") + words, ""
        if words != told:
            yield words
        told, since, wait = words, time.time(), AGAIN_S if shown else min(2 * wait, LONGEST_AGAIN_S)
        end = time.monotonic() + wait
        while time.monotonic() < end:
            yield ""


def _ended(kind: str, name: str, status: int, said: bytes) -> str:
    """What the end means; where the program failed, in its own words too."""
    if status and re.search(rb"(?i)no such (container|object)|no container with", said):
        return say(f"[no container {name} here; waiting for one]\n", f"[没有名为 {name} 的容器；等待其出现]\n")
    text = said.decode("utf-8", "replace") if status else ""
    if kind == "journal":
        return text + say(f"[journalctl ended with {status}; trying again]\n", f"[journalctl 已结束，状态 {status}；将重试]\n")
    if status:
        return text + say(
            f"[{kind} logs ended with {status}; trying again]\n", f"[{kind} logs 已结束，状态 {status}；将重试]\n"
        )
    return say(f"[container {name} has stopped; waiting for it to come back]\n", f"[容器 {name} 已停止；等待其恢复]\n")


def _pieces(child: subprocess.Popen[bytes]) -> Generator[bytes, None, None]:
    """Whole lines as they come, b"" when there are none; the last piece, with what had no line end, once it has ended."""
    import select

    assert child.stdout is not None
    handle, rest = child.stdout.fileno(), b""
    try:
        while True:
            ended = child.poll() is not None  # asked first: what it wrote before it ended is still to be read
            data = os.read(handle, 1 << 20) if select.select([handle], [], [], 0)[0] else b""
            if ended and not data:
                yield rest + b"\n" * bool(rest)
                return
            whole, newline, rest = (rest + data).rpartition(b"\n")
            yield whole + newline
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


class Follower:
    """Follows a log (none: "") on a thread of its own, and gives each piece of text to `tell`, on that thread."""

    def __init__(self, source: str, tell: Callable[[str], object]) -> None:
        self.source, self.tell = source, tell
        self._over, self._idle = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        if self.source:
            self._thread.start()

    def read(self) -> bool:
        """Whether the log was read to where it ended."""
        return not self.source or self._idle.is_set()

    def stop(self) -> None:
        """Ends the thread, and with it the program that follows the log."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _run(self) -> None:
        for text in follow(self.source):
            if self._over.is_set():
                return
            if text:
                self.tell(text)
            else:
                self._idle.set()
                self._over.wait(0.4)
