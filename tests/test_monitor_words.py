"""What the monitor says of itself: the same counts everywhere, how a load ended, what is assumed, no key lost at the edge. Mostly pure."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from dstune import lang
from dstune.cli import acts
from dstune.model import Diagnosis, Evidence, Fact, Finding, Unknown
from dstune.model.plan import Artifact
from dstune.tui import doctor, keys, logs, overview, plan
from dstune.tui.app import Monitor, Sampled
from dstune.tui.dialogs import Palette
from dstune.tui.doing import Actions
from dstune.tui.draw import Lines, chopped
from dstune.tui.feed import CannedFeed
from dstune.tui.load import LoadState, load_screen
from dstune.tui.state import State
from tests import monitor_samples as canned
from tests.test_monitor import mock, session, until  # noqa: F401

SCREENS = ("overview", "doctor", "load", "plan", "log")


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    lang.use("en")
    yield
    lang.use("en")


def words(lines: Lines) -> str:
    return "\n".join(line.plain for line in lines)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("name", SCREENS)
@pytest.mark.parametrize("note", ["", "a note of the monitor that is longer than any terminal " * 4])
def test_the_line_at_the_bottom_keeps_its_end(name: str, width: int, language: str, note: str) -> None:
    lang.use(language)
    for replayed in (False, True):
        line = keys.status(name, width, note, replayed, False).plain
        assert line.rstrip().endswith("q quit" if language == "en" else "q 退出"), line
        assert cell_len(line) <= width
        if not note and width >= 80:
            assert "…" not in line


def finding(cause: str, severity: str = "error", because: str = "") -> Finding:
    return Finding(cause, "server", severity, "high", "It broke.", "", (), because=because)  # type: ignore[arg-type]


def test_tab_overview_and_doctor_count_the_same() -> None:
    state = State()
    found = (
        *(finding(f"c{i}", "info" if i > 3 else "error") for i in range(9)),
        finding("later", because="c0"),
        finding("last", because="c0"),
    )
    state.diagnosis, state.diagnosed = Diagnosis(found, (Unknown("open-one", "a log"),), 200), True
    shown = words(doctor.doctor(state, doctor.View(), 80)[0])
    assert "9 causes, 2 consequences (↳)" in shown
    assert "1 cause stays open" in shown
    assert "… 7 more" in words(overview.findings(state, 80, 3))

    async def look(pilot: Any, app: Monitor) -> None:
        app.state.diagnosis = state.diagnosis
        app.draw()
        await pilot.pause()
        assert "2 Doctor·9" in words(app.query_one("#tabs")._lines)  # type: ignore[attr-defined]

    session(look, Monitor(canned.feed(1), actions=canned.actions()))


def test_the_doctor_has_the_words_of_the_command() -> None:
    state = State()
    state.diagnosis, state.diagnosed = canned.diagnosis(), True
    view = doctor.View(open={f.cause for f in canned.diagnosis().findings})
    shown = words(doctor.doctor(state, view, 100)[0])
    assert "(sure)" in shown or "(likely)" in shown
    assert "certain" not in shown


def test_a_load_without_an_answer_says_how_it_ended_and_why() -> None:
    outcome = {
        "requests": {"ok": 0, "failed": 324}, "output_tok_s": 0.0, "request_s": 0.0, "duration_s": 3.0, "errors": {"http-503": 324},
        "error_words": {"http-503": "too many requests"},
    }  # fmt: skip
    load = LoadState("http://h:1", outcome=outcome, marks=[(1.0, 100), (3.0, 324)], clients=128, other=True)
    shown = words(load_screen(load, State(), 80, 24))
    assert "ended: 0 answered, 324 failed in 3.0 s" in shown
    assert "324 × http-503: too many requests" in shown
    assert "not compared" in shown
    assert "0.0 tok/s" not in shown
    assert "first byte" not in shown
    load.outcome = {**outcome, "hopeless": True}
    assert "ended after 3.0 s: 324 requests, none answered" in words(load_screen(load, State(), 80, 24))


def test_a_run_is_not_compared_with_one_without_answers() -> None:
    none = {**canned.OUTCOME, "requests": {"ok": 0, "failed": 9}}
    shown = words(load_screen(LoadState("u", outcome=canned.OUTCOME, before=none), State(), 80, 24))
    assert "the run before had no answer" in shown
    assert "ended: 46 answered, 0 failed in 30.0 s" in shown


def test_failures_are_no_answers_while_it_runs() -> None:
    load = LoadState("u", running=True, done=640, failed=600, elapsed=4.0)
    assert "40 answers  600 failed" in words(load_screen(load, State(), 80, 24))


def test_one_client_is_one_client() -> None:
    assert " 1 client  " in words(load_screen(LoadState("u", concurrency=1), State(), 80, 24))


def test_a_warm_up_that_waits_says_so() -> None:
    load = LoadState("u", running=True, warming=True, elapsed=45.0)
    assert "warm-up: one question, no answer for 45 s" in words(load_screen(load, State(), 80, 24))


@pytest.mark.slow
@pytest.mark.parametrize("mock", ["3000"], indirect=True)  # a warm-up that is not over before the key's press is
def test_the_warm_up_of_a_real_load_is_seen(mock: int) -> None:  # noqa: F811
    async def start(pilot: Any, app: Monitor) -> None:
        app.load_seconds = 0.5
        await pilot.press("s")
        assert app.load.warming
        assert "warm-up" in app.text_of()
        await until(pilot, lambda: app.load.outcome is not None and not app.load.running, "the load")
        assert not app.load.warming
        assert "ended: " in app.text_of()

    session(start, Monitor(canned.feed(3), f"http://127.0.0.1:{mock}", actions=canned.actions()))


def test_a_plan_says_what_it_assumes() -> None:
    none = plan.here(State(), plan.Knobs())
    shown = words(plan.plan_screen(none, None, 80))
    assert "rtx-4090 is assumed" in shown
    assert "(assumed: no known model is served)" in words(plan.plan_screen(none, None, 79))
    state = State()
    state.take(Evidence((Fact("gpu0", "name", "NVIDIA H200", "nvml"), Fact("gpu0", "memory_total_mib", 143771, "nvml"))), None)
    seen = plan.here(state, none)
    assert seen.gpu == "h200-sxm"
    assert "is assumed" not in words(plan.plan_screen(seen, None, 80))
    assert "is assumed" not in words(plan.plan_screen(none.turned("gpu", 1), None, 80))


def test_a_plans_figures_have_no_needless_digits() -> None:
    made = plan.planned(plan.Knobs(engine="vllm"))
    assert not isinstance(made, str)
    shown = words(plan.plan_screen(plan.Knobs(), made, 80))
    assert ",000.0" not in shown
    assert not [w for w in shown.split() if w.endswith(".0") and "," in w]


def test_a_log_keeps_its_indent() -> None:
    state = logs.LogState("server.log")
    state.feed('Traceback (most recent call last):\n  File "a.py", line 1\n\tdeep\n   \nend\n')
    assert [line for _, line in state.lines] == [
        "Traceback (most recent call last):", '  File "a.py", line 1', "    deep", "", "end",
    ]  # fmt: skip


def test_a_diff_breaks_between_words_and_loses_nothing() -> None:
    line = "+    output = model.generate(**inputs, max_new_tokens=512, do_sample=True, use_cache=True)"
    pieces = chopped(line, 60)
    assert "".join(pieces) == line
    assert all(cell_len(p) <= 60 for p in pieces)
    assert pieces[1].startswith("do_sample=True")
    shown = doctor.diff((Artifact("a.py", "", f"--- a.py\n+++ a.py\n@@ -1 +1 @@\n{line}"),), 60)
    assert "do_sample=True, use_cache=True)" in words(shown)
    for text in ("x" * 200, "", "一二三" * 30, " " * 90):
        assert "".join(chopped(text, 33)) == text


def test_every_card_that_the_keys_walk_through_is_known() -> None:
    assert plan.cards("rtx-4090") == list(plan.CARDS)


def test_a_plan_asked_for_before_the_first_sample_follows_the_card() -> None:
    async def look(pilot: Any, app: Monitor) -> None:
        await until(pilot, lambda: "gpu" not in app.knobs.assumed and app.plan is not None, "the plan of the card that is here")
        assert "is assumed" not in app.text_of()

    session(look, Monitor(canned.feed(3), actions=canned.actions(), start="plan"))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_command_palette_speaks_the_language_of_the_screen(language: str) -> None:
    """Every title and description, and the words in the empty field; nothing of the toolkit's own list is among them."""
    lang.use(language)

    async def look(pilot: Any, app: Monitor) -> None:
        listed = list(app.get_system_commands(app.screen))
        titles = [c.title for c in listed]
        assert len(titles) == len(set(titles)) == 13
        for command in listed:
            chinese = re.search("[\u4e00-\u9fff]", command.title + command.help)
            assert bool(chinese) == (language == "zh") or command.title == "中文"
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, Palette), "the palette")
        field = app.screen.query_one("CommandInput")
        assert field.placeholder == ("Search for commands…" if language == "en" else "搜索命令…")  # type: ignore[attr-defined]
        next(c for c in listed if c.title in ("Quit", "退出")).callback()
        await pilot.pause()
        assert not app.is_running or app._exit

    session(look)


def test_a_fix_that_is_not_written_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is of another model than the script: the value of one is not for the other, and the screen says so, as `dstune fix` does."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "launch.sh").write_text("#!/bin/sh\nexec vllm serve Qwen/Qwen2.5-7B --max-model-len 8192 --max-num-seqs 4\n")
    log = Path(__file__).parents[1] / "examples/logs/vllm-kv-cache-too-small.log"

    async def look(pilot: Any, app: Monitor) -> None:
        await until(pilot, lambda: any(f.cause == "vllm-max-len-exceeds-kv" for f in doctor.rows(app.state)), "the finding")
        await pilot.press("2", "f")
        await until(pilot, lambda: "by hand: launch.sh describes another server than this evidence" in app.note, "the reason")
        assert not app.view.artifacts

    session(look, Monitor(canned.feed(3), log=str(log), actions=acts.actions(("launch.sh",))))


def test_the_head_of_the_log_keeps_its_counts_beside_a_long_path() -> None:
    state = logs.LogState(source="/srv/a/rather/long/path/to/the/logs/of/the/model/servers/of/this/machine/server.log")
    state.feed("one\ntwo\n")
    head = logs.log_screen(state, 79, 20)[0].plain
    assert cell_len(head) <= 79
    assert head.startswith("…")
    assert head.endswith("server.log  2 lines, 0 marked")


def test_a_note_of_the_plan_before_is_gone_with_it() -> None:
    async def turn(pilot: Any, app: Monitor) -> None:
        await pilot.press("4")
        await until(pilot, lambda: app.plan is not None, "a plan")
        app.note = "there is no plan to write"
        await pilot.press("g")
        assert app.note == ""

    session(turn)


def test_what_a_load_made_appear_stays_after_it_with_its_evidence() -> None:
    """The queue is gone seconds after the last client; its finding, its fix and its words in the other language are not."""
    asked: list[Evidence] = []

    def judge(evidence: Evidence) -> Diagnosis:
        waits = evidence.first("server", "waiting")
        return Diagnosis((canned.finding(),) if waits else ())

    def fixes(evidence: Evidence, _: frozenset[str]) -> tuple[Artifact, ...]:
        asked.append(evidence)
        return (Artifact("launch.sh", "x\n", "--- launch.sh\n+++ launch.sh\n@@ -1 +1 @@\n-y\n+x"),)

    def sample(waiting: int) -> Evidence:
        return Evidence(tuple(canned.server(waiting=waiting)))

    async def look(pilot: Any, app: Monitor) -> None:
        app.load.running = True
        for waiting in (0, 24):
            app.post_message(Sampled(sample(waiting), judge(sample(waiting))))
        await pilot.press("2")
        await until(pilot, lambda: "batch-limit-too-small  24 requests" in app.text_of(), "the finding of the load")
        app.load.running = False
        app.post_message(Sampled(sample(0), judge(sample(0))))
        await until(pilot, lambda: "batch-limit-too-small (while the load ran)" in app.text_of(), "that it is of then")
        assert "2 Doctor·1" in app.query_one("#tabs")._lines[0].plain  # type: ignore[attr-defined]
        await pilot.press("f")
        await until(pilot, lambda: bool(app.view.artifacts), "the diff")
        assert asked[-1].first("server", "waiting") == 24
        await pilot.press("escape", "l")
        await until(pilot, lambda: "（压测期间）  24 个请求在排队" in app.text_of(), "its words in Chinese")
        app.post_message(Sampled(sample(24), judge(sample(24))))
        await until(pilot, lambda: "压测期间" not in app.text_of(), "found again: no second row")
        assert len(doctor.rows(app.state)) == 1

    session(look, Monitor(CannedFeed([sample(0)]), actions=Actions(judge, fixes)))


def test_what_was_found_before_a_load_is_not_kept_by_it() -> None:
    load = LoadState(running=True, calm=frozenset({"batch-limit-too-small"}))
    found = canned.finding()
    assert load.note([found, replace(found, cause="hot", subject="gpu0")], Evidence()) == ()
    load.running = False
    assert load.note([], Evidence()) == ()


@pytest.mark.parametrize(
    ("served", "assumed"),
    [("smollm2", True), ("HuggingFaceTB/SmolLM2-1.7B-Instruct", False), ("/models/DeepSeek-R1-Distill-Qwen-1.5B-AWQ", False)],
)
def test_a_plan_of_a_model_that_the_server_only_hints_at_says_so(served: str, assumed: bool) -> None:
    state = State()
    state.take(Evidence(tuple(canned.server(models=[served]))), None)
    found = plan.here(state, plan.Knobs())
    assert ("model" in found.assumed) == assumed
    assert ("(assumed: no known model is served)" in words(plan.plan_screen(found, None, 79))) == assumed
