"""A web route that answers when all is done gets a sister that streams (server-sent events); the route itself and its clients stay."""

from __future__ import annotations

from typing import Any

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_imports import add_import
from dstune.readers.app_edit_page import decoded, following
from dstune.readers.app_edit_sites import Program, Site
from dstune.readers.app_edit_tail import Tail
from dstune.readers.app_edit_thread import read, with_imports, worker
from dstune.readers.app_edit_tree import Edits, Tree, callee, statements, text_of, walk

_ROUTES = frozenset(("post", "get", "route", "put", "api_route"))
_KINDS = {
    "fastapi": (
        "from fastapi.responses import StreamingResponse",
        'StreamingResponse(EVENTS(), media_type="text/event-stream"STOP)',
    ),
    "flask": ("from flask import Response", 'Response(EVENTS(), mimetype="text/event-stream")'),
}
_LEFT = ", background=BackgroundTask(STOP.set)"
"""Starlette runs this when the client has left, too. The generator it only drops, and an idle thread of its pool may hold on to that until
its next work (anyio 4.4; 4.16 lets go)."""


def stream_endpoint(program: Program, context: Context) -> cst.Module | None:
    """`@app.post("/chat")` → beside it `@app.post("/chat/stream")` with the same body up to `generate`."""
    tree, edits = program.tree, Edits()
    kind = next(
        (k for k in _KINDS if tree.imported(k, k.replace("fastapi", "FastAPI").replace("flask", "Flask")) or tree.imported(k)),
        "",
    )
    if not kind or "event-stream" in tree.module.code or "StreamingResponse" in tree.module.code:
        return None
    for where in program.generates:
        function = tree.function(where.call)
        if function is None or where.skip or where.has("streamer") or where.has("num_beams"):
            continue
        new = _sister(program, where, function, kind)
        if new is not None:
            edits.add(function, lambda n, new=new: cst.FlattenSentinel([n, new]))  # type: ignore[misc]
    if not edits:
        return None
    module = add_import(edits.made(tree.module), "import json")
    left = ["from starlette.background import BackgroundTask"] if "BackgroundTask" in Tree(module).names - tree.names else []
    return with_imports(tree, module, "from transformers import TextIteratorStreamer", _KINDS[kind][0], *left)


def _sister(program: Program, where: Site, function: cst.FunctionDef, kind: str) -> Any:
    """The streaming route of a function; None where it is no route, or works on the text first."""
    tree = program.tree
    route = next((d for d in function.decorators if _path(d)), None)
    line = tree.statement(where.call)
    name = f"{function.name.value}_stream"
    if route is None or len(function.decorators) > 1 or not isinstance(line, cst.SimpleStatementLine) or name in tree.names:
        return None
    around, rest = following(tree, line, locks=True)
    block = list(function.body.body) if isinstance(function.body, cst.IndentedBlock) else []
    if around not in block or len(line.body) != 1:
        return None
    answer = decoded(program, where, line, rest, anyhow=True)
    if answer is None:
        return None
    tail = answer[0]
    inside = (
        [] if around is line else [s for s in walk(around, cst.SimpleStatementLine) if tree.before(s, line) and s is not line]
    )
    before = [*block[: block.index(around)], *inside]
    before = before[1:] if function.get_docstring() is not None else before
    *working, start = worker(program, where, tail, line)
    locks = [
        n
        for n in tree.above(line)
        if isinstance(n, cst.With) and tree.within(n, function) and isinstance(n.items[0].item, cst.Name)
    ]
    if locks:
        working[-1] = _locked(working[-1], locks[0])
    body = [*before, *working, *_events(tree, tail, start, kind)]
    lines = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
    return function.with_changes(
        name=cst.Name(name),
        decorators=[_longer(tree, route)],
        body=cst.ensure_type(function.body, cst.IndentedBlock).with_changes(body=body, footer=[]),
        returns=None,
        leading_lines=lines,
    )


def _events(tree: Tree, tail: Tail, start: Any, kind: str) -> list[Any]:
    """The generator of the events, and the return that serves it. The thread starts in it: of a client that has left already it never runs."""
    step, name = tree.module.default_indent, tree.fresh("events", "sse_events")
    loop, *rest = statements(
        tree,
        f"for piece in {tail.streamer}:\n{step}yield f\"data: {{json.dumps({{'text': piece}}, ensure_ascii=False)}}\\n\\n\"\n"
        f"if {tail.failed}:\n{step}yield f\"data: {{json.dumps({{'error': str({tail.failed}[0])}}, ensure_ascii=False)}}\\n\\n\"\n"
        'yield "data: [DONE]\\n\\n"\n',
    )
    left = _LEFT.replace("STOP", tail.stop) if tail.stop and "BackgroundTask" not in tree.names else ""
    served = _KINDS[kind][1].replace("EVENTS", name).replace("STOP", left)
    made, end = statements(tree, f"def {name}():\n{step}pass\n\nreturn {served}\n")
    inside = [start.with_changes(leading_lines=[]), *read(tree, tail, step, [loop]), *rest]
    return [made.with_changes(leading_lines=[cst.EmptyLine(indent=False)], body=made.body.with_changes(body=inside)), end]


def _locked(work: Any, lock: cst.With) -> Any:
    """The worker with its generation under the lock that the route holds too."""
    attempt = next(iter(walk(work, cst.Try)))
    line = attempt.body.body[0]
    edits = Edits()
    edits.put(line, cst.With(lock.items, cst.IndentedBlock([line])))
    return edits.made(cst.Module([work])).body[0]


def _path(decorator: cst.Decorator) -> str:
    call = decorator.decorator
    if not isinstance(call, cst.Call) or callee(call)[1] not in _ROUTES or not call.args:
        return ""
    return text_of(call.args[0].value) or ""


def _longer(tree: Tree, decorator: cst.Decorator) -> cst.Decorator:
    """The route with `/stream` behind its path; of its other words only the methods stay."""
    call = cst.ensure_type(decorator.decorator, cst.Call)
    path = cst.ensure_type(call.args[0].value, cst.SimpleString)
    longer = path.with_changes(value=f"{path.value[: -len(path.quote)].rstrip('/')}/stream{path.quote}")
    kept = [a for a in call.args[1:] if a.keyword is not None and a.keyword.value == "methods"]
    args = [cst.Arg(longer), *(a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in kept)]
    return decorator.with_changes(decorator=call.with_changes(args=args), leading_lines=[])


TABLE = {"stream-endpoint": stream_endpoint}
