"""What the person sets off: fixes shown, written and taken back, a load, a plan. Slow parts run beside the screen, never on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import Diagnosis, Evidence, Fact, to_json
from dstune.model.plan import Artifact, Plan, Workload
from dstune.tui import doctor, plan
from dstune.tui.dialogs import Confirm
from dstune.tui.load import SECONDS

if TYPE_CHECKING:
    from dstune.tui.app import Monitor


@dataclass(frozen=True, slots=True)
class Actions:
    """What the monitor may do, given by the command line. `fixes` takes the causes that are meant (none: all)."""

    diagnose: Callable[[Evidence], Diagnosis] | None = None
    fixes: Callable[[Evidence, frozenset[str]], tuple[Artifact, ...]] | None = None
    write: Callable[[tuple[Artifact, ...]], str] | None = None
    undo: Callable[[], str] | None = None
    undoable: Callable[[], Sequence[str]] | None = None
    texts: Callable[[], Mapping[str, Sequence[str]]] | None = None
    script: Callable[[Plan, plan.Knobs], Artifact] | None = None
    plan: Callable[[plan.Knobs], Plan | str] = plan.planned


async def fix(app: Monitor, everything: bool) -> None:
    """Shows the fixes of the chosen finding (or all) as a diff, or goes back to the findings."""
    view = app.view
    if view.artifacts:
        view.artifacts = ()
    elif app.actions.fixes is None:
        app.note = say(
            "no files to fix: start with dstune monitor --file app.py", "没有可修复的文件：用 dstune monitor --file app.py 启动"
        )
    else:
        found = doctor.rows(app.state)
        wanted = frozenset() if everything or not found else frozenset({found[min(view.chosen, len(found) - 1)].cause})
        app.note = say("looking for the fix…", "正在生成修复…")
        app.draw()
        kept = [f.cause for f in app.state.kept if not wanted or f.cause in wanted]
        evidence = app.load.seen[kept[-1]][1] if kept else app.evidence()  # of then: now nothing waits
        view.artifacts = await _said(app, app.actions.fixes, evidence, wanted) or ()
        if view.artifacts:
            app.note = ""
        elif app.note.endswith("…"):
            app.note = say("this finding changes nothing in the files given; F tries all", "该项不改动给出的文件；按 F 尝试全部") if wanted else say(
                "nothing to fix in the files given", "给出的文件无需修复"
            )  # fmt: skip
        app.show("doctor")
    app.draw()


async def _said(app: Monitor, work, *args):  # type: ignore[no-untyped-def]
    """The result of slow work done on a thread; its error becomes the note."""
    try:
        return await asyncio.to_thread(work, *args)
    except (DstuneError, OSError) as error:
        app.note = error.what if isinstance(error, DstuneError) else str(error)
        if isinstance(error, DstuneError) and error.why:
            app.note += f": {error.why}"
        return None


async def reword(app: Monitor) -> None:
    """Findings are worded by the diagnosis: another language needs it anew, also of what was found while a load ran."""
    if app.actions.diagnose is not None:
        for cause, (finding, evidence) in list(app.load.seen.items()):
            found = await asyncio.to_thread(app.actions.diagnose, evidence)
            app.load.seen[cause] = (next((f for f in found.findings if f.cause == cause), finding), evidence)
    await app.judge()


async def write(app: Monitor) -> None:
    """Writes what the diff shows, or the plan's launch script, after asking with the names of the files."""
    if app.screen_name == "plan":
        await _write_plan(app)
        return
    if not app.view.artifacts or app.actions.write is None:
        app.note = say("show the diff first: f", "请先按 f 查看差异")
        app.draw()
        return
    names = "\n".join(f"  {a.path}" for a in app.view.artifacts)
    question = say(
        f"Write the shown changes to\n{names}\n(a backup is kept, u takes it back)?",
        f"将所示更改写入\n{names}\n（会保留备份，u 可撤销）？",
    )
    if await app.push_screen_wait(Confirm(question, app.plain)):
        done = await _said(app, app.actions.write, app.view.artifacts)
        app.note = done or app.note
        app.view.artifacts = ()
        app.judge_again()
    app.draw()


async def _write_plan(app: Monitor) -> None:
    if app.actions.script is None or app.actions.write is None or not isinstance(app.plan, Plan):
        app.note = say("there is no plan to write", "没有可写入的方案")
        app.draw()
        return
    made = await _said(app, app.actions.script, app.plan, app.knobs)
    if made is None:
        app.draw()
        return
    there = say("it is replaced, a backup is kept", "将覆盖已有文件，并保留备份") if made.diff else say("a new file", "新文件")
    question = say(
        f"Write the launch script of this plan to\n  {made.path}\n({there}; u takes it back)?",
        f"将该方案的启动脚本写入\n  {made.path}\n（{there}；u 可撤销）？",
    )
    if await app.push_screen_wait(Confirm(question, app.plain)):
        app.note = await _said(app, app.actions.write, (made,)) or app.note
    app.draw()


async def undo(app: Monitor) -> None:
    """Takes the last written fix back, after asking with the names of the files."""
    if app.actions.undo is None:
        return
    names = (await _said(app, app.actions.undoable) if app.actions.undoable else None) or ()
    if not names:
        app.note = say("there is nothing to undo", "没有可撤销的写入")
        app.draw()
        return
    listed = "\n".join(f"  {n}" for n in names)
    if await app.push_screen_wait(
        Confirm(say(f"Take the last write back in\n{listed}?", f"撤销对以下文件的上一次写入？\n{listed}"), app.plain)
    ):
        app.note = await _said(app, app.actions.undo) or app.note
        app.view.artifacts = ()
        app.judge_again()
    app.draw()


async def compute_plan(app: Monitor) -> None:
    """The plan of the knobs as they are now."""
    knobs = app.knobs
    found = await _said(app, app.actions.plan, knobs)
    if knobs == app.knobs:
        app.plan = found if found is not None else app.note
        app.draw()


async def load(app: Monitor) -> None:
    """Runs in the app's own loop: the client costs a few percent of a core at what one server answers."""
    from dstune.load.client import now
    from dstune.load.detect import api_key, detect
    from dstune.load.evidence import facts
    from dstune.load.run import Live, Options, trial_async

    state = app.load
    state.running, state.error, state.done, state.failed, state.elapsed = True, "", 0, 0, 0.0
    state.first_bytes, state.marks, state.gpu = [], [], []
    state.seen, state.calm = {}, frozenset(f.cause for f in app.state.diagnosis.findings)
    state.warming, began = True, now()
    app.draw()

    async def wait() -> None:
        while state.warming:
            state.elapsed = now() - began
            app.draw("load")
            await asyncio.sleep(0.5)

    waiting = asyncio.create_task(wait())

    def tick(live: Live) -> None:
        if live.warming:
            return
        if state.warming:
            state.warming, state.gpu = False, []
        state.done, state.failed, state.first_bytes = live.done, live.failed, live.first_bytes
        state.elapsed = now() - live.started
        state.marks.append((state.elapsed, live.done - live.failed))
        app.draw("load")

    try:
        key = api_key(None)
        headers = (("Authorization", f"Bearer {key}"),) if key else ()
        server = await asyncio.to_thread(detect, state.url, dict(headers))
        work = Workload(output_tokens=128, concurrency=state.concurrency)
        model = server.models[0] if server.models else "default"
        options = Options(work, model=model, duration_s=app.load_seconds or SECONDS, headers=headers)
        found, _ = await trial_async(server, options, tick=tick)
        same = (state.ran, state.clients) == (
            state.url,
            work.concurrency,
        )  # neither two servers nor two loads are one before and after
        state.other = state.outcome is not None and not same
        state.before, state.outcome = (state.outcome if same else None), found.outcome
        state.ran, state.clients = state.url, work.concurrency
        state.done, state.failed = (
            found.outcome["requests"]["ok"] + found.outcome["requests"]["failed"],
            found.outcome["requests"]["failed"],
        )
        report = {"trial": {**found.outcome, "settings": dict(found.settings), "workload": to_json(found.workload)}}
        app.run_facts = tuple(facts(report, say("load of the monitor", "监视器压测")))
        app.judge_again()
    except (DstuneError, OSError) as error:
        state.error = f"{error.what}: {error.why}" if isinstance(error, DstuneError) else str(error)
    finally:
        state.running = state.warming = False
        waiting.cancel()
        app.draw()


def facts_beside(run: Sequence[Fact], log: Evidence) -> Evidence:
    """What was learnt beside the feed: the last load, the followed log."""
    return Evidence((*run, *log.facts), log.gaps, log.hits)
