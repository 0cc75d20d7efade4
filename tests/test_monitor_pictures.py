"""What the eye sees: colours that can be told apart on a dark and on a light screen, and pictures that look alike in every viewer."""

import asyncio
import html
import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from dstune import lang
from dstune.model import Diagnosis, Evidence
from dstune.model.plan import Plan
from dstune.plan import words
from dstune.tui import follow, palette, picture, plan
from dstune.tui.app import Monitor
from dstune.tui.doing import Actions
from dstune.tui.draw import BLOCKS
from dstune.tui.overview import overview
from dstune.tui.state import State
from tests import monitor_samples as canned
from tests.test_monitor import session, until

NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
NAMES = (*NAMES, *(f"bright_{name}" for name in NAMES))


def colour(theme: TerminalTheme, name: str) -> tuple[int, int, int]:
    return theme.ansi_colors[NAMES.index(name)]


def apart(a: tuple[int, int, int], b: tuple[int, int, int]) -> float:
    """Distance as the eye weighs it (`redmean`): 0 the same, 765 black to white."""
    red = (a[0] + b[0]) / 2
    weights = (2 + red / 256, 4.0, 2 + (255 - red) / 256)
    return float(sum(w * (x - y) ** 2 for w, x, y in zip(weights, a, b, strict=True)) ** 0.5)


@pytest.mark.parametrize("theme", [palette.DARK, palette.LIGHT], ids=["dark", "light"])
def test_parts_of_one_bar_differ_to_the_eye(theme: TerminalTheme) -> None:
    for a, b in itertools.combinations(palette.PART_STYLES.values(), 2):
        assert apart(colour(theme, a), colour(theme, b)) > 90, (a, b)
    for a, b in itertools.combinations({style for style, _ in palette.PLAN_PARTS.values()}, 2):
        assert apart(colour(theme, a), colour(theme, b)) > 90, (a, b)


@pytest.mark.parametrize("engine", ["vllm", "transformers", "llama.cpp", "sglang"])
def test_no_two_parts_of_a_plan_look_the_same(engine: str) -> None:
    for concurrency in (1, 32):
        made = plan.planned(plan.Knobs(engine=engine, concurrency=concurrency))
        assert isinstance(made, Plan)
        looks = [palette.plan_part(name) for name, _ in plan.grouped(made)]
        assert len({style for style, _ in looks}) == len({mark for _, mark in looks}) == len(looks) > 3


def test_without_colours_parts_are_told_apart_by_their_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan.planned(plan.Knobs())
    assert isinstance(made, Plan)
    marks = {palette.plan_part(name)[1] for name, _ in plan.grouped(made)}
    coloured = "\n".join(line.plain for line in plan.plan_screen(plan.Knobs(), made, 100))
    assert "██" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    lettered = "\n".join(line.plain for line in plan.plan_screen(plan.Knobs(), made, 100))
    assert "█" not in lettered
    assert "■" not in lettered
    assert all(re.search(f"^ ?.*{re.escape(m)} ", lettered, re.M) for m in marks)


def test_every_part_that_a_plan_can_have_has_its_own_look() -> None:
    names = {name.partition(":")[0] for name in words._PARTS}
    assert names <= set(palette.PLAN_PARTS)


def test_the_app_takes_these_colours() -> None:
    async def look(pilot: object, app: Monitor) -> None:
        assert app.ansi_theme == palette.DARK
        app.theme = "textual-light"
        assert app.ansi_theme == palette.LIGHT

    session(look)


def test_a_reason_of_three_lines_ends_with_a_sign_that_it_goes_on() -> None:
    made = plan.planned(plan.Knobs())
    assert isinstance(made, Plan)
    lines = [line.plain for line in plan.plan_screen(plan.Knobs(), made, 60)]
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{made.rejected[0].option}:"))
    assert Text(lines[at + 1]).cell_len <= 60
    assert lines[at + 1].endswith("…")


CELL = re.compile(r'<text class="[^"]*-r\d+" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"[^>]*>(.*?)</text>')


def grid(svg: str) -> list[str]:
    """The words of a picture by where they stand: a line of cells for each row, blocks left out."""
    rows: dict[float, dict[int, str]] = {}
    for x, y, length, shown in CELL.findall(svg):
        text = html.unescape(shown).replace("\xa0", " ")
        assert text == text.strip(), "viewers drop blanks at the ends"
        assert abs(float(length) - picture.CELL * cell_len(text)) < 0.1
        at = float(x) / picture.CELL
        assert abs(at - round(at)) < 0.02, (x, text)
        row = rows.setdefault(float(y), {})
        for letter in text:
            row[round(at)] = letter
            at += cell_len(letter)
    out = []
    for _, row in sorted(rows.items()):
        line, at = "", 0
        for column, letter in sorted(row.items()):
            line += " " * (column - at) + letter
            at = column + cell_len(letter)
        out.append(line)
    return out


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", ["overview", "doctor", "plan"])
def test_a_picture_has_every_letter_in_its_cell_and_fetches_nothing(name: str, language: str) -> None:
    lang.use(language)
    app = Monitor(canned.feed(90), "", canned.LOG, actions=canned.actions(), start=name)
    svg = asyncio.run(picture.picture(app, (100, 30)))
    ElementTree.fromstring(svg)
    assert "url(" not in re.sub(r"url\(#", "", svg)
    assert "Fira" not in svg
    drawn = [line.rstrip() for line in grid(svg)]
    blocks = re.compile(f"[{BLOCKS}▌░]")
    told = [blocks.sub(" ", line).rstrip() for line in app.text_of(name).splitlines()[:28]]
    assert [line for line in told if line.strip()] == [line for line in drawn[1:-1] if line.strip()]


def test_a_picture_waits_for_the_log_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording is over before the first line of the log is read."""

    def slow(source: str) -> Iterator[str]:
        time.sleep(0.6)
        yield Path(source).read_text()
        while True:
            yield ""

    monkeypatch.setattr(follow, "follow", slow)
    app = Monitor(canned.feed(3), "", canned.LOG, actions=Actions(seen_in_the_log), start="doctor")
    svg = asyncio.run(picture.picture(app, (100, 30)))
    assert any("batch-limit-too-small" in line for line in grid(svg))


def seen_in_the_log(evidence: Evidence) -> Diagnosis:
    return canned.diagnosis() if evidence.hits else Diagnosis()


def test_a_log_that_grows_after_the_end_of_a_recording_is_diagnosed(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO started\n")

    async def look(pilot: Any, app: Monitor) -> None:
        await until(pilot, lambda: app.log_state.number == 1, "the log")
        assert not app.state.diagnosis.findings
        with log.open("a") as f:
            f.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
        await until(pilot, lambda: bool(app.state.diagnosis.findings), "the finding")

    session(look, Monitor(canned.feed(3), log=str(log), actions=Actions(seen_in_the_log)))


def test_without_a_card_the_room_is_for_the_server(tmp_path: Path) -> None:
    state = State()
    for i in range(30):
        state.take(Evidence((*canned.server(waiting=i), *canned.HOST), (), (), {"started": 1000.0 + i}), None)
    lines = [line.plain for line in overview(state, 99, 26)]
    assert len(lines) <= 26
    for title in ("tok/s, of 611", "KV %, of 100", "running, of 8", "waiting, of 29"):
        assert any(title in line for line in lines), title
    assert len([line for line in lines if "█" in line]) > 8
    assert not any("waiting, of 29" in line.plain for line in overview(state, 79, 14))  # no room, no curve
