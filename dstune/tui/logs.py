"""The Log screen: a followed file, `docker logs -f`, or the journal; signatures matched line by line."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.text import Text

from dstune.lang import say
from dstune.model import Evidence, Hit
from dstune.readers.scan import clean, scanner, shown

KEEP_LINES = 2000


@dataclass(slots=True)
class LogState:
    """The newest lines and which of them matched what."""

    source: str = ""
    lines: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=KEEP_LINES))
    marks: dict[int, str] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    number: int = 0

    def feed(self, text: str) -> bool:
        """Adds text that came; whether a signature matched."""
        text = clean(text)
        first = self.number + 1
        hits, facts = scanner("log").scan([(first, text)], "log", self.source)
        for line in text.splitlines():
            self.number += 1
            self.lines.append((self.number, shown(line)))
        for hit in hits:
            self.marks[hit.line] = hit.cause
        if len(self.marks) > KEEP_LINES:
            self.marks = {n: c for n, c in self.marks.items() if n > self.number - KEEP_LINES}
        kept: tuple[Hit, ...] = (*self.evidence.hits, *hits)[-500:]
        self.evidence = Evidence((*self.evidence.facts, *facts)[-500:], (), kept)
        return bool(hits or facts)


def follow(source: str) -> Iterator[str]:
    """Pieces of text as they come; "" when nothing is new. `docker:NAME` and `journal:UNIT` follow those, anything else is a file."""
    kind, _, name = source.partition(":")
    if kind in ("docker", "podman", "journal") and name:
        command = (
            ["journalctl", "-f", "-n", "500", "-u", name] if kind == "journal" else [kind, "logs", "-f", "--tail", "500", name]
        )
        yield from _command(command)
    else:
        yield from _file(source)


def _file(path: str) -> Iterator[str]:
    position, inode, rest = 0, -1, b""
    while True:
        try:
            info = os.stat(path)
            if info.st_ino != inode or info.st_size < position:  # rotated or cut
                position, inode, rest = max(0, info.st_size - (256 << 10)) if inode < 0 else 0, info.st_ino, b""
            with open(path, "rb") as f:
                f.seek(position)
                data = f.read(1 << 20)
        except OSError as error:
            yield f"{say('cannot be read', '无法读取')}: {error}\n" if inode != -2 else ""
            inode = -2
            continue
        position += len(data)
        whole, newline, rest = (rest + data).rpartition(b"\n")
        yield (whole + newline).decode("utf-8", "replace")


def _command(command: list[str]) -> Iterator[str]:
    import fcntl

    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    except OSError as error:
        yield f"{command[0]}: {error.strerror}\n"
        return
    assert child.stdout is not None
    flags = fcntl.fcntl(child.stdout, fcntl.F_GETFL)
    fcntl.fcntl(child.stdout, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    rest = b""
    try:
        while True:
            data = os.read(child.stdout.fileno(), 1 << 20) if _ready(child.stdout.fileno()) else b""
            whole, newline, rest = (rest + data).rpartition(b"\n")
            yield (whole + newline).decode("utf-8", "replace")
            if child.poll() is not None and not data:
                yield rest.decode("utf-8", "replace")
                return
    finally:
        child.kill()


def _ready(handle: int) -> bool:
    import select

    return bool(select.select([handle], [], [], 0)[0])


def log_screen(state: LogState, width: int, height: int, offset: int = 0) -> Text:
    """The newest lines, matched ones coloured and named. `offset` scrolls back."""
    if not state.source:
        return Text(
            say(
                "no log: dstune monitor --log FILE, docker:NAME or journal:UNIT",
                "没有日志：dstune monitor --log 文件、docker:容器名 或 journal:服务名",
            ),
            "dim",
        )
    lines = list(state.lines)
    end = max(0, len(lines) - offset)
    out = Text(f"{state.source}  {state.number:,} {say('lines', '行')}, {len(state.marks)} {say('matched', '处命中')}\n", "dim")
    for number, line in lines[max(0, end - height + 1) : end]:
        cause = state.marks.get(number)
        out.append(f"{number:>7} ", "dim")
        if cause:
            room = max(10, width - 12 - len(cause))
            out.append(line[:room], "bold yellow").append(f"  ◀ {cause}", "bold red").append("\n")
        else:
            out.append(line[: width - 8] + "\n")
    return out
