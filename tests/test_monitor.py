"""The monitor as a person uses it: keys and clicks in, what the screen says out. Fixed samples, no terminal, no machine."""

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.widgets import ContentSwitcher

from dstune import lang
from dstune.model import Diagnosis, Evidence, Fact, Gap
from dstune.tui.app import Monitor, Sampled
from dstune.tui.dialogs import Confirm, Help
from dstune.tui.doing import Actions
from dstune.tui.feed import CannedFeed
from dstune.tui.plan import Knobs, planned
from tests import monitor_samples as canned


async def until(pilot: Any, seen: Callable[[], bool], what: str = "") -> None:
    for _ in range(1500):
        await pilot.pause(0.01)
        if seen():
            return
    raise AssertionError(f"never seen: {what}\n{pilot.app.text_of()}")


def session(
    test: Callable[[Any, Monitor], Awaitable[None]],
    app: Monitor | None = None,
    size: tuple[int, int] = (100, 30),
    wait: bool = True,
) -> None:
    """Runs a session to its end; the feed has ended (all samples are in) before the first key."""

    async def run() -> None:
        used = app or Monitor(canned.feed(30), actions=canned.actions())
        async with used.run_test(size=size) as pilot:
            if wait:
                await until(pilot, lambda: used.state.ended, "the end of the feed")
            await test(pilot, used)

    asyncio.run(run())


def test_a_sample_that_comes_before_the_panels_or_after_them() -> None:
    async def early(pilot: Any, app: Monitor) -> None:
        evidence = app.evidence()
        for panel in ("status", "overview", "body"):
            await app.screen.query_one(f"#{panel}").remove()
            app.post_message(Sampled(evidence, None))
            await pilot.press("2", "3", "down", "end", "1")
        assert app.screen_name == "overview"

    session(early)


def test_a_look_around() -> None:
    async def look(pilot: Any, app: Monitor) -> None:
        seen = app.text_of()
        assert "RTX 4090" in seen
        assert "power cap" in seen
        assert "waiting 24" in seen
        assert "~weights 3.3G" in seen
        assert " KV 14" in seen  # its tokens were read
        assert "web-vllm-1" in seen
        assert "batch-limit-too-small" in seen
        for key, name, word in (
            ("2", "doctor", "first-token-slow"),
            ("3", "load", "clients"),
            ("4", "plan", "--max-model-len 8192"),
            ("5", "log", "no log"),
            ("1", "overview", "RTX"),
        ):
            await pilot.press(key)
            await until(pilot, lambda w=word: w in app.text_of(), word)  # type: ignore[misc]
            assert app.query_one("#body", ContentSwitcher).current == name

    session(look)


def test_finding_opened_fixed_written_and_taken_back() -> None:
    disk = canned.Disk()

    async def repair(pilot: Any, app: Monitor) -> None:
        await pilot.press("2", "enter")
        assert "--max-num-seqs 64" in app.text_of()
        assert "verify: no request waits" in app.text_of()
        await pilot.press("w")
        await until(pilot, lambda: "show the diff first" in app.note, "a hint that nothing is shown yet")
        assert not disk.written
        await pilot.press("f")
        await until(pilot, lambda: "+vllm serve m --max-num-seqs 64" in app.text_of(), "the diff")
        assert disk.asked == [frozenset({"batch-limit-too-small"})]
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, Confirm), "a question")
        assert "launch.sh" in app.screen.question  # type: ignore[attr-defined]
        await pilot.press("n")
        await until(pilot, lambda: not isinstance(app.screen, Confirm), "the answer no")
        assert not disk.written
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, Confirm), "the question again")
        await pilot.press("y")
        await until(pilot, lambda: disk.written == [("launch.sh", "vllm serve m --max-num-seqs 64\n")], "the write")
        await until(pilot, lambda: "written" in app.note, "that it was written")
        await pilot.press("u")
        await until(pilot, lambda: isinstance(app.screen, Confirm), "a question before undo")
        assert "/srv/launch.sh" in app.screen.question  # type: ignore[attr-defined]
        await pilot.press("y")
        await until(pilot, lambda: not disk.written, "the undo")
        await pilot.press("u")
        await until(pilot, lambda: "nothing to undo" in app.note, "that there is nothing left")

    session(repair, Monitor(canned.feed(5), actions=canned.actions(disk)))


def test_write_that_fails_is_said() -> None:
    def full(_: Any) -> str:
        raise OSError(28, "No space left on device")

    actions = Actions(canned.diagnosis, canned.Disk().fixes, full, plan=canned.plan)

    async def repair(pilot: Any, app: Monitor) -> None:
        await pilot.press("2", "F")
        await until(pilot, lambda: bool(app.view.artifacts), "the diff")
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, Confirm), "the question")
        await pilot.press("y")
        await until(pilot, lambda: "No space left" in app.note, "the reason")

    session(repair, Monitor(canned.feed(5), actions=actions))


def test_plan_moves_with_the_keys_and_is_written() -> None:
    disk = canned.Disk()

    async def turn(pilot: Any, app: Monitor) -> None:
        await pilot.press("4")
        await until(pilot, lambda: "--max-model-len 8192 --max-num-seqs 8" in app.text_of(), "the first plan")
        await pilot.press("x", "c", "p", "G")
        await until(pilot, lambda: "--max-model-len 16384 --max-num-seqs 16" in app.text_of(), "the next plan")
        assert app.knobs.precision == "16 bit"
        assert app.knobs.gpu != "rtx-4090"
        assert "KV cache pool 7,168 MiB" in app.text_of()
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, Confirm), "the question")
        assert "launch.sh" in app.screen.question  # type: ignore[attr-defined]
        await pilot.press("y")
        await until(pilot, lambda: bool(disk.written), "the write")
        assert "--max-model-len 16384" in disk.written[0][1]

    session(turn, Monitor(canned.feed(5), actions=canned.actions(disk)))


def test_real_plan_obeys_the_precision() -> None:
    wide = planned(Knobs("rtx-4090", context=4096, engine="vllm", precision="16 bit"))
    narrow = planned(Knobs("rtx-4090", context=4096, precision="4 bit"))
    assert not isinstance(wide, str)
    assert not isinstance(narrow, str)
    assert narrow.predictions["weights_gib"].value < 0.6 * wide.predictions["weights_gib"].value
    none = planned(Knobs("t4", engine="vllm", precision="8 bit"))  # fp8 weights need compute capability 8.0
    assert isinstance(none, str)
    assert "no 8 bit format" in none


def test_plan_starts_from_the_card_and_the_model_that_are_there() -> None:
    served = canned.server(models=["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"])
    cards = [f for f in canned.many(2).facts if f.subject.startswith("gpu")]

    async def look(pilot: Any, app: Monitor) -> None:
        await pilot.press("4")
        await until(pilot, lambda: "--max-model-len" in app.text_of(), "the plan")
        assert (app.knobs.gpu, app.knobs.gpus, app.knobs.model) == ("h100-sxm", 2, "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B")

    session(look, Monitor(CannedFeed([Evidence((*cards, *served))]), actions=canned.actions()))


def test_log_lines_lead_to_their_finding() -> None:
    async def read(pilot: Any, app: Monitor) -> None:
        await until(pilot, lambda: app.log_state.number == 7, "the log")
        app.judge_again()
        await pilot.press("5")
        await until(pilot, lambda: "◀ batch-limit-too-small" in app.text_of(), "the mark")
        await pilot.press("n", "enter")
        await until(pilot, lambda: app.screen_name == "doctor", "the finding")
        text = app.text_of()
        assert "▶    6 WARNING 06-01" in text
        assert "4 INFO 06-01 10:00:58" in text  # its neighbours, in place

    session(read, Monitor(canned.feed(5), log=canned.LOG, actions=canned.actions()))


def test_mouse() -> None:
    async def point(pilot: Any, app: Monitor) -> None:
        tabs = app.query_one("#tabs")
        await pilot.click(tabs, offset=(25, 0))
        assert app.screen_name == "doctor"
        await pilot.click("#doctor", offset=(6, 0))
        await until(pilot, lambda: "verify: no request" in app.text_of(), "the finding opened by a click")
        await pilot.click(tabs, offset=(12, 0))
        assert app.screen_name == "overview"
        row = next(i for i, line in enumerate(app.text_of().splitlines()) if "gpu-power-limited" in line)
        await pilot.click("#overview", offset=(5, row))
        assert app.screen_name == "doctor"
        assert "gpu-power-limited" in app.view.open

    session(point)


def test_language_theme_help() -> None:
    async def change(pilot: Any, app: Monitor) -> None:
        await pilot.press("l")
        await until(pilot, lambda: "排队 24" in app.text_of() and "个请求在排队" in app.text_of(), "Chinese, the findings too")
        await pilot.press("h")
        assert isinstance(app.screen, Help)
        await pilot.press("x")
        assert not isinstance(app.screen, Help)
        before = app.theme
        await pilot.press("d")
        assert app.theme != before
        await pilot.press("l")
        assert lang.current() == "en"

    session(change)


def test_keys_faster_than_a_dialog_closes() -> None:
    """Two keys before the dialog is gone (a paste, a held key): the second one is nobody's, not the end of the monitor."""

    async def hurry(pilot: Any, app: Monitor) -> None:
        for keys in (("x", "y", "z"), ("escape",) * 3, ("h",) * 6):
            await pilot.press("h")
            for key in keys:
                app.post_message(events.Key(key, key if len(key) == 1 else None))
            await pilot.pause(0.2)
            while len(app.screen_stack) > 1:
                await pilot.press("x")
        await pilot.press("2")
        await until(pilot, lambda: app.screen_name == "doctor", "still there")

    session(hurry)


@pytest.mark.parametrize("keys", [("w", "w", "w"), ("y", "y"), ("n", "y"), ("enter", "escape", "escape")])
def test_answers_faster_than_the_question_closes(keys: tuple[str, ...]) -> None:
    disk = canned.Disk()

    async def hurry(pilot: Any, app: Monitor) -> None:
        await pilot.press("2", "F")
        await until(pilot, lambda: bool(app.view.artifacts), "the diff")
        if keys[0] != "w":
            await pilot.press("w")
            await until(pilot, lambda: isinstance(app.screen, Confirm), "the question")
        for key in keys:
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        await pilot.pause(0.4)
        if isinstance(app.screen, Confirm):
            await pilot.press("n")
        await until(pilot, lambda: len(app.screen_stack) == 1, "closed")
        await pilot.press("1")
        await until(pilot, lambda: app.screen_name == "overview", "still there")

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        session(hurry, Monitor(canned.feed(5), actions=canned.actions(disk)))
        gc.collect()
    assert not [str(w.message) for w in said if "never awaited" in str(w.message)]


@pytest.mark.parametrize("size", [(100, 30), (30, 4), (80, 3)])
def test_palette_paged_before_it_is_laid_out(size: tuple[int, int]) -> None:
    async def hurry(pilot: Any, app: Monitor) -> None:
        for keys in (("pagedown",), ("down", "pageup", "pagedown"), ("z", "z", "pagedown"), ("escape", "escape", "escape")):
            await pilot.press("ctrl+p")
            for key in keys:
                app.post_message(events.Key(key, key if len(key) == 1 else None))
                await pilot.pause(0.05)
            for _ in range(3):
                if len(app.screen_stack) > 1:
                    await pilot.press("escape")
        assert len(app.screen_stack) == 1

    session(hurry, size=size)


def test_command_palette_finds_a_screen() -> None:
    async def ask(pilot: Any, app: Monitor) -> None:
        await pilot.press("ctrl+p")
        await pilot.press(*"plan")
        await pilot.pause(0.5)
        await pilot.press("enter")
        await until(pilot, lambda: len(app.screen_stack) == 1 and app.screen_name == "plan", "the plan")

    session(ask)


@pytest.mark.parametrize("size", [(59, 24), (80, 15), (20, 5), (1, 1)])
def test_terminal_too_small_says_so(size: tuple[int, int]) -> None:
    async def shrink(pilot: Any, app: Monitor) -> None:
        await pilot.resize_terminal(*size)
        await pilot.pause(0.1)
        for key in "12345":
            await pilot.press(key)
        lines = app.query_one("#log")._lines  # type: ignore[attr-defined]
        assert "the terminal is".startswith(lines[0].plain[:15])
        await pilot.resize_terminal(80, 24)
        await pilot.press("1")
        await until(pilot, lambda: "RTX 4090" in app.query_one("#overview")._lines[0].plain, "the screen again")  # type: ignore[attr-defined]

    session(shrink)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("width", [60, 80, 99, 150, 220])
def test_no_line_is_wider_than_the_screen(width: int, plain: bool) -> None:
    async def measure(pilot: Any, app: Monitor) -> None:
        for language in ("en", "zh"):
            lang.use(language)
            for name in ("overview", "load", "doctor"):
                for line in app.body(name, width - 1, 22)[0]:
                    assert line.cell_len <= width - 1 or name == "doctor", line.plain

    session(measure, Monitor(canned.feed(5), plain=plain, actions=canned.actions()), (width, 24))


def test_ascii_screen_has_no_other_signs() -> None:
    async def look(pilot: Any, app: Monitor) -> None:
        for key in "1234":
            await pilot.press(key, "enter")
            await app.workers.wait_for_complete()
            shown = [line.plain for p in ("tabs", app.screen_name, "status") for line in app.query_one(f"#{p}")._lines]  # type: ignore[attr-defined]
            assert "".join(shown).replace("中文", "").isascii()

    session(look, Monitor(canned.feed(10), plain=True, actions=canned.actions()))


class Live:
    """A feed whose next sample the test decides."""

    live, place = True, "test"

    def __init__(self, first: Evidence) -> None:
        self.now: Evidence | Exception = first
        self.taken = 0
        self.closed = threading.Event()

    def sample(self) -> Evidence | None:
        self.closed.wait(0.02)
        self.taken += 1
        if isinstance(self.now, Exception):
            raise self.now
        return self.now

    def close(self) -> None:
        self.closed.set()


@pytest.mark.slow
def test_card_lost_server_down_driver_stuck_and_all_back() -> None:
    whole = canned.samples(60)[-1]
    live = Live(whole)

    def without(family: str, *more: Fact | Gap) -> Evidence:
        kept = tuple(f for f in whole.facts if not f.subject.startswith(family))
        return Evidence(
            (*kept, *(m for m in more if isinstance(m, Fact))), tuple(m for m in more if isinstance(m, Gap)), (), whole.origin
        )

    async def trouble(pilot: Any, app: Monitor) -> None:
        await until(pilot, lambda: "RTX 4090" in app.text_of(), "the card")
        live.now = without("gpu", *canned.facts("gpu0", name="NVIDIA GeForce RTX 4090", lost=True))
        await until(pilot, lambda: "GPU LOST" in app.text_of(), "the loss")
        live.now = without("server", *canned.facts("server", url="http://127.0.0.1:8000", reachable=False, engine="vllm"))
        await until(pilot, lambda: "does not answer (restarting" in app.text_of(), "the server's silence")
        live.now = without("gpu", Gap("gpu", "*", "the NVIDIA driver does not answer", "dmesg"))
        await until(pilot, lambda: "the NVIDIA driver does not answer" in app.text_of(), "the stuck driver")
        live.now = RuntimeError("sensor fell off")
        await until(pilot, lambda: "sensor fell off" in app.note, "the feed's trouble")
        live.now = whole
        await asyncio.sleep(2.1)
        await until(pilot, lambda: "waiting 24" in app.text_of() and "430/450" in app.text_of(), "everything again")
        assert None in app.state.series("gpu0", "utilization_pct")  # the hole stays visible

    session(trouble, Monitor(live, actions=canned.actions()), wait=False)


def test_diagnosis_that_breaks_does_not_end_the_samples() -> None:
    def broken(_: Evidence) -> Diagnosis:
        raise ValueError("recipe is broken")

    live = Live(canned.samples(1)[0])

    async def go_on(pilot: Any, app: Monitor) -> None:
        await until(pilot, lambda: "recipe is broken" in app.note, "what broke")
        count = app.state.samples
        await until(pilot, lambda: app.state.samples > count + 5, "more samples")

    session(go_on, Monitor(live, actions=Actions(broken)), wait=False)


def test_feed_that_hangs_does_not_hold_the_person() -> None:
    class Stuck(Live):
        def sample(self) -> Evidence | None:
            time.sleep(30)
            return None

    async def leave(pilot: Any, app: Monitor) -> None:
        await pilot.press("4")
        await until(pilot, lambda: "--max-model-len" in app.text_of(), "the plan, though nothing was sampled")

    before = time.monotonic()
    session(leave, Monitor(Stuck(Evidence()), actions=canned.actions()), wait=False)
    assert time.monotonic() - before < 15


def test_without_gpu_host_and_server_are_shown() -> None:
    seen = Evidence(
        (*canned.HOST, *canned.server()), (Gap("driver", "*", "libnvidia-ml.so.1 was not found", "install the driver"),)
    )

    async def look(pilot: Any, app: Monitor) -> None:
        text = app.text_of()
        assert "No GPU is visible here" in text
        assert "libnvidia-ml.so.1 was not found" in text
        assert "waiting 24" in text

    session(look, Monitor(CannedFeed([seen]), actions=canned.actions()))


def test_eight_cards_several_servers_mig_on_80x24() -> None:
    base = canned.many()
    more = [
        *canned.server("server1", engine="sglang", url="http://10.0.0.2:30000", waiting=3),
        *canned.facts("server2", url="http://10.0.0.3:8000", reachable=False),
    ]
    sliced = [
        *canned.facts(
            "gpu7",
            mig=True,
            mig_slices=["MIG 1g.10gb", "MIG 3g.40gb"],
            mig_slice_total_mib=[9856, 40448],
            mig_slice_free_mib=[9000, 20000],
        )
    ]

    async def look(pilot: Any, app: Monitor) -> None:
        lines = app.text_of().splitlines()
        assert len(lines) <= 22
        assert sum("H100" in line for line in lines) == 8
        assert any("MIG2" in line for line in lines)
        assert any("HW hot" in line for line in lines)
        assert any(line.startswith("sglang") for line in lines)
        assert any("10.0.0.3" in line and "does not answer" in line for line in lines)
        assert any(line.strip().endswith("more") for line in lines)

    session(look, Monitor(CannedFeed([base.plus([*more, *sliced])]), actions=canned.actions()), (80, 24))


def test_load_against_a_server_that_is_not_there() -> None:
    async def start(pilot: Any, app: Monitor) -> None:
        await pilot.press("s")
        await until(pilot, lambda: bool(app.load.error) and not app.load.running, "why there is no load")
        assert app.load.error in app.text_of() or app.load.error.split(":")[0] in app.text_of()

    session(start, Monitor(canned.feed(3), "http://127.0.0.1:9", actions=canned.actions()))


@pytest.fixture
def mock(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server that answers by the clock; `param`: milliseconds until its first token."""
    import subprocess
    import sys

    child = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.mock", "--ttft-ms", getattr(request, "param", "20"), "--itl-ms", "1"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert child.stdout is not None
    yield int(child.stdout.readline().split()[1])
    child.kill()
    child.wait()


@pytest.mark.slow
def test_two_loads_are_compared_and_reach_the_doctor(mock: int) -> None:
    seen: list[Evidence] = []

    def judge(evidence: Evidence) -> Diagnosis:
        seen.append(evidence)
        return canned.diagnosis()

    async def twice(pilot: Any, app: Monitor) -> None:
        app.load_seconds = 1.2
        await pilot.press("3", "C", "s")
        assert app.load.concurrency == 4
        await until(pilot, lambda: app.load.outcome is not None and not app.load.running, "the first load")
        assert "tok/s" in app.text_of()
        assert "first byte" in app.text_of()
        await until(
            pilot, lambda: any(f.subject == "run" and f.name == "answered" for f in seen[-1].facts), "the load as evidence"
        )
        await pilot.press("s")
        await until(pilot, lambda: app.load.before is not None and not app.load.running, "the second load")
        assert "compared with the run before" in app.text_of()
        await pilot.press("c", "s")
        await until(pilot, lambda: app.load.clients == 8 and not app.load.running, "a load of more clients")
        assert app.load.before is None
        await pilot.press("s")
        await until(pilot, lambda: app.load.done > 0, "the third load running")
        await pilot.press("s")
        await until(pilot, lambda: not app.load.running, "that it was stopped")

    session(twice, Monitor(canned.feed(3), f"http://127.0.0.1:{mock}", actions=Actions(judge, plan=canned.plan)))
