"""A handler that answers when all is done → a generator that hands on the text so far.

The worker thread relays its error, and the streamer gives up after `TIMEOUT` seconds without a token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_imports import without_idle_import
from dstune.readers.app_edit_keywords import callee_name
from dstune.readers.app_edit_sites import Program, Site, bound, key_of
from dstune.readers.app_edit_tail import Tail, tail_of
from dstune.readers.app_edit_thread import read, thread, with_imports, worker
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, statements, walk, walk_shallow

_EVENTS = frozenset(("click", "submit", "then", "change", "input", "success", "select", "load", "on"))
_FRONTS = frozenset(("Interface", "ChatInterface"))
_GUARD = re.compile(r"^(?:torch\.)?(?:no_grad|inference_mode)\(\)$")
_THREAD_LOCAL = re.compile(r"autocast|device\(|stream\(|sdp|profil|grad")


def stream_handler(program: Program, context: Context) -> cst.Module | None:
    """Every Gradio handler that generates and returns the whole text, itself or through one helper; else the Streamlit page."""
    tree = program.tree
    edits = Edits()
    for where in program.generates:
        function = tree.function(where.call)
        if function is None or where.skip or callee_name(where.call) == "Thread" or where.has("streamer"):
            continue
        callers = _callers(tree, function)
        if callers is None:
            continue
        name, handlers = function.name.value, [c for c in callers if isinstance(c, cst.FunctionDef)]
        if [w for w in program.generates if tree.function(w.call) is function] != [where] or any(
            walk_shallow(function.body, cst.Yield)
        ):
            return None
        if any(walk_shallow(function, cst.Await)):
            return None
        if not _rewrite(program, edits, function, where):
            return None
        for handler in handlers:
            if not _pass_on(program, edits, handler, name):
                return None
    if not edits:
        from dstune.readers.app_edit_page import stream_page

        return stream_page(program)
    module = without_idle_import(edits.made(tree.module), tree.module.code, "torch")  # no_grad went: generate has its own
    return with_imports(tree, module, "from transformers import TextIteratorStreamer")


def _callers(tree: Tree, function: cst.FunctionDef) -> list[cst.CSTNode] | None:
    """What uses a function: handlers' call sites, or handler functions that call it. None when it is no handler's at all."""
    name = function.name.value
    found: list[cst.CSTNode] = []
    method = any(isinstance(n, cst.ClassDef) for n in tree.above(function))
    for node in tree.find(cst.Attribute if method else cst.Name):
        own = node.value if isinstance(node, cst.Name) else node.attr.value
        parent = tree.parent(node)
        if own != name or parent is function or (isinstance(parent, cst.Attribute) and parent.attr is node):
            continue
        if isinstance(parent, cst.Arg) and parent.keyword is node:
            continue
        if isinstance(parent, cst.Arg) and parent.keyword is not node and _serves(tree, parent):
            found.append(parent)
        elif isinstance(parent, cst.Call) and parent.func is node:
            caller = tree.function(parent)
            uses = None if caller is None or caller is function else _callers(tree, caller)
            if caller is None or not uses or any(isinstance(u, cst.FunctionDef) for u in uses):
                return None
            found.append(caller)
        else:
            return None
    direct = [f for f in found if isinstance(f, cst.Arg)]
    if direct and len(direct) != len(found):
        return None
    return list(dict.fromkeys(found)) or None


def _serves(tree: Tree, argument: cst.Arg) -> bool:
    """Whether an argument is the function of a Gradio interface or event."""
    call = tree.parent(argument)
    if not isinstance(call, cst.Call):
        return False
    name = callee_name(call)
    first = call.args and call.args[0] is argument and argument.keyword is None
    return name in _FRONTS | _EVENTS and (bool(first) or key_of(argument) == "fn")


def _rewrite(program: Program, edits: Edits, function: cst.FunctionDef, where: Site) -> bool:
    """Adds the edits that make one function a generator; False when it cannot be done safely."""
    tree = program.tree
    if where.has("num_beams") or where.has("num_return_sequences") or not isinstance(function.body, cst.IndentedBlock):
        return False
    line = tree.statement(where.call)
    path = _path(tree, function, line)
    if path is None or not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    inner, after = path
    tail = tail_of(program, where, line, inner, after, function)
    if tail is None:
        return False
    names = {n.value for a in where.call.args for n in walk(a, cst.Name)}
    if names & tail.sets:
        return False
    guards = [n for n in tree.above(line) if isinstance(n, cst.With) and tree.within(n, function) and _is_guard(tree, n)]
    if any(any(walk(s, cst.Return)) for guard in guards for s in _others(guard, tail, line)):
        return False
    new = worker(program, where, tail, line) + _loop(program, where, tail)
    _exchange(tree, edits, inner, new, tail, where)
    _returns(tree, edits, function, tail)
    _signature(edits, function)
    return True


def _path(tree: Tree, function: cst.FunctionDef, line: Any) -> tuple[list[Any], list[Any]] | None:
    """(statements from the generating one to the end of its block, statements after that in the blocks around it)."""
    after: list[Any] = []
    inner: list[Any] = []
    here = line
    while True:
        block = tree.parent(here)
        if not isinstance(block, cst.IndentedBlock):
            return None
        body = list(block.body)
        rest = body[next(i for i, s in enumerate(body) if s is here) + 1 :]
        owner = tree.parent(block)
        if not inner:
            inner = [here, *rest]
        elif isinstance(here, cst.With) and _is_guard(tree, here) and not after:
            inner = [*inner, *rest]  # the guard goes, and what follows it follows the generation
        else:
            after += rest
        if owner is function:
            return inner, after
        if isinstance(owner, cst.With):
            if not _is_guard(tree, owner) and any(_THREAD_LOCAL.search(tree.code(i)) for i in owner.items):
                return None
        elif not (isinstance(owner, cst.Try) and owner.body is block and owner.orelse is None):
            return None
        here = owner


def _is_guard(tree: Tree, node: cst.With) -> bool:
    return all(_GUARD.match(tree.code(i.item)) for i in node.items)


def _others(guard: cst.With, tail: Tail, line: Any) -> list[Any]:
    """Statements of a block that the rewriting keeps."""
    return [s for s in cst.ensure_type(guard.body, cst.IndentedBlock).body if s is not line and s not in tail.gone]


def _loop(program: Program, where: Site, tail: Tail) -> list[Any]:
    """The loop over the streamer, the error, and what runs once at the end."""
    tree, step = program.tree, program.tree.step(where.call)
    piece = tree.fresh("piece", "chunk", "fragment")
    lines = statements(
        tree,
        f'{tail.whole} = ""\nfor {piece} in {tail.streamer}:\n{step}{tail.whole} += {piece}\n{step}yield {tail.whole}\n'
        f"if {tail.failed}:\n{step}raise {tail.failed}[0]\n",
    )
    loop: Any = lines[1]
    handed = cst.SimpleStatementLine([cst.Expr(cst.Yield(tail.result))])
    lines[0] = lines[0].with_changes(leading_lines=tail.notes)
    loop = loop.with_changes(body=loop.body.with_changes(body=[loop.body.body[0], *tail.inside, handed]))
    return [lines[0], *read(tree, tail, step, [loop]), lines[2], *tail.once]


def _exchange(tree: Tree, edits: Edits, inner: Sequence[Any], new: list[Any], tail: Tail, where: Site) -> None:
    """Puts the new statements where generating began and takes away what they replace (a `no_grad` around it too)."""
    first = inner[0]
    guard = next(
        (
            n
            for n in tree.above(first)
            if isinstance(n, cst.With) and _is_guard(tree, n) and tree.within(n, tree.function(first) or n)
        ),
        None,
    )
    gone = [s for s in inner if s is not first and s in tail.gone]
    if guard is None:
        edits.instead(first, new)
        for line in gone:
            edits.drop(line)
        return
    block = list(cst.ensure_type(guard.body, cst.IndentedBlock).body)
    before = block[: next(i for i, s in enumerate(block) if s is first)]
    kept = [s for s in block if s not in before and s is not first and s not in tail.gone]
    whole = [*before, *new, *kept]
    whole[0] = whole[0].with_changes(leading_lines=[*guard.leading_lines, *(e for e in whole[0].leading_lines if e.comment)])
    edits.instead(guard, whole)
    for line in gone:
        if line not in block:
            edits.drop(line)


def _returns(tree: Tree, edits: Edits, function: cst.FunctionDef, tail: Tail) -> None:
    """Other returns of a generator hand on their value first."""
    for node in walk_shallow(function.body, cst.Return):
        line = tree.parent(node)
        if line in tail.gone or node.value is None or not isinstance(line, cst.SimpleStatementLine):
            continue
        _yield_instead(edits, line, node, _is_last(tree, function, line))


def _yield_instead(edits: Edits, line: cst.SimpleStatementLine, node: cst.Return, last: bool) -> None:
    edits.add(line, lambda n: _yielded(n, node, last))


def _yielded(line: Any, node: cst.Return, last: bool) -> Any:
    handed = line.with_changes(body=[*line.body[:-1], cst.Expr(cst.Yield(node.value))])
    return handed if last else cst.FlattenSentinel([handed, cst.SimpleStatementLine([cst.Return()])])


def _is_last(tree: Tree, function: cst.FunctionDef, line: Any) -> bool:
    """Whether nothing of the function can run after a statement."""
    here = line
    while True:
        block = tree.parent(here)
        if not isinstance(block, cst.IndentedBlock) or block.body[-1] is not here:
            return False
        owner = tree.parent(block)
        if owner is function:
            return True
        if isinstance(owner, cst.ExceptHandler):
            owner = tree.parent(owner)
        if not isinstance(owner, cst.Try | cst.With) or (isinstance(owner, cst.Try) and owner.finalbody is not None):
            return False
        here = owner


def _signature(edits: Edits, function: cst.FunctionDef) -> None:
    """No longer async (Gradio runs it in a thread of its own), and no return annotation that is wrong now."""
    if function.asynchronous is not None:
        edits.add(function, lambda n: n.with_changes(asynchronous=None))
    if function.returns is not None:
        edits.add(function, lambda n: n.with_changes(returns=None))


def _pass_on(program: Program, edits: Edits, handler: cst.FunctionDef, name: str) -> bool:
    """A handler that calls the helper hands on what the helper yields."""
    tree = program.tree
    calls = [c for c in tree.calls if callee(c)[1] == name and tree.function(c) is handler]
    if len(calls) != 1 or any(walk_shallow(handler, cst.Await)) or any(walk_shallow(handler.body, cst.Yield)):
        return False
    call, line = calls[0], tree.statement(calls[0])
    path = _path(tree, handler, line)
    if path is None or not isinstance(line, cst.SimpleStatementLine):
        return False
    inner, after = path
    tail = tail_of(program, None, line, inner, after, handler, call)
    if tail is None:
        return False
    if isinstance(line.body[0], cst.Return) and line.body[0].value is call:
        new: list[Any] = [
            line.with_changes(body=[cst.Expr(cst.Yield(cst.From(call, whitespace_before_from=cst.SimpleWhitespace(" "))))])
        ]
    else:
        loop: Any = statements(tree, f"for {tail.whole} in f():\n{tree.step(line)}yield x\n")[0]
        handed = cst.SimpleStatementLine([cst.Expr(cst.Yield(tail.result))])
        loop = loop.with_changes(
            iter=call, leading_lines=tail.leading, body=loop.body.with_changes(body=[*tail.inside, handed])
        )
        new = [loop, *tail.once]
    edits.instead(line, new)
    for gone in tail.gone:
        if gone is not line:
            edits.drop(gone)
    _returns(tree, edits, handler, tail)
    _signature(edits, handler)
    return True


def streamer_thread(program: Program, context: Context) -> cst.Module | None:
    """`generate(streamer=…)` before (or as) the loop that reads the streamer runs in a thread of its own: else nothing streams."""
    program = _streamer_named(program)
    tree, edits = program.tree, Edits()
    streamers = {
        n for c in tree.calls if callee(c)[1] in ("TextIteratorStreamer", "AsyncTextIteratorStreamer") for n in bound(tree, c)
    }
    for where in program.generates:
        found = where.get("streamer")
        if found is None or dotted(found.value) not in streamers or where.skip:
            continue
        name, line = dotted(found.value), tree.statement(where.call)
        block = tree.parent(line) if line is not None else None
        body: Sequence[Any] = getattr(block, "body", ())
        if isinstance(line, cst.For) and line.iter is where.call:
            if any(callee(c)[1] in ("decode", "batch_decode") for c in walk(line.body, cst.Call)):
                return None
            reader: Any = line
        else:
            reader = next(
                (s for s in body if isinstance(s, cst.For) and dotted(s.iter) == name and tree.before(where.call, s)), None
            )
            if (
                reader is None
                or not isinstance(line, cst.SimpleStatementLine)
                or not isinstance(line.body[0], cst.Expr | cst.Assign)
            ):
                continue
            if isinstance(line.body[0], cst.Assign) and _read_later(tree, line):
                return None
        step, tail = tree.step(where.call), Tail("", cst.Name("x"), streamer=name)
        lines = thread(tree, tail, line, where, where.call, ends=any(walk_shallow(reader.body, cst.Yield)))
        told = statements(tree, f"if {tail.failed}:\n{step}raise {tail.failed}[0]\n")
        lines[0] = lines[0].with_changes(leading_lines=line.leading_lines)
        if reader is line:
            loop = reader.with_changes(iter=cst.Name(name), leading_lines=[])
            edits.instead(reader, [*lines, *read(tree, tail, step, [loop]), *told])
        else:
            edits.instead(line, lines)
            edits.add(reader, partial(_guarded, tree, tail, step, told))
    return with_imports(tree, edits.made(tree.module)) if edits else None


def _guarded(tree: Tree, tail: Tail, step: str, told: list[Any], loop: Any) -> Any:
    return cst.FlattenSentinel([*read(tree, tail, step, [loop]), *told])


def _streamer_named(program: Program) -> Program:
    """`for piece in generate(…, streamer=TextIteratorStreamer(…))` with the streamer as a variable before the loop, and what its body
    decodes taken as the text that a streamer gives."""
    tree, edits = program.tree, Edits()
    for where in program.generates:
        found, line = where.get("streamer"), tree.statement(where.call)
        if (
            found is None
            or not isinstance(line, cst.For)
            or line.iter is not where.call
            or not isinstance(line.target, cst.Name)
        ):
            continue
        if isinstance(found.value, cst.Call) and callee(found.value)[1] == "TextIteratorStreamer":
            name = tree.fresh("streamer", "text_streamer")
            edits.before(line, statements(tree, f"{name} = {tree.code(found.value)}\n")[0])
            edits.put(found.value, cst.Name(name))
        for call in walk(line.body, cst.Call):
            given = [a for a in call.args if a.keyword is None]
            if callee(call)[1] == "decode" and len(given) == 1 and dotted(given[0].value) == line.target.value:
                edits.put(call, given[0].value)
    return Program(Tree(edits.made(tree.module))) if edits else program


def _read_later(tree: Tree, line: cst.SimpleStatementLine) -> bool:
    assign = cst.ensure_type(line.body[0], cst.Assign)
    name, scope = dotted(assign.targets[0].target), tree.function(line) or tree.module
    return any(n.value == name and not tree.within(n, line) for n in walk(scope, cst.Name))


TABLE = {"stream-handler": stream_handler, "streamer-thread": streamer_thread}
