"""What the monitor may do beyond looking: diagnose with the given files, fix them, write, undo, make a launch script."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dstune.errors import DstuneError
from dstune.lang import current, say
from dstune.model import Diagnosis, Document, Evidence
from dstune.model.plan import Artifact, Plan

if TYPE_CHECKING:
    from dstune.patch import Source
    from dstune.tui.doing import Actions
    from dstune.tui.plan import Knobs


def actions(files: tuple[str, ...]) -> Actions:
    """All of them, for these files."""
    from dstune.tui.doing import Actions

    hands = Hands(files)
    return Actions(
        hands.diagnose, hands.fixes if files else None, hands.write, undo, undoable, hands.texts if files else None, hands.script
    )  # fmt: skip


class Hands:
    """Keeps what was read of the files until they change on disk."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self._files = files
        self._sources: dict[str, Source] = {}
        self._read: tuple[object, Evidence] = (None, Evidence())
        self._lines: tuple[object, dict[str, list[str]]] = (None, {})

    def _stamp(self) -> object:
        out = []
        for path in self._files:
            try:
                info = os.stat(path)
                out.append((path, info.st_mtime_ns, info.st_size))
            except OSError:
                out.append((path, 0, 0))
        return (*out, current())

    def diagnose(self, seen: Evidence) -> Diagnosis:
        """The diagnosis of what the feed shows, together with the files."""
        from dstune.derive import derive
        from dstune.diagnose import diagnose

        if self._files and self._read[0] != (stamp := self._stamp()):
            from dstune.cli.doctor import gather

            there = tuple(f for f in self._files if os.path.exists(f))
            self._read = (stamp, gather(there) if there else Evidence())
        return diagnose(derive(self._read[1].merged(seen)))

    def texts(self) -> Mapping[str, Sequence[str]]:
        """The files' lines, for evidence that cites them."""
        stamp = self._stamp()
        if self._lines[0] != stamp:
            found = {}
            for path in self._files:
                try:
                    with open(path, encoding="utf-8", errors="replace") as f:
                        found[path] = f.read(1 << 20).splitlines()
                except OSError:
                    continue
            self._lines = (stamp, found)
        return self._lines[1]

    def fixes(self, seen: Evidence, causes: frozenset[str]) -> tuple[Artifact, ...]:
        """The files as they should be (for these causes, or for all); empty where there is nothing to do. Raises `DstuneError` with the
        reason where there is something to do that is left to the person."""
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

        outcome = carry_out([d for d in documents if d.kind != "log"], judge, Wish(only=causes))
        made = tuple(artifacts([s for s in sources if s.path in outcome.texts], outcome))
        reasons = dict.fromkeys(h.reason for h in outcome.hands if not causes or h.finding.cause in causes)
        if reasons and not made:  # there is a fix, and a reason why it is not written for the person
            raise DstuneError(say("by hand", "需手动修改"), "; ".join(reasons), "")
        return made

    def script(self, plan: Plan, knobs: Knobs) -> Artifact:
        """The plan as `launch.sh` in the working directory; with a diff where one is there already."""
        from dstune.catalog import gpus, models
        from dstune.patch import Source, diff, read
        from dstune.render import Context, render

        made = render(["launch"], plan, Context(gpus.find(knobs.gpu), models.get(knobs.model)))[0]
        real = os.path.realpath(made.path)
        source = read(made.path) if os.path.lexists(made.path) else Source(made.path, real, None, "")
        self._sources[made.path] = source
        return Artifact(made.path, made.text, diff(made.path, source.text, made.text) if source.data is not None else "")

    def write(self, artifacts: tuple[Artifact, ...]) -> str:
        """Writes them, all or none; says under which number `dstune undo` knows it."""
        from dstune.patch import Change, write

        changes = [Change(self._sources[a.path], self._sources[a.path].encoded(a.text)) for a in artifacts]
        steps = [{"cause": cause, "path": a.path} for a in artifacts for cause, _ in a.why]
        number = write(changes, {"command": "monitor", "steps": steps})
        return say(f"written; u (or dstune undo {number}) takes it back", f"已写入；按 u（或 dstune undo {number}）可撤销")


def undoable() -> list[str]:
    """Files of the last write that stands."""
    from dstune.patch import backups

    last = next((b for b in backups() if not b["undone"]), None)
    return [str(f["path"]) for f in last["files"]] if last else []


def undo() -> str:
    """Takes the last write back."""
    from dstune.patch import undo as take_back

    names = ", ".join(f["named"] for f in take_back()["files"])
    return say(f"taken back: {names}", f"已撤销：{names}")
