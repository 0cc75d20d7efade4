"""`dstune monitor`: the screen that a person leaves open beside the server. What it may do is in `acts`."""

from __future__ import annotations

import os
import sys

import click

from dstune.cli.options import Number, common, evidence_option
from dstune.errors import DstuneError, Exit, UnobservableError
from dstune.lang import say


@click.command(
    help=say(
        "Watch GPUs and server, see what is wrong, change it from there. URL: a server (several: several); without it those found here.",
        "监视显卡和服务，看出问题并就地修改。URL 为服务地址（可多个），不给则取本机找到的服务。",
    )
)
@click.argument("urls", metavar="[URL]...", nargs=-1)
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
    type=Number(0.2, 60),
    default=1.0,
    show_default=True,
    help=say("Seconds between samples.", "采样间隔秒数。"),
)
@click.option(
    "--rate",
    type=Number(0, 1000),
    default=1.0,
    show_default=True,
    help=say("Pace of a recording (0: at once).", "回放速度（0：立即）。"),
)
@click.option(
    "--record",
    type=click.Path(),
    help=say("Keep every sample in this folder (10 to 40 KB each).", "把每次采样存入该文件夹（每次 10–40 KB）。"),
)
@click.option("--ascii", "plain", is_flag=True, help=say("No signs beyond ASCII and letters.", "除文字外只用 ASCII 符号。"))
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
    urls: tuple[str, ...], files: tuple[str, ...], log: str | None, interval: float, rate: float, record: str | None, plain: bool, screen: str,
    screenshot: str | None, size: str, evidence: tuple[str, ...], as_json: bool,
) -> int:  # fmt: skip
    if as_json:
        raise DstuneError(say("the monitor is a screen", "monitor 是一个界面"), "", "dstune doctor --json")
    if not screenshot and not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise UnobservableError(
            say("the monitor needs a terminal", "monitor 需要终端"),
            say("stdin or stdout is none", "标准输入或输出不是终端"),
            "dstune doctor, or dstune monitor --screenshot FILE.svg",
        )
    cells = _size(size)
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)  # the terminal knows its size, and that it changed; an exported one would win over it
    import gc

    gc.disable()  # the imports below make 100,000 objects that live to the end: looking through them again and again costs 0.1 s
    from dstune.cli.acts import actions
    from dstune.tui.app import Monitor
    from dstune.tui.feed import Feed, LiveFeed
    from dstune.tui.replay import Recorder, ReplayFeed

    feed: Feed = ReplayFeed(evidence[0], 0 if screenshot else rate) if evidence else LiveFeed(urls, interval)
    if record:
        feed = Recorder(feed, record)
    app = Monitor(feed, urls[0] if urls else "", log or "", plain, actions(files), start=screen)
    gc.freeze()
    gc.enable()
    if screenshot:
        import asyncio

        from dstune.cli.options import save
        from dstune.tui.picture import picture

        save(screenshot, asyncio.run(picture(app, cells)))
        return Exit.OK
    left = app.run()
    return int(app.return_code or left or Exit.OK)


def _size(size: str) -> tuple[int, int]:
    """`100x30` → (100, 30)."""
    width, _, height = size.lower().partition("x")
    if not (width.isdigit() and height.isdigit() and 20 <= int(width) <= 500 and 5 <= int(height) <= 300):
        raise DstuneError(say(f"{size!r} is no size", f"{size!r} 不是尺寸"), "", "--size 100x30")
    return int(width), int(height)
