"""The Log screen: a followed file, `docker logs -f`, or the journal; signatures matched line by line and linked to their findings."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rich.text import Text

from dstune.lang import say
from dstune.model import Evidence, Finding, Hit
from dstune.readers.scan import clean, scanner, shown
from dstune.tui.draw import Lines, click, fit

KEEP_LINES = 2000
TAIL = 256 << 10
"""Bytes of an existing file that are read at the start."""


@dataclass(slots=True)
class LogState:
    """The newest lines and which of them prove which finding (`marks`, made by `link` from `matches`). `back`: lines scrolled back from the end; `chosen`: a matched line's number."""

    source: str = ""
    lines: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=KEEP_LINES))
    matches: list[tuple[int, str]] = field(default_factory=list)
    marks: dict[int, str] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    number: int = 0
    back: int = 0
    chosen: int = 0

    def feed(self, text: str) -> bool:
        """Adds text that came; whether a signature matched."""
        text = clean(text)
        first = self.number + 1
        came = text.split("\n")
        if came[-1] == "":
            came.pop()
        for line in came:
            self.number += 1
            self.lines.append((self.number, shown(line)))
        if self.back:
            self.back = min(self.back + len(came), len(self.lines))  # what is being read stays where it is
        hits, facts = scanner("log").scan([(first, text)], "log", self.source)
        self.matches = [*self.matches, *((h.line, h.cause) for h in hits if _alone(h))][-KEEP_LINES:]
        kept: tuple[Hit, ...] = (*self.evidence.hits, *hits)[-500:]
        self.evidence = Evidence((*self.evidence.facts, *facts)[-500:], (), kept)
        return bool(hits or facts)

    def link(self, findings: Iterable[Finding]) -> None:
        """Marks the lines that findings cite, and those that show a cause by themselves."""
        causes = {f.cause for f in findings}
        self.marks = {n: c for n, c in self.matches if c in causes}
        for finding in findings:
            for cite in finding.evidence:
                if cite.line and cite.source == self.source:
                    self.marks.setdefault(cite.line, finding.cause)

    def texts(self) -> list[str]:
        """Lines by their number (1-based, empty where they are no longer kept), for the Doctor."""
        first = self.lines[0][0] if self.lines else 1
        return [""] * (first - 1) + [line for _, line in self.lines]

    def turn(self, step: int, height: int) -> None:
        """Scrolls by lines; positive goes back in time."""
        self.back = min(max(0, self.back + step), max(0, len(self.lines) - height))

    def jump(self, step: int, height: int) -> None:
        """Chooses the next (1) or the previous (-1) matched line and brings it into view."""
        found = sorted(n for n in self.marks if n > self.number - len(self.lines))
        if not found:
            return
        if step > 0:
            self.chosen = next((n for n in found if n > self.chosen), found[0])
        else:
            self.chosen = next((n for n in reversed(found) if n < (self.chosen or 1 << 60)), found[-1])
        self.back = min(max(0, self.number - self.chosen - height // 2), max(0, len(self.lines) - height))


def _alone(hit: Hit) -> bool:
    """Whether one such line is enough: the other texts of a way with several say nothing by themselves."""
    from dstune.catalog.rules import find, parts

    return len(parts(find(hit.cause).ways[hit.way])) == 1


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


def _command(command: list[str]) -> Iterator[str]:
    import select

    try:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        yield f"{command[0]}: {error.strerror}\n"
        return
    assert child.stdout is not None
    handle, rest = child.stdout.fileno(), b""
    try:
        while True:
            ended = child.poll() is not None  # asked first: what it wrote before it ended is still to be read
            data = os.read(handle, 1 << 20) if select.select([handle], [], [], 0)[0] else b""
            whole, newline, rest = (rest + data).rpartition(b"\n")
            yield (whole + newline).decode("utf-8", "replace")
            if not data and ended:
                yield (
                    rest.decode("utf-8", "replace")
                    + f"\n[{' '.join(command)}: {say('ended with', '已结束，状态')} {child.returncode}]\n"
                )
                return
    finally:
        child.kill()
        child.wait()


def log_screen(state: LogState, width: int, height: int) -> Lines:
    """The newest lines, matched ones coloured and named; a click on one opens its finding."""
    if not state.source:
        words = say(
            "no log: dstune monitor --log FILE, docker:NAME or journal:UNIT",
            "没有日志：dstune monitor --log 文件、docker:容器名 或 journal:服务名",
        )
        return [Text(fit(words, width), "dim")]
    count = f"{state.source}  {state.number:,} {say('lines', '行')}, {len(state.marks)} {say('marked', '处标记')}"
    if state.back:
        count += say(f"  (scrolled back {state.back}; End follows again)", f"  （已回滚 {state.back} 行，End 恢复跟随）")
    lines = list(state.lines)
    end = len(lines) - state.back
    out = [Text(fit(count, width), "dim", no_wrap=True)]
    for number, line in lines[max(0, end - height + 1) : end]:
        cause = state.marks.get(number)
        row = Text(no_wrap=True).append(f"{number:>7} ", "dim")
        if cause:
            tail = f" ◀ {cause}"
            style = "bold reverse yellow" if number == state.chosen else "bold yellow"
            body = fit(line, width - 8 - len(tail))
            row.append(body, click(f"app.open('{cause}')", style)).append(tail, click(f"app.open('{cause}')", "bold red"))
        else:
            row.append(fit(line, width - 8))
        out.append(row)
    return out
