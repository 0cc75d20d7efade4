"""The pictures of the README: SVGs of the monitor, drawn from recordings. `python benchmarks/screenshots.py [-o docs/img]`

`overview`: a recording of an NVIDIA H200 on which a model of 1.5B's shape decodes (tests/evidence/recordings/h200-decode, made with
`dstune monitor --record`). `server`: vLLM's CPU build with a small model, 32 clients of the Load screen against its limit of 8 sequences
(vllm-cpu-queue, without a card). `doctor`: the failed start of examples/logs beside the same card, the first finding opened.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
from pathlib import Path

from dstune import lang

ROOT = Path(__file__).parents[1]
CARD, QUEUE = "tests/evidence/recordings/h200-decode", "tests/evidence/recordings/vllm-cpu-queue"
START = "examples/logs/vllm-kv-cache-too-small.log"
SHOTS = (
    ("overview", "overview", (100, 28), CARD, "", ()), ("server", "overview", (100, 24), QUEUE, "", ()), ("doctor", "doctor", (100, 28), CARD, START, ("enter",)),
)  # fmt: skip


async def draw(screen: str, size: tuple[int, int], recording: str, log: str, keys: tuple[str, ...]) -> str:
    """One picture, when the recording and the log are at their end."""
    from dstune.cli.acts import actions
    from dstune.tui.app import Monitor
    from dstune.tui.picture import picture
    from dstune.tui.replay import ReplayFeed

    app = Monitor(ReplayFeed(recording, 0), log=log, actions=actions(()), start=screen)
    return await picture(app, size, keys, "dstune monitor")


def main() -> None:
    """Draws all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", default="docs/img")
    folder = Path(parser.parse_args().out)
    os.chdir(ROOT)
    folder.mkdir(parents=True, exist_ok=True)
    for (name, *shot), language in itertools.product(SHOTS, ("en", "zh")):
        lang.use(language)
        (folder / f"monitor-{name}-{language}.svg").write_text(asyncio.run(draw(*shot)), encoding="utf-8")


if __name__ == "__main__":
    main()
