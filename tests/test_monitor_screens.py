"""Every screen as a picture: three sizes, two languages, fixed samples. `pytest --snapshot-update` after a wanted change; look at the report."""

from typing import Any

import pytest

from dstune import lang
from dstune.tui import picture
from dstune.tui.app import Monitor
from tests import monitor_samples as canned

SIZES = [(80, 24), (100, 30), (160, 45)]


def monitor(start: str, plain: bool = False) -> Monitor:
    return Monitor(canned.feed(), "http://127.0.0.1:8000", canned.LOG, plain, canned.actions(), start=start)


async def settled(pilot: Any) -> None:
    """All samples are in, the log is read, the plan is there; then the screen as a person would have left it."""
    app: Monitor = pilot.app
    for _ in range(400):
        await pilot.pause(0.02)
        if app.state.ended and app.log_state.number == 7:
            break
    app.judge_again()
    await picture.settled(app)
    app.view.open.add("batch-limit-too-small")
    app.load.outcome, app.load.before = canned.BETTER, canned.OUTCOME
    app.load.first_bytes = [0.08 + 0.002 * (i % 37) for i in range(120)]
    app.load.marks = [(i / 2, i * 4 + (i % 5)) for i in range(60)]
    app.load.gpu = [float(min(97, 20 + 5 * i)) for i in range(30)]
    app.note = ""
    app.draw()
    await pilot.pause()


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", ["overview", "doctor", "load", "plan", "log"])
def test_screen(snap_compare: Any, name: str, size: tuple[int, int], language: str) -> None:
    lang.use(language)
    assert snap_compare(monitor(name), terminal_size=size, run_before=settled)


def test_ascii(snap_compare: Any) -> None:
    assert snap_compare(monitor("overview", plain=True), terminal_size=(80, 24), run_before=settled)


def test_light(snap_compare: Any) -> None:
    async def light(pilot: Any) -> None:
        await settled(pilot)
        await pilot.press("d")

    assert snap_compare(monitor("overview"), terminal_size=(80, 24), run_before=light)


def test_confirmation(snap_compare: Any) -> None:
    async def asked(pilot: Any) -> None:
        await settled(pilot)
        await pilot.press("f")
        await picture.settled(pilot.app)
        await pilot.press("w")
        await pilot.pause(0.1)

    assert snap_compare(monitor("doctor"), terminal_size=(80, 24), run_before=asked)


def test_help(snap_compare: Any) -> None:
    async def keys(pilot: Any) -> None:
        await settled(pilot)
        await pilot.press("h")
        await pilot.pause(0.1)

    assert snap_compare(monitor("overview"), terminal_size=(80, 24), run_before=keys)


def test_eight_cards(snap_compare: Any) -> None:
    from dstune.tui.feed import CannedFeed

    async def seen(pilot: Any) -> None:
        while not pilot.app.state.ended:
            await pilot.pause(0.02)
        pilot.app.note = ""
        pilot.app.draw()
        await pilot.pause()

    assert snap_compare(
        Monitor(CannedFeed([canned.many()] * 3), actions=canned.actions()), terminal_size=(80, 24), run_before=seen
    )
