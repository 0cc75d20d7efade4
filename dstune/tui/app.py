"""The monitor's app: one thread samples, one message brings a sample, one state holds it, and the visible panel is drawn from that."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult, SystemCommand
from textual.message import Message
from textual.screen import Screen
from textual.widgets import ContentSwitcher
from textual.worker import Worker

from dstune.lang import current, say, use
from dstune.model import Diagnosis, Evidence, Fact
from dstune.tui import doctor, doing, follow, keys, load, logs, overview, palette, plan, split
from dstune.tui.dialogs import Help, Palette
from dstune.tui.doing import Actions
from dstune.tui.draw import Lines, wrapped
from dstune.tui.feed import Feed
from dstune.tui.keys import SCREENS
from dstune.tui.panel import Panel
from dstune.tui.sampling import Sampler
from dstune.tui.state import State

MIN_WIDTH, MIN_HEIGHT = 60, 16


class Sampled(Message):
    """A new sample, and its diagnosis where one was made."""

    def __init__(self, evidence: Evidence, diagnosis: Diagnosis | None) -> None:
        super().__init__()
        self.evidence, self.diagnosis = evidence, diagnosis


class Told(Message):
    """The feed ended (`why` "") or had trouble."""

    def __init__(self, why: str, ended: bool) -> None:
        super().__init__()
        self.why, self.ended = why, ended


class LogGrew(Message):
    """Log text came."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class Monitor(App[int]):
    """Five screens over one feed."""

    TITLE = "dstune"
    CSS = """
    #tabs, #status { height: 1; background: $boost; }
    ContentSwitcher { height: 1fr; }
    .plain { scrollbar-size-vertical: 0; }
    """
    BINDINGS: ClassVar[list[Any]] = keys.bindings()

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
        self.ansi_theme_dark, self.ansi_theme_light = palette.DARK, palette.LIGHT
        self.feed, self.plain, self.actions = feed, plain, actions or Actions()
        self.state, self.load, self.view = State(), load.LoadState(url=load.base(url)), doctor.View()
        self.log_state = logs.LogState(source=log)
        self.knobs = knobs or plan.Knobs()
        self.plan: Any = None
        self.run_facts: tuple[Fact, ...] = ()
        self.load_seconds = 0.0
        self.screen_name, self.note = start, ""
        self.sampler = Sampler(feed, self.actions.diagnose, self.beside, self._say)
        self.follower = follow.Follower(log, lambda text: self.post_message(LogGrew(text)))
        self._reveal = True
        self._load_task: Any = None
        if plain:
            self.use_command_palette = False  # it draws with signs of its own; every command has a key

    def compose(self) -> ComposeResult:
        """Tabs, the five screens, a status line."""
        yield Panel("tabs", self.plain)
        with ContentSwitcher(initial=self.screen_name, id="body"):
            for name in SCREENS:
                panel = Panel(name, self.plain)
                panel.set_class(self.plain, "plain")
                yield panel
        yield Panel("status", self.plain)

    def on_mount(self) -> None:
        """Starts the threads and draws the empty screen."""
        self._on_signals()
        self.sampler.start()
        self.follower.start()
        if self.screen_name == "plan":
            self._plan()
        self.call_after_refresh(self.draw)

    def _on_signals(self) -> None:
        """A kill, an interrupt from elsewhere or a closed terminal leaves as q does: the terminal is given back."""
        import asyncio

        if not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
                with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                    asyncio.get_running_loop().add_signal_handler(number, self.exit, 128 + number)

    def _say(self, what: object) -> None:
        """From the sampling thread."""
        if isinstance(what, tuple):
            self.post_message(Sampled(*what))
        else:
            self.post_message(Told(str(what or ""), what is None))

    def beside(self) -> Evidence:
        """What is known beside the feed."""
        return doing.facts_beside(self.run_facts, self.log_state.evidence)

    def evidence(self) -> Evidence:
        """All evidence of now."""
        return self.state.evidence.merged(self.beside())

    def _begin(self, group: str, what: Callable[[], Coroutine[Any, Any, None]]) -> Worker[None]:
        """One at a time per group: the new one ends the one before. It takes a function, since a coroutine whose worker was ended before
        its first step is never awaited, which Python reports in the middle of the screen."""
        return self.run_worker(what, group=group, exclusive=True, exit_on_error=False)

    def judge_again(self) -> None:
        """A diagnosis at once: files, log or load changed."""
        self._begin("judge", self.judge)

    async def judge(self) -> None:
        """Diagnoses what is known now, and draws it."""
        import asyncio

        if self.actions.diagnose is not None:
            found = await asyncio.to_thread(self.actions.diagnose, self.evidence())
            self.state.diagnosis, self.state.diagnosed = found, True
            self.state.holders = split.holders(self.evidence())
        self._texts()
        self.draw()

    def on_sampled(self, message: Sampled) -> None:
        """A sample: state, then the visible screen."""
        self.state.take(message.evidence, message.diagnosis)
        if self.note and self.state.ended:
            self.state.ended, self.note = False, ""
        if message.diagnosis is not None:
            self.state.holders = split.holders(self.evidence())
            self._texts()
        asked = self.plan is not None or self.screen_name == "plan"
        if asked and "gpu" in self.knobs.assumed and plan.here(self.state, self.knobs) != self.knobs:
            self.plan = None  # it was asked for before the first sample named the card
            self._plan()
        if not self.load.url:
            self.load.url = next(iter(self.state.urls()), "")
        if self.load.running:
            cards = self.state.subjects("gpu")
            self.load.gpu.append(self.state.number(cards[0], "utilization_pct") if cards else None)
        self.draw()

    def _texts(self) -> None:
        """A new diagnosis: lines that its evidence may cite (files given, the followed log), marks in the log, what a load made appear."""
        self.state.kept = self.load.note(self.state.diagnosis.findings, self.evidence())
        texts = dict(self.actions.texts()) if self.actions.texts is not None else {}
        if self.log_state.source:
            texts[self.log_state.source] = self.log_state.texts()
            self.log_state.link(self.state.diagnosis.findings)
        self.view.texts = texts

    def on_told(self, message: Told) -> None:
        """The end of a recording, or trouble."""
        self.state.ended = self.state.ended or message.ended
        self.note = message.why or say("end of the recording (← goes back)", "录制已结束（← 可返回）")
        self.draw()

    def on_log_grew(self, message: LogGrew) -> None:
        """New lines; a matched one asks for a diagnosis."""
        try:
            if self.log_state.feed(message.text):
                self.sampler.again()
                if not self.feed.live:  # a recording that is paused or at its end brings no sample
                    self.judge_again()
        except Exception as error:  # a recipe that is broken is said; the screen lives on
            self.note = str(error)
        self.draw("log")

    def on_resize(self) -> None:
        """The terminal changed."""
        self.call_after_refresh(self.draw)

    def _mounted(self) -> bool:
        """Whether there are panels to draw on."""
        names = ("body", self.screen_name, "tabs", "status")
        return self.is_running and bool(self.screen_stack) and all(self.screen_stack[0].query(f"#{name}") for name in names)

    def draw(self, only: str = "") -> None:
        """Draws the visible screen (`only`: if it is this one)."""
        if not self._mounted():  # a sample comes when it comes: before the panels are there, or after they have gone
            return
        base, name = self.screen_stack[0], self.screen_name
        if only and only != name:
            return
        base.query_one("#body", ContentSwitcher).current = name
        width, height = self.size.width, self.size.height
        panel = base.query_one(f"#{name}", Panel)
        row = -1
        if width < MIN_WIDTH or height < MIN_HEIGHT:
            words = say(
                f"the terminal is {width}x{height}; at least {MIN_WIDTH}x{MIN_HEIGHT} is needed",
                f"终端为 {width}x{height}，至少需要 {MIN_WIDTH}x{MIN_HEIGHT}",
            )
            lines: Lines = wrapped(words, width, "yellow")
        else:
            try:
                lines, row = self.body(name, width - 1, height - 2)
            except Exception as error:  # evidence of a shape nobody foresaw: this screen says so, the others live on
                lines = wrapped(f"{type(error).__name__}: {error}", width, "red")
        panel.show(lines)
        if row >= 0 and self._reveal:
            panel.show_row(row)
            self._reveal = False
        causes = sum(not f.because for f in doctor.rows(self.state))
        base.query_one("#tabs", Panel).show([keys.tabs(name, width, self._where(), causes)])
        base.query_one("#status", Panel).show(
            [keys.status(name, width, self.note, hasattr(self.feed, "seek"), bool(self.view.artifacts))]
        )

    def _where(self) -> str:
        """Where the samples come from, for the right end of the tabs."""
        return str(getattr(self.feed, "place", "")) if hasattr(self.feed, "place") else ""

    def body(self, name: str, width: int, height: int) -> tuple[Lines, int]:
        """The lines of one screen, and the line that must be in view (-1: none)."""
        if name == "overview":
            return overview.overview(self.state, width, height, self.plain), -1
        if name == "doctor":
            return doctor.doctor(self.state, self.view, width, self.plain)
        if name == "load":
            return load.load_screen(self.load, self.state, width, height, self.plain, len(self.state.urls())), -1
        if name == "plan":
            return plan.plan_screen(self.knobs, self.plan, width, self.plain), -1
        return logs.log_screen(self.log_state, width, height), -1

    def show(self, name: str) -> None:
        """Another screen."""
        self.screen_name = name
        if name == "plan" and self.plan is None:
            self._plan()
        self.draw()

    def _plan(self) -> None:
        if self.plan is None and "gpu" in self.knobs.assumed:
            self.knobs = plan.here(self.state, self.knobs)
        self._begin("plan", partial(doing.compute_plan, self))

    def action_show(self, name: str) -> None:
        """Keys 1 to 5, and the tabs."""
        self.note = "" if not self.state.ended else self.note
        self.show(name)

    def action_choose(self, number: int) -> None:
        """A click on a finding: chooses it, and opens or closes it."""
        self.view.chosen, self._reveal = number, True
        self.action_enter()

    def action_open(self, cause: str) -> None:
        """Opens a finding in the Doctor, from wherever it was named."""
        found = [f.cause for f in doctor.rows(self.state)]
        self.note = (
            ""
            if cause in found
            else say(
                f"{cause} matched in the log and is refuted or not diagnosed yet", f"{cause} 在日志中命中，但已被排除或尚未诊断"
            )
        )
        if cause in found:
            self.view.chosen, self.view.artifacts = found.index(cause), ()
            self.view.open.add(cause)
            self._reveal = True
        self.show("doctor")

    def action_enter(self) -> None:
        """Opens and closes the chosen finding; in the log, goes to the finding of the chosen line."""
        if self.screen_name == "log" and self.log_state.chosen in self.log_state.marks:
            self.action_open(self.log_state.marks[self.log_state.chosen])
            return
        found = doctor.rows(self.state)
        if self.screen_name == "doctor" and found and not self.view.artifacts:
            self.view.open ^= {found[min(self.view.chosen, len(found) - 1)].cause}
            self.draw()

    def action_leave(self) -> None:
        """Away from the diff."""
        self.view.artifacts = ()
        self.draw()

    def action_move(self, step: int) -> None:
        """Chooses a finding, or scrolls."""
        if self.screen_name == "doctor" and not self.view.artifacts and abs(step) == 1:
            self._reveal = True
            self.view.chosen = min(max(0, self.view.chosen + step), max(0, len(doctor.rows(self.state)) - 1))
        elif self.screen_name == "log":
            self.log_state.turn(-step, self.size.height - 3)
        elif self._mounted():
            self.screen_stack[0].query_one(f"#{self.screen_name}", Panel).scroll_relative(y=step, animate=False)
        self.draw()

    def action_end(self, step: int) -> None:
        """To the end (1) or the beginning (-1)."""
        self.action_move(step * logs.KEEP_LINES)

    def action_turn(self, key: str, step: int) -> None:
        """Turns a knob of the plan, or the clients and the server of the load; n in the log goes to the next match."""
        if self.screen_name == "load" and key == "concurrency":
            values = plan.CONCURRENCY
            at = values.index(self.load.concurrency) if self.load.concurrency in values else 3
            self.load.concurrency = values[(at + step) % len(values)]
        elif self.screen_name == "load" and key == "engine":
            urls = self.state.urls()
            if urls and not self.load.running:
                self.load.url = urls[(urls.index(self.load.url) + step) % len(urls)] if self.load.url in urls else urls[0]
        elif self.screen_name == "plan":
            self.knobs, self.note = self.knobs.turned(key, step), ""
            self._plan()
        elif self.screen_name == "log" and key == "gpus":
            self.log_state.jump(step, self.size.height - 3)
        self.draw()

    def action_help(self) -> None:
        """All keys."""
        self.push_screen(Help(keys.help_text(), self.plain))

    def action_language(self) -> None:
        """English or Chinese; findings are worded by the diagnosis, so it is made anew."""
        use("en" if current() == "zh" else "zh")
        self.plan, self.note = None, ""
        if self.screen_name == "plan":
            self._plan()
        self._begin("judge", partial(doing.reword, self))
        self.draw()

    def action_dark(self) -> None:
        """Light or dark."""
        self.theme = "textual-light" if self.theme != "textual-light" else "textual-dark"

    def action_pause(self) -> None:
        """Stops or goes on with a recording."""
        if hasattr(self.feed, "pause"):
            self.feed.pause()
            self.draw()

    def action_seek(self, step: int) -> None:
        """Moves in a recording."""
        if hasattr(self.feed, "seek"):
            moved = self.feed.seek(step)
            if moved < 0:
                self.state.rewind(-moved)
            self.draw()

    def action_fix(self, everything: bool) -> None:
        """The fix as a diff."""
        self._begin("fix", partial(doing.fix, self, everything))

    def action_write(self) -> None:
        """Writes what is shown."""
        self._begin("write", partial(doing.write, self))

    def action_undo(self) -> None:
        """Takes the last write back."""
        self._begin("write", partial(doing.undo, self))

    def action_load(self) -> None:
        """Starts a load, or stops it and keeps the figures so far."""
        if self.load.running and self._load_task is not None:
            self._load_task.cancel()
        elif self.load.url:
            self._load_task = self._begin("load", partial(doing.load, self))
            self.show("load")
        else:
            self.load.error = say("no server to load: dstune monitor URL", "没有可压测的服务：dstune monitor URL")
            self.show("load")

    def action_command_palette(self) -> None:
        """Opens the palette."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette", placeholder=say("Search for commands…", "搜索命令…")))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The command palette: every screen and action, in the language of now."""
        return [SystemCommand(*row) for row in keys.commands(self)]

    def on_unmount(self) -> None:
        """Ends the threads and what the feed started."""
        self.sampler.stop()
        self.feed.close()
        self.follower.stop()

    def text_of(self, name: str = "") -> str:
        """What a screen says, as text (tests)."""
        lines, _ = self.body(name or self.screen_name, self.size.width - 1, self.size.height - 2)
        return "\n".join(line.plain if isinstance(line, Text) else str(line) for line in lines)
