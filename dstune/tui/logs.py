"""The Log screen: a followed file, `docker logs -f`, or the journal; signatures matched line by line and linked to their findings."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.text import Text

from dstune.lang import say
from dstune.model import Evidence, Finding, Hit
from dstune.readers.quoted import unquoted
from dstune.readers.scan import clean, scanner, shown
from dstune.tui.draw import Lines, click, fit

KEEP_LINES = 2000


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
            self.lines.append((self.number, _indented(line)))
        if self.back:
            self.back = min(self.back + len(came), len(self.lines))  # what is being read stays where it is
        hits, facts = scanner("log").scan([(first, unquoted(text))], "log", self.source)
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


def _indented(line: str) -> str:
    """A line as it may be shown, at its place: a traceback is read by its indent."""
    words = shown(line)
    blank = line[: len(line) - len(line.lstrip())].expandtabs(4)
    return " " * min(40, len(blank)) + words if words else ""


def _alone(hit: Hit) -> bool:
    """Whether one such line is enough: the other texts of a way with several say nothing by themselves."""
    from dstune.catalog.rules import find, parts

    return len(parts(find(hit.cause).ways[hit.way])) == 1


def log_screen(state: LogState, width: int, height: int) -> Lines:
    """The newest lines, matched ones coloured and named; a click on one opens its finding."""
    if not state.source:
        words = say(
            "no log: dstune monitor --log FILE, docker:NAME or journal:UNIT",
            "没有日志：dstune monitor --log 文件、docker:容器名 或 journal:服务名",
        )
        return [Text(fit(words, width), "dim")]
    count = f"  {state.number:,} {say('lines', '行')}, {len(state.marks)} {say('marked', '处标记')}"
    if state.back:
        count += say(f"  (scrolled back {state.back}; End follows again)", f"  （已回滚 {state.back} 行，End 恢复跟随）")
    source = state.source
    if cell_len(source) > (room := max(16, width - cell_len(count))):  # its end tells it from others, and the counts follow it
        source = "…" + source[-(room - 1) :]
    count = source + count
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
