"""The monitor's app: keys, screens, workers. What is drawn stands in the modules beside it, as pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import ContentSwitcher, Static

from dstune.lang import current, say, use
from dstune.model import Artifact, Diagnosis, Evidence
from dstune.tui import doctor, load, logs, overview, plan
from dstune.tui.feed import Feed
from dstune.tui.state import State

SCREENS = ("overview", "doctor", "load", "plan", "log")
MIN_WIDTH, MIN_HEIGHT = 60, 16
DIAGNOSE_EVERY = 5
"""Samples between two diagnoses: one costs 20 ms, the screen follows within five seconds."""


class Sampled(Message):
    """A new sample. Replaced by a newer one where the app has not come to it yet."""

    def __init__(self, evidence: Evidence, diagnosis: Diagnosis | None) -> None:
        super().__init__()
        self.evidence, self.diagnosis = evidence, diagnosis

    def can_replace(self, message: Message) -> bool:
        """A newer sample makes an older one useless, unless that brings a diagnosis."""
        return isinstance(message, Sampled) and (message.diagnosis is None or self.diagnosis is not None)


class Ended(Message):
    """The feed has no more samples, or broke; `why` "" for a plain end."""

    def __init__(self, why: str = "") -> None:
        super().__init__()
        self.why = why


class LogGrew(Message):
    """Log text came."""


@dataclass(frozen=True, slots=True)
class Actions:
    """What the monitor may do, given by the command line: find fixes, write them, take them back, load a server."""

    fixes: Callable[[Evidence], tuple[Artifact, ...]] | None = None
    write: Callable[[tuple[Artifact, ...]], str] | None = None
    undo: Callable[[], str] | None = None
    diagnose: Callable[[Evidence], Diagnosis] | None = None


class Confirm(ModalScreen[bool]):
    """Asks before anything is written, naming the files."""

    BINDINGS: ClassVar[list[Any]] = [Binding("y,enter", "answer(True)", "yes"), Binding("n,escape", "answer(False)", "no")]
    CSS = "Confirm { align: center middle; } Confirm Static { width: 70; height: auto; border: heavy $warning; padding: 1 2; background: $surface; }"

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        """The question and its keys."""
        yield Static(self.question + "\n\n" + say("y = yes, n = no", "y = 是，n = 否"))

    def action_answer(self, yes: bool) -> None:
        """Closes with the answer."""
        self.dismiss(yes)


class Monitor(App[int]):
    """Five screens over one feed."""

    TITLE = "dstune"
    ENABLE_COMMAND_PALETTE = True
    CSS = """
    Screen { layers: base; }
    #tabs, #status { height: 1; background: $boost; }
    ContentSwitcher { height: 1fr; }
    VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    #doctor-side { width: 34%; min-width: 26; border-right: solid $boost; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        *(Binding(str(i + 1), f"show('{name}')", name, show=False) for i, name in enumerate(SCREENS)),
        Binding("q", "quit", "quit"),
        Binding("h,question_mark", "help", "help"),
        Binding("l", "language", "language"),
        Binding("d", "dark", "light/dark"),
        Binding("up,k", "move(-1)", show=False), Binding("down,j", "move(1)", show=False), Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("f", "fix", "fix"), Binding("w", "write", "write"), Binding("u", "undo", "undo"), Binding("s", "load", "load"),
        *(Binding(k, f"turn('{name}',{step})", show=False) for name, low, up in (
            ("gpu", "g", "G"), ("context", "x", "X"), ("concurrency", "c", "C"), ("engine", "e", "E"), ("goal", "o", "O"), ("gpus", "n", "N"))
          for k, step in ((low, 1), (up, -1))),
        Binding("space", "pause", show=False), Binding("left", "seek(-10)", show=False), Binding("right", "seek(10)", show=False),
    ]  # fmt: skip

    def __init__(
        self,
        feed: Feed,
        url: str = "",
        log: str = "",
        plain: bool = False,
        actions: Actions | None = None,
        knobs: plan.Knobs | None = None,
        start: str = "overview",
    ) -> None:
        super().__init__()
        self.feed, self.plain, self.actions = feed, plain, actions or Actions()
        self.state, self.load = State(), load.LoadState(url=url)
        self.log_state = logs.LogState(source=log)
        self.knobs = knobs or plan.Knobs()
        self.plan: Any = None
        self.chosen, self.offset, self.start_screen = 0, 0, start
        self.artifacts: tuple[Artifact, ...] = ()
        self.note = ""
        self._load_task: Any = None

    def compose(self) -> ComposeResult:
        """Tabs, the five screens, a status line."""
        yield Static(id="tabs")
        with ContentSwitcher(initial=self.start_screen, id="body"):
            for name in SCREENS:
                yield VerticalScroll(Static(id=f"{name}-text", markup=False), id=name, can_focus=False)
        yield Static(id="status")

    def on_mount(self) -> None:
        """Starts the workers and draws the empty screen."""
        self.run_worker(self._sample, thread=True, exclusive=True, group="feed", exit_on_error=False)
        if self.log_state.source:
            self.run_worker(self._follow, thread=True, exclusive=True, group="log", exit_on_error=False)
        self.draw()

    def _sample(self) -> None:
        from textual.worker import get_current_worker

        worker, count = get_current_worker(), 0
        try:
            while not worker.is_cancelled:
                found = self.feed.sample()
                if found is None:
                    self.post_message(Ended())
                    return
                diagnosis = None
                if self.actions.diagnose is not None and (count % DIAGNOSE_EVERY == 0 or not self.feed.live):
                    diagnosis = self.actions.diagnose(found.merged(self.log_state.evidence))
                count += 1
                self.post_message(Sampled(found, diagnosis))
        except Exception as error:  # a feed that breaks is shown on the screen, which lives on
            self.post_message(Ended(f"{type(error).__name__}: {error}"))

    def _follow(self) -> None:
        import time

        from textual.worker import get_current_worker

        worker = get_current_worker()
        for text in logs.follow(self.log_state.source):
            if worker.is_cancelled:
                return
            if text:
                self.log_state.feed(text)
                self.post_message(LogGrew())
            else:
                time.sleep(0.4)

    def on_sampled(self, message: Sampled) -> None:
        """A sample: state, then the visible screen."""
        self.state.take(message.evidence, message.diagnosis)
        if not self.load.url:
            self.load.url = str(self.state.value("server", "url") or "")
        self.draw()

    def on_ended(self, message: Ended) -> None:
        """The end of a recording, or a broken feed."""
        self.state.ended = True
        self.note = message.why or say("end of the recording", "录制已结束")
        self.draw()

    def on_log_grew(self, _: LogGrew) -> None:
        """New lines."""
        if self.screen_name == "log":
            self.draw()

    def on_resize(self) -> None:
        """The terminal changed."""
        self.draw()

    @property
    def screen_name(self) -> str:
        """The screen that shows."""
        return str(self.query_one("#body", ContentSwitcher).current)

    def draw(self) -> None:
        """Draws the visible screen."""
        if not self.query("#body"):
            return
        width, height = self.size.width, self.size.height
        name = self.screen_name
        target = self.query_one(f"#{name}-text", Static)
        if width < MIN_WIDTH or height < MIN_HEIGHT:
            target.update(
                Text(
                    say(
                        f"the terminal is {width}x{height}; at least {MIN_WIDTH}x{MIN_HEIGHT} is needed",
                        f"终端为 {width}x{height}，至少需要 {MIN_WIDTH}x{MIN_HEIGHT}",
                    ),
                    "yellow",
                )
            )
        else:
            target.update(self.body(name, width - 1, height - 2))
        self.query_one("#tabs", Static).update(self.tabs(name))
        self.query_one("#status", Static).update(self.status())

    def body(self, name: str, width: int, height: int) -> Text:
        """The text of one screen."""
        if name == "overview":
            return overview.overview(self.state, width, height, self.plain)
        if name == "doctor":
            if self.artifacts:
                return doctor.diff_text("\n".join(a.diff for a in self.artifacts))
            out = doctor.listing(self.state, self.chosen, width, min(10, height // 3))
            return out.append("\n" + ("-" if self.plain else "─") * width + "\n", "dim").append_text(
                doctor.detail(self.state, self.chosen, width)
            )
        if name == "load":
            return load.load_screen(self.load, self.state, width, height, self.plain)
        if name == "plan":
            if self.plan is None:
                self.plan = plan.planned(self.knobs)
            return plan.plan_screen(self.knobs, self.plan, width, self.plain)
        return logs.log_screen(self.log_state, width, height, self.offset)

    def tabs(self, name: str) -> Text:
        """The line at the top."""
        words = {
            "overview": ("Overview", "总览"),
            "doctor": ("Doctor", "诊断"),
            "load": ("Load", "压测"),
            "plan": ("Plan", "规划"),
            "log": ("Log", "日志"),
        }
        out = Text(" dstune ", "bold")
        for i, key in enumerate(SCREENS):
            out.append(f" {i + 1} {say(*words[key])} ", "reverse" if key == name else "")
        return out

    def status(self) -> Text:
        """The line at the bottom: what the keys do here, then the last note."""
        keys = {
            "doctor": say("↑↓ choose  f diff  w write  u undo", "↑↓ 选择  f 差异  w 写入  u 撤销"), "load": say("s start/stop  c clients", "s 开始/停止  c 客户端"),
            "plan": say("g x c e o n change (shift: back)", "g x c e o n 更改（shift 反向）"), "log": say("↑↓ scroll", "↑↓ 滚动"),
        }.get(self.screen_name, "")  # fmt: skip
        out = Text(f" {keys}  " if keys else " ")
        out.append(
            say("1–5 screens  h help  l 中文  d light/dark  q quit", "1–5 页面  h 帮助  l English  d 明暗  q 退出"), "dim"
        )
        return out.append(f"   {self.note}", "yellow") if self.note else out

    def action_show(self, name: str) -> None:
        """Another screen."""
        self.query_one("#body", ContentSwitcher).current = name
        self.artifacts = ()
        self.draw()

    def action_move(self, step: int) -> None:
        """Chooses a finding, or scrolls the log."""
        if self.screen_name == "doctor" and not self.artifacts:
            self.chosen = min(max(0, self.chosen + step), max(0, len(doctor.rows(self.state)) - 1))
        elif self.screen_name == "log":
            self.offset = min(max(0, self.offset - step), max(0, len(self.log_state.lines) - 5))
        else:
            self.query_one(f"#{self.screen_name}", VerticalScroll).scroll_relative(y=step, animate=False)
        self.draw()

    def action_turn(self, key: str, step: int) -> None:
        """Turns a knob of the plan, or the clients of the load."""
        if self.screen_name == "load" and key == "concurrency":
            values = plan.CONCURRENCY
            self.load.concurrency = (
                values[(values.index(self.load.concurrency) + step) % len(values)] if self.load.concurrency in values else 8
            )
        elif self.screen_name == "plan":
            self.knobs = self.knobs.turned(key, step)
            self.plan = plan.planned(self.knobs)
        self.draw()

    def action_help(self) -> None:
        """All keys."""
        self.notify(
            say(
                "1 Overview  2 Doctor  3 Load  4 Plan  5 Log\n↑↓/jk choose or scroll, f show the fix as a diff, w write it, u undo\ns start or stop a load, c clients\n"
                "g GPU, x context, c requests, e engine, o goal, n cards (shift: back)\nspace pause, ←→ seek (recordings), l 中文, d light/dark, ctrl+p palette, q quit",
                "1 总览  2 诊断  3 压测  4 规划  5 日志\n↑↓/jk 选择或滚动，f 以 diff 显示修复，w 写入，u 撤销\ns 开始或停止压测，c 客户端数\n"
                "g 显卡，x 上下文，c 并发，e 引擎，o 目标，n 卡数（shift 反向）\n空格 暂停，←→ 跳转（回放），l English，d 明暗，ctrl+p 命令面板，q 退出",
            ),
            title=say("Keys", "按键"), timeout=12,
        )  # fmt: skip

    def action_language(self) -> None:
        """English or Chinese."""
        use("en" if current() == "zh" else "zh")
        if self.actions.diagnose is not None:
            self.state.diagnosis = self.actions.diagnose(self.state.evidence.merged(self.log_state.evidence))
        self.draw()

    def action_dark(self) -> None:
        """Light or dark."""
        self.theme = "textual-light" if self.theme != "textual-light" else "textual-dark"

    def action_pause(self) -> None:
        """Stops or goes on with a recording."""
        if hasattr(self.feed, "paused"):
            self.feed.paused = not self.feed.paused

    def action_seek(self, step: int) -> None:
        """Moves in a recording."""
        if hasattr(self.feed, "seek"):
            self.feed.seek(step)

    def action_fix(self) -> None:
        """Shows the fixes of the findings as a diff, or goes back to the findings."""
        if self.artifacts:
            self.artifacts = ()
        elif self.actions.fixes is None:
            self.note = say(
                "no files were given to fix: dstune monitor --file app.py", "没有可修复的文件：dstune monitor --file app.py"
            )
        else:
            self.artifacts = self.actions.fixes(self.state.evidence)
            self.note = "" if self.artifacts else say("nothing to fix in the files given", "给出的文件无需修复")
            self.query_one("#body", ContentSwitcher).current = "doctor"
        self.draw()

    def action_write(self) -> None:
        """Writes what the diff shows, after asking."""
        if not self.artifacts or self.actions.write is None:
            self.note = say("show the diff first: f", "请先按 f 查看差异")
            self.draw()
            return
        names = "\n".join(f"  {a.path}" for a in self.artifacts)
        self.push_screen(
            Confirm(
                say(
                    f"Write the shown changes to\n{names}\n(a backup is kept, u takes it back)?",
                    f"将显示的更改写入\n{names}\n（会保留备份，u 可撤销）？",
                )
            ),
            self._write,
        )

    def _write(self, yes: bool | None) -> None:
        if yes and self.actions.write is not None:
            self._did(lambda: self.actions.write(self.artifacts))  # type: ignore[misc]
            self.artifacts = ()
        self.draw()

    def action_undo(self) -> None:
        """Takes the last written fix back, after asking."""
        if self.actions.undo is not None:
            self.push_screen(Confirm(say("Take the last written fix back?", "撤销上一次写入的修复？")), self._undo)

    def _undo(self, yes: bool | None) -> None:
        if yes and self.actions.undo is not None:
            self._did(self.actions.undo)
        self.draw()

    def _did(self, work: Callable[[], str]) -> None:
        from dstune.errors import DstuneError

        try:
            self.note = work()
        except (DstuneError, OSError) as error:
            self.note = str(error)

    def action_load(self) -> None:
        """Starts a load, or stops it and keeps the figures so far."""
        if self.load.running and self._load_task is not None:
            self._load_task.cancel()
        elif self.load.url:
            self._load_task = self.run_worker(self._load(), group="load", exclusive=True, exit_on_error=False)
        else:
            self.load.error = say("no server to load", "没有可压测的服务")
        self.draw()

    async def _load(self) -> None:
        """Runs in the app's own loop: the client costs a few percent of a core at what one server answers."""
        import asyncio

        from dstune.errors import DstuneError
        from dstune.load.detect import detect
        from dstune.load.run import Live, Options, trial_async
        from dstune.model import Workload

        state = self.load
        state.running, state.error, state.first_bytes = True, "", []

        def tick(live: Live) -> None:
            state.done, state.failed, state.first_bytes = live.done, live.failed, live.first_bytes
            if self.screen_name == "load":
                self.draw()

        try:
            server = await asyncio.to_thread(detect, state.url)
            work = Workload(output_tokens=128, concurrency=state.concurrency)
            found, _ = await trial_async(
                server, Options(work, model=server.models[0] if server.models else "default"), tick=tick
            )
            state.before, state.outcome = state.outcome, found.outcome
        except DstuneError as error:
            state.error = f"{error.what}: {error.why}"
        finally:
            state.running = False
            self.draw()

    def get_system_commands(self, screen: Screen[Any]) -> Any:
        """The command palette: every screen and action by name."""
        yield from super().get_system_commands(screen)
        for name in SCREENS:
            yield SystemCommand(name.capitalize(), say("show this screen", "显示该页面"), lambda n=name: self.action_show(n))
        yield SystemCommand(say("Start or stop a load", "开始或停止压测"), "", self.action_load)
        yield SystemCommand(say("Show the fix as a diff", "以 diff 显示修复"), "", self.action_fix)

    def on_unmount(self) -> None:
        """Ends the feed's child."""
        self.feed.close()
