"""What a side of `dstune verify` is, and one side measured: a server that runs, a program that is started for it, or a saved run."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit

from dstune.errors import DstuneError, UnobservableError, unwinding
from dstune.lang import say
from dstune.load.client import now
from dstune.load.detect import LOOPBACK, Server, detect
from dstune.load.launch import Program, Running, interpreter
from dstune.load.run import Live
from dstune.load.verify import Bench, SilentError, calls, door, measured, warmed
from dstune.model.plan import Trial

_STARTS = ("app.py", "main.py", "server.py", "launch.sh", "run.sh", "start.sh", "serve.sh")
"""What a folder is started by, the first that it has."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side as it was given. `program` for what is started, `url` for what runs, `path` for a saved run."""

    name: Literal["before", "after"]
    shown: str
    program: Program | None = None
    url: str = ""
    path: str = ""


@dataclass(slots=True)
class Measured:
    """One side's passes. `held`: sampling was off and lengths were capped on this side."""

    side: Side
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    answers: list[list[str]] = field(default_factory=list)
    server: Server | None = None
    held: bool = False
    up_s: float | None = None
    per_process: bool = True
    words: str = ""
    """The last words of a program that did not answer everything."""
    failed: UnobservableError | None = None
    """Why a program did not serve, or a side answered nothing."""
    silent: bool = False
    """It serves, and answered none of its questions."""

    @property
    def answered(self) -> int:
        """Requests that were answered, over all passes."""
        return sum(o["requests"]["ok"] for o in self.outcomes)

    @property
    def talks(self) -> bool:
        """Whether any question was answered to its natural end; of a saved run, any request."""
        return any(map(any, self.answers)) if self.answers else self.answered > 0


def side_of(name: Literal["before", "after"], text: str, python: str) -> Side:
    """The side that a word of the command line names. Raises `DstuneError` for what is none."""
    if "://" in text:
        return Side(name, text, url=text)
    if os.path.isdir(text):
        start = next((s for s in _STARTS if os.path.isfile(os.path.join(text, s))), None)
        if start is None:
            raise DstuneError(
                say(f"{text} holds nothing to start", f"{text} 中没有可启动的文件"),
                say(f"none of {', '.join(_STARTS)}", f"没有 {'、'.join(_STARTS)}"),
                say(
                    "start it yourself (docker compose up -d) and give its URL", "自行启动（docker compose up -d）后给出其 URL"
                ),
            )
        return side_of(name, os.path.join(text, start), python)
    if not os.path.isfile(text):
        raise DstuneError(
            say(f"{text}: no such file, folder or URL", f"{text}：没有这样的文件、文件夹或 URL"),
            "",
            f'dstune verify --{name}-cmd "{text}" …',
        )
    if text.endswith(".json"):
        return Side(name, text, path=text)
    folder = os.path.dirname(os.path.abspath(text))
    file = os.path.basename(text)
    if text.endswith(".py"):
        return Side(name, text, Program((interpreter(folder, python), file), folder))
    if text.endswith((".sh", ".bash")) or _script(text):
        return Side(name, text, Program(("bash", file), folder))
    raise DstuneError(
        say(f"{text} is nothing that can be started", f"{text} 无法启动"),
        say(
            "a .py program, a shell script, a folder, a URL or a saved run.json is",
            "可以是 .py 程序、shell 脚本、文件夹、URL 或保存的 run.json",
        ),
        f'dstune verify --{name}-cmd "…"',
    )


def _script(path: str) -> bool:
    with open(path, "rb") as f:
        return f.read(2) == b"#!"


def command_side(name: Literal["before", "after"], line: str) -> Side:
    """A side that is a command line, run in this folder without a shell."""
    try:
        argv = tuple(shlex.split(line))
    except ValueError as error:
        raise DstuneError(
            say(f"--{name}-cmd: {error}", f"--{name}-cmd：{error}"), "", f'--{name}-cmd "vllm serve MODEL"'
        ) from None
    if not argv:
        raise DstuneError(say(f"--{name}-cmd is empty", f"--{name}-cmd 为空"), "", f'--{name}-cmd "vllm serve MODEL"')
    return Side(name, line, Program(argv, os.getcwd()))


def talk(line: str) -> None:
    """A line on stderr."""
    from dstune.redact import printable, redact

    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    print(printable(redact(line)), file=sys.stderr, flush=True)
    _last[0] = time.monotonic()


QUIET_S = 10.0
"""Seconds after which a log, where no line can be drawn over, gets a line about what goes on."""
_last = [0.0]


def _drawn(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    elif line and time.monotonic() - _last[0] >= QUIET_S:
        talk(line)


def measure(side: Side, bench: Bench, folder: str, within_s: float) -> Measured:
    """All passes of a side that is no saved run; what was started for it is gone afterwards."""
    if side.program is None:
        return _passes(side, bench, detect(side.url, dict(bench.headers)), "", _owner(side.url))
    from dstune.probes.tree import alive, members

    program = replace(side.program, tokens=bench.tokens if bench.held else 0)
    with unwinding():  # whatever ends this process ends what it started
        running = Running(program, folder, side.name)
        try:
            talk(
                say(
                    f"{side.name}: started `{program.shown}` in {program.cwd}, to listen on 127.0.0.1:{running.port}; its output: {running.log}",
                    f"{side.name}：在 {program.cwd} 启动 `{program.shown}`，监听 127.0.0.1:{running.port}；输出：{running.log}",
                )
            )
            watched = _watch(running.process.pid)
            try:
                server = _ready(side, running, within_s, dict(bench.headers))
                if isinstance(server, UnobservableError):
                    return Measured(side, failed=server)
                up_s = running.up_s
                talk(
                    say(
                        f"{side.name}: {server.kind} serves at {server.base} after {up_s:.0f} s",
                        f"{side.name}：{server.kind} 在 {up_s:.0f} 秒后开始服务：{server.base}",
                    )
                )
                found = _passes(side, bench, server, running.calls, watched)
                found.up_s = round(up_s, 2)
                if found.failed is not None:
                    words = found.words = _exception(running)
                    why = f"{found.failed.why}; {words}" if words else found.failed.why
                    found.failed = UnobservableError(found.failed.what, why, f"dstune doctor --log {running.log}")
                elif any(o["failed_all"] for o in found.outcomes):
                    found.words = _exception(running)
                return found
            finally:
                watched[0].end()
        finally:
            running.stop(members, alive)


def _exception(running: Running) -> str:
    """The exception that the program wrote last, if that is its last word."""
    words = running.words()
    return words if re.match(r"(?:\w+\.)*\w*(?:Error|Exception)\b", words) else ""


def _ready(side: Side, running: Running, within_s: float, headers: dict[str, str]) -> Server | UnobservableError:
    """The server once it serves, else why it does not: that is a result too."""
    from dstune.probes.tree import members, ports

    def tick(spent: float) -> None:
        _drawn(say(f"{side.name}: loads, {spent:.0f} s", f"{side.name}：加载中，{spent:.0f} 秒"))

    try:
        return running.ready(lambda pid: ports(members(pid)), within_s, headers, tick)
    except UnobservableError as error:
        talk(f"{side.name}: {error.what}")
        return error


Watched = tuple[Any, Any]
"""(the tree's `Watch`, the `Cards`)"""


def _watch(pid: int) -> Watched:
    from dstune.probes.nvidia_memory import Cards
    from dstune.probes.tree import Watch

    cards = Cards()
    return Watch(pid, cards.of), cards


def _owner(url: str) -> Watched | None:
    """The watch of a server that runs on this machine already; None for another machine's, or where its process is not ours to see."""
    parts = urlsplit(url)
    if parts.hostname not in LOOPBACK:
        return None
    from dstune.probes.tree import owner

    pid = owner(parts.port or 80)
    return _watch(pid) if pid is not None else None


def _passes(side: Side, bench: Bench, server: Server, log: str, watched: Watched | None) -> Measured:
    from dstune.cli.bench_beside import Beside

    server = door(server, dict(bench.headers))
    found = Measured(side, server=server)
    ignores_eos = warmed(server, bench, _tick(side.name, 0, bench.repeat))
    for number in range(bench.repeat):
        if watched is not None and number:
            watched[0].begin()
        start = watched[0].peaks() if watched is not None and not number else {}
        if watched is not None and not number:
            watched[0].begin()
        beside = Beside(server.base, bench.headers, server.metrics)
        try:
            trial, answers = measured(
                server, bench, number, log, ignores_eos, beside.begin, _tick(side.name, number + 1, bench.repeat)
            )
        except SilentError as error:
            talk(f"{side.name}: {error.what}: {error.why}")
            found.silent, found.failed = (
                True,
                UnobservableError(error.what, error.why, f"dstune doctor --endpoint {server.base}"),
            )
            return found
        finally:
            seen = beside.end()
        if trial.outcome.get("interrupted"):
            raise KeyboardInterrupt
        trial.outcome.update(seen)
        memory = watched[0].peaks() if watched is not None else {}
        others = watched[0].others() if watched is not None else None
        if others is not None:
            trial.outcome["others_cores"] = others
        if side.program is not None and start.get("rss_mib"):
            memory["start_rss_mib"] = start["rss_mib"]
        if memory:
            trial.outcome["memory"] = memory
        trial.settings["side"] = side.name
        found.trials.append(trial)
        found.outcomes.append(trial.outcome)
        if answers:
            found.answers.append(answers)
    found.held = bench.held and (server.dialect != "gradio" or bool(calls(log)))
    found.per_process = watched is None or watched[1].per_process
    _drawn("")
    return found


def _tick(name: str, number: int, of: int) -> Callable[[str, Live], None]:
    def tick(clients: str, live: Live) -> None:
        spent = now() - live.started
        what = say(f"pass {number}/{of}", f"第 {number}/{of} 轮") if number else say("warm-up", "预热")
        _drawn(
            say(
                f"{name}: {what}, {clients} user{'s' * (clients != '1')}: {live.done} answer{'s' * (live.done != 1)}, {live.failed} failed, {spent:.0f} s",
                f"{name}：{what}，{clients} 个用户：{live.done} 个回答，{live.failed} 个失败，{spent:.0f} 秒",
            )
        )

    return tick


def saved(side: Side) -> Measured:
    """A run that `dstune bench -o` saved."""
    from dstune.cli.bench_compare import outcomes

    return Measured(side, outcomes(side.path))


def like(runs: Sequence[dict[str, Any]], bench: Bench) -> Bench:
    """The bench that a saved run was, as far as it says: clients, tokens, profile, requests."""
    work, settings = runs[-1].get("workload") or {}, runs[-1].get("settings") or {}
    count = sum(runs[-1]["requests"].values())
    return replace(
        bench, clients=int(work.get("concurrency") or bench.clients), tokens=int(work.get("output_tokens") or bench.tokens),
        profile=str(settings.get("profile") or bench.profile), requests=max(1, count), held=False,
    )  # fmt: skip
