"""The thread that generates while the handler hands on what a streamer gives: how it starts, fails, and ends when nobody reads any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst

from dstune.readers.app_edit_imports import add_import
from dstune.readers.app_edit_sites import Program, Site, appended, keyword
from dstune.readers.app_edit_tail import Tail
from dstune.readers.app_edit_tree import Edits, Tree, statements, walk

TIMEOUT = 120.0
"""Seconds without a token after which the streamer gives up: the request timeout that the fourth article configures (`server.timeout`)."""


def worker(program: Program, where: Site, tail: Tail, line: Any) -> list[Any]:
    """Streamer, list of failures, event that ends it, worker function and thread, as statements."""
    tree = program.tree
    tail.streamer = tree.fresh("streamer")
    options = (
        "".join(f", {tree.code(a.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip()}" for a in tail.options)
        or ", skip_special_tokens=True"
    )
    made = f"{tail.streamer} = TextIteratorStreamer({tail.tokenizer}, skip_prompt=True{options}, timeout={TIMEOUT})\n"
    first = statements(tree, made)[0].with_changes(leading_lines=tail.leading)
    given = where.holders[0] if where.holders and where.holders[0] is where.call else where.call
    return [first, *thread(tree, tail, line, where, appended(given, keyword(where.call, "streamer", tail.streamer)))]


def thread(tree: Tree, tail: Tail, line: Any, where: Site, call: Any, ends: bool = True) -> list[Any]:
    """The same without the streamer, which `tail` names. `call` generates into it; `ends`: its reader may leave.

    A program that gives stopping criteria of its own keeps them alone: what they are cannot be seen here.
    """
    tail.failed, work, step = tree.fresh("failed", "failures"), tree.fresh("work", "run_generate"), tree.step(line)
    told = ""
    own = where.has("stopping_criteria") or (not where.closed and "stopping_criteria" in tree.module.code)
    if ends and not own and ("Event" not in tree.names or tree.imported("threading", "Event")):
        tail.stop = tree.fresh("stop", "stopped")
        told = f"{tail.stop} = Event()\n"
        call = appended(call, keyword(call, "stopping_criteria", f"[lambda *_: {tail.stop}.is_set()]"))
    lines = statements(
        tree,
        f"{tail.failed} = []\n{told}\n"
        f"def {work}():\n{step}try:\n{step}{step}generate()\n{step}except Exception as error:\n{step}{step}{tail.failed}.append(error)\n"
        f"{step}{step}{tail.streamer}.end()\n\nThread(target={work}, daemon=True).start()\n",
    )
    lines[-2] = _working(lines[-2], call, line)
    return lines


def _working(function: Any, call: cst.Call, line: Any) -> Any:
    """The worker function with the real call in its `try`."""
    target = next(iter(walk(function, cst.Try))).body.body[0]
    comment = line.trailing_whitespace if isinstance(line, cst.SimpleStatementLine) else target.trailing_whitespace
    edits = Edits()
    edits.put(target, target.with_changes(body=[cst.Expr(call)], trailing_whitespace=comment))
    return edits.made(cst.Module([function])).body[0]


def read(tree: Tree, tail: Tail, step: str, lines: Sequence[Any]) -> list[Any]:
    """The statements that read the streamer. However they end, by an error or because the reader left, generating ends too."""
    if not tail.stop:
        return list(lines)
    made: Any = statements(tree, f"try:\n{step}pass\nfinally:\n{step}{tail.stop}.set()\n")[0]
    inside = [lines[0].with_changes(leading_lines=[]), *lines[1:]]
    return [made.with_changes(leading_lines=lines[0].leading_lines, body=made.body.with_changes(body=inside))]


def with_imports(before: Tree, module: cst.Module, *more: str) -> cst.Module:
    """The module with what its new thread needs, and more import lines."""
    events = ["from threading import Event"] if "Event" in Tree(module).names - before.names else []
    for text in (*events, "from threading import Thread", *more):
        module = add_import(module, text)
    return module
