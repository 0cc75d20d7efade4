"""What the eye has to tell apart: colours of memory bars, on a dark and on a light screen."""

import itertools

import pytest
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from dstune.model import Plan
from dstune.plan import words
from dstune.tui import palette, plan
from dstune.tui.app import Monitor
from tests.test_monitor import session

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
