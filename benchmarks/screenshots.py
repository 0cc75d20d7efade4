"""The pictures of the README: SVGs of the monitor, drawn from recordings. `python benchmarks/screenshots.py [-o docs/img]`

`overview`: a recording of an NVIDIA H200 on which a model of 1.5B's shape decodes (tests/evidence/recordings/h200-decode, made with
`dstune monitor --record`). `doctor`: the failed start of examples/logs beside the same card, the first finding opened.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from pathlib import Path
from typing import Any

from dstune import lang

ROOT = Path(__file__).parents[1]
RECORDING = "tests/evidence/recordings/h200-decode"
FONT = "'DejaVu Sans Mono', 'Noto Sans Mono CJK SC', Menlo, Consolas, monospace"
"""Fonts that have the blocks, and Chinese letters of two cells; the one that textual names has neither."""
SHOTS = (
    ("overview", "en", (100, 28), "", ()), ("doctor", "en", (100, 28), "examples/logs/vllm-kv-cache-too-small.log", ("enter",)),
    ("overview", "zh", (100, 28), "", ()), ("doctor", "zh", (100, 28), "examples/logs/vllm-kv-cache-too-small.log", ("enter",)),
)  # fmt: skip


async def draw(screen: str, size: tuple[int, int], log: str, keys: tuple[str, ...]) -> str:
    """One picture, when the recording and the log are at their end."""
    from dstune.cli.acts import actions
    from dstune.tui.app import Monitor
    from dstune.tui.replay import ReplayFeed

    app: Any = Monitor(ReplayFeed(RECORDING, 0), log=log, actions=actions(()), start=screen)
    async with app.run_test(size=size) as pilot:
        while not app.state.ended or (log and not app.log_state.number):
            await pilot.pause(0.05)
        app.judge_again()
        await app.workers.wait_for_complete()
        app.view.chosen = 0
        await pilot.press(*keys)
        app.note = ""
        app.draw()
        await pilot.pause()
        text = str(app.export_screenshot(title="dstune monitor"))
    text = re.sub(r"@font-face\s*{[^}]*}", "", text)  # they are fetched from a network; the picture needs none
    return re.sub(r"font-family: *[\"']?Fira Code[^;]*;", f"font-family: {FONT};", text)


def main() -> None:
    """Draws all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", default="docs/img")
    folder = Path(parser.parse_args().out)
    os.chdir(ROOT)
    folder.mkdir(parents=True, exist_ok=True)
    for screen, language, size, log, keys in SHOTS:
        lang.use(language)
        (folder / f"monitor-{screen}-{language}.svg").write_text(asyncio.run(draw(screen, size, log, keys)), encoding="utf-8")


if __name__ == "__main__":
    main()
