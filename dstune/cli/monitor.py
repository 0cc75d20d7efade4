"""`dstune monitor`: the screen that a person leaves open beside the server."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from dstune.cli.options import common, evidence_option
from dstune.errors import DstuneError, Exit, UnobservableError
from dstune.lang import say
from dstune.model import Artifact, Diagnosis, Document, Evidence


@click.command(
    help=say(
        "Watch GPUs and server, see what is wrong, change it from there. URL: a server; without it the first one found here.",
        "监视显卡和服务，看出问题并就地修改。URL 为服务地址，不给则取本机找到的第一个。",
    )
)
@click.argument("url", required=False)
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True),
    help=say("File to diagnose and fix beside (app.py, launch.sh).", "一并诊断和修复的文件。"),
)
@click.option(
    "--log", help=say("Log to follow: FILE, docker:NAME, journal:UNIT.", "要跟踪的日志：文件、docker:容器、journal:服务。")
)
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    help=say("Seconds between samples.", "采样间隔秒数。"),
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help=say("Pace of a recording (0: at once).", "回放速度（0：立即）。"),
)
@click.option("--record", type=click.Path(), help=say("Keep every sample in this folder.", "把每次采样存入该文件夹。"))
@click.option("--ascii", "plain", is_flag=True, help=say("No Unicode blocks.", "不使用 Unicode 图块。"))
@click.option(
    "--screen",
    type=click.Choice(["overview", "doctor", "load", "plan", "log"]),
    default="overview",
    help=say("First screen.", "初始页面。"),
)
@click.option(
    "--screenshot", type=click.Path(), help=say("Draw one screen into an SVG file and leave.", "把一个页面画成 SVG 后退出。")
)
@click.option("--size", default="100x30", show_default=True, help=say("Size of the screenshot.", "截图尺寸。"))
@evidence_option
@common
def command(
    url: str | None, files: tuple[str, ...], log: str | None, interval: float, rate: float, record: str | None, plain: bool, screen: str, screenshot: str | None,
    size: str, evidence: tuple[str, ...], as_json: bool,
) -> int:  # fmt: skip
    from dstune.tui.feed import Feed, LiveFeed, Recorder, ReplayFeed

    if as_json:
        raise DstuneError(say("the monitor is a screen", "monitor 是一个界面"), "", "dstune doctor --json")
    if not screenshot and not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise UnobservableError(
            say("the monitor needs a terminal", "monitor 需要终端"),
            say("stdin or stdout is none", "标准输入或输出不是终端"),
            "dstune doctor, or dstune monitor --screenshot FILE.svg",
        )
    feed: Feed = ReplayFeed(evidence[0], 0 if screenshot else rate) if evidence else LiveFeed(url or "", interval)
    if record:
        feed = Recorder(feed, record)
    app = _app(feed, url or "", files, log or "", plain, screen)
    if screenshot:
        return _picture(app, screenshot, size)
    signal.signal(signal.SIGTERM, lambda *_: app.exit(0))
    app.run()
    return Exit.OK


def _app(feed: Any, url: str, files: tuple[str, ...], log: str, plain: bool, screen: str) -> Any:
    from dstune.tui.app import Actions, Monitor
    from dstune.tui.plan import Knobs

    fixer = Fixer(files)
    actions = Actions(fixer.find if files else None, fixer.write, _undo, _diagnoser(files))
    return Monitor(feed, url, log, plain, actions, Knobs(), screen)


def _diagnoser(files: tuple[str, ...]) -> Any:
    from dstune.cli.doctor import gather
    from dstune.derive import derive
    from dstune.diagnose import diagnose

    def run(seen: Evidence) -> Diagnosis:
        return diagnose(derive(gather(files).merged(seen) if files else seen))

    return run


class Fixer:
    """The fixes of the given files: found by doctor with the live evidence, shown by the screen, written when told."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self._files = files
        self._sources: dict[str, Any] = {}

    def find(self, seen: Evidence) -> tuple[Artifact, ...]:
        """The files as they should be; empty where there is nothing to do."""
        from dstune.cli.fixes import Wish, artifacts, carry_out
        from dstune.derive import derive
        from dstune.diagnose import diagnose
        from dstune.patch import read
        from dstune.readers import read_documents, recognise

        sources = [read(f) for f in self._files]
        self._sources = {s.path: s for s in sources}
        documents = [Document(s.path, recognise(s.path, s.text), s.text) for s in sources]

        def judge(now: Sequence[Document]) -> tuple[Evidence, Diagnosis]:
            evidence = derive(read_documents(now).merged(seen))
            return evidence, diagnose(evidence)

        outcome = carry_out([d for d in documents if d.kind != "log"], judge, Wish())
        return tuple(artifacts(sources, outcome))

    def write(self, artifacts: tuple[Artifact, ...]) -> str:
        """Writes them, all or none; says under which number `dstune undo` knows it."""
        from dstune.patch import Change, write

        number = write([Change(self._sources[a.path], self._sources[a.path].encoded(a.text)) for a in artifacts], {"command": "monitor"})
        return say(f"written; dstune undo {number} takes it back", f"已写入；dstune undo {number} 可撤销")


def _undo() -> str:
    from dstune.patch import undo

    done = undo()
    return say(f"taken back: {', '.join(f['path'] for f in done['files'])}", f"已撤销：{'、'.join(f['path'] for f in done['files'])}")


def _picture(app: Any, path: str, size: str) -> int:
    """Runs without a terminal until the feed's first sample is drawn (a recording: its last), then writes the SVG."""
    import asyncio

    from dstune.cli.options import save

    try:
        width, height = (int(n) for n in size.lower().split("x"))
    except ValueError:
        raise DstuneError(say(f"{size!r} is no size", f"{size!r} 不是尺寸"), "", "--size 100x30") from None

    async def draw() -> str:
        async with app.run_test(size=(width, height)) as pilot:
            for _ in range(100):
                await pilot.pause(0.05)
                if app.state.ended or (app.state.samples and app.feed.live):
                    break
            app.note = ""
            app.draw()
            await pilot.pause()
            return str(app.export_screenshot(title="dstune"))

    save(path, asyncio.run(draw()))
    return Exit.OK
