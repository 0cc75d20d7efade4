"""Edits of how the model runs: gradients, compilation, what is handed on, how much of a conversation goes in."""

from __future__ import annotations

import itertools
import re
from typing import Any

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_imports import add_import
from dstune.readers.app_edit_keywords import made
from dstune.readers.app_edit_sites import Program, bound
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, drop_statement, expression, parameters, statements, walk


def accumulate_yield(program: Program, context: Context) -> cst.Module | None:
    """A loop over a streamer that hands on fragments hands on the text so far."""
    tree, edits = program.tree, Edits()
    for loop in tree.find(cst.For):
        piece = dotted(loop.target)
        if piece and isinstance(loop.body, cst.IndentedBlock) and _yields_delta(tree, edits, loop, piece):
            continue
        if not piece or "streamer" not in tree.code(loop.iter).lower() or not isinstance(loop.body, cst.IndentedBlock):
            continue
        if any(isinstance(n.operator, cst.AddAssign) for n in walk(loop.body, cst.AugAssign)) or "join" in tree.code(loop.body):
            continue
        handed = list(walk(loop.body, cst.Yield))
        reads = [n for n in walk(loop.body, cst.Name) if n.value == piece]
        if not handed or not reads or any(_stored(tree, n) for n in reads):
            continue
        whole = tree.fresh("text", "answer", "partial")
        for node in reads:
            edits.put(node, cst.Name(whole))
        first = statements(tree, f"{whole} += {piece}\n")
        edits.open_with(loop.body, first)
        edits.before(loop, statements(tree, f'{whole} = ""\n')[0])
    return made(program, edits)


def _yields_delta(tree: Tree, edits: Edits, loop: cst.For, piece: str) -> bool:
    """`yield chunk.choices[0].delta.content` of a client's stream → adds it up and yields the text so far."""
    handed: list[Any] = [y for y in walk(loop.body, cst.Yield) if y.value is not None]
    if len(handed) != 1 or any(isinstance(n.operator, cst.AddAssign) for n in walk(loop.body, cst.AugAssign)):
        return False
    code, line = tree.code(handed[0].value), tree.statement(handed[0])
    alone = (
        isinstance(line, cst.SimpleStatementLine)
        and tree.parent(tree.parent(handed[0]) or loop) is line
        and len(line.body) == 1
    )
    if line is None or not alone or not code.startswith(f"{piece}.choices[0].delta.content"):
        return False
    whole = tree.fresh("text", "answer", "partial")
    added = statements(tree, f"{whole} += {code}\nyield {whole}\n")
    added[0] = added[0].with_changes(leading_lines=line.leading_lines)
    edits.instead(line, added)
    edits.before(loop, statements(tree, f'{whole} = ""\n')[0])
    return True


def _stored(tree: Tree, name: cst.Name) -> bool:
    """Whether a name stands where it is bound, or as an attribute's own name."""
    parent = tree.parent(name)
    return isinstance(parent, cst.AssignTarget | cst.Param) or (isinstance(parent, cst.Attribute) and parent.attr is name)


def add_inference_mode(program: Program, context: Context) -> cst.Module | None:
    """A bare forward pass `model(…)` under `torch.inference_mode()`: without it every call keeps a graph for gradients."""
    tree, edits = program.tree, Edits()
    torch = tree.imported("torch")
    lines: dict[cst.SimpleStatementLine, None] = {}
    for call in tree.calls:
        left, name = callee(call)
        full = f"{left}.{name}" if left else name
        if full in program.models and not _guarded(tree, call):
            line = tree.statement(call)
            if not isinstance(line, cst.SimpleStatementLine):
                return None
            lines[line] = None
    for line in lines:
        _under(edits, line, f"{torch or 'torch'}.inference_mode()", tree.step(line))
    found = made(program, edits)
    return add_import(found, "import torch") if found is not None and not torch else found


def _under(edits: Edits, line: cst.SimpleStatementLine, manager: str, step: str) -> None:
    """Puts a statement into a `with` block."""
    body = cst.IndentedBlock([line.with_changes(leading_lines=[])], indent=step)
    edits.put(line, cst.With([cst.WithItem(expression(manager))], body, leading_lines=line.leading_lines))


_GUARDS = re.compile(r"\b(no_grad|inference_mode)\b")


def _guarded(tree: Tree, node: cst.CSTNode) -> bool:
    if "set_grad_enabled(False)" in tree.module.code:
        return True
    for here in tree.above(node):
        if isinstance(here, cst.With) and any(_GUARDS.search(tree.code(i)) for i in here.items):
            return True
        if isinstance(here, cst.FunctionDef) and any(_GUARDS.search(tree.code(d)) for d in here.decorators):
            return True
    return False


def drop_compile(program: Program, context: Context) -> cst.Module | None:
    """`torch.compile(model)` goes: `generate` never calls the compiled object. A compiled `model.forward` stays."""
    tree, edits = program.tree, Edits()
    for call in tree.calls:
        if callee(call) != ("torch", "compile") or not call.args:
            continue
        inner = call.args[0].value
        name = dotted(inner)
        if name and not program.is_model(name):
            continue
        parent = tree.parent(call)
        targets = bound(tree, call)
        if isinstance(parent, cst.Expr) or (name and targets == [name]):
            drop_statement(tree, edits, parent)  # type: ignore[arg-type]
        else:
            edits.put(call, inner)
    return made(program, edits)


_BLOCKING = re.compile(r"\.generate\(|from_pretrained\(|time\.sleep\(|requests\.(?:get|post)\(|\.create\(")


def sync_handler(program: Program, context: Context) -> cst.Module | None:
    """`async def` that blocks and awaits nothing → `def`: Gradio and FastAPI run that in a thread of its own.

    Gradio counts its threads. FastAPI runs up to 40: there the model answers one at a time, behind a lock, as it did in the event loop.
    """
    tree, edits = program.tree, Edits()
    awaited = {callee(c)[1] for a in tree.find(cst.Await) for c in walk(a, cst.Call)}
    gate, gated = "", None
    for function in tree.functions:
        waits = list(walk(function, cst.Await))
        nested = any(n.asynchronous is not None for kind in (cst.For, cst.With, cst.CompFor) for n in walk(function.body, kind))
        code = tree.code(function.body)
        blocks = _BLOCKING.search(code) or any(re.search(rf"\b{re.escape(p)}\(", code) for p in program.pipes)
        if function.asynchronous is None or waits or nested or function.name.value in awaited or not blocks:
            continue
        edits.add(function, lambda n: n.with_changes(asynchronous=None))
        if not (tree.imported("fastapi", "FastAPI") or tree.imported("fastapi")) or "Lock(" in tree.module.code:
            continue
        for where in program.generates:
            line = tree.statement(where.call)
            if (
                tree.function(where.call) is function
                and isinstance(line, cst.SimpleStatementLine)
                and not where.has("streamer")
            ):
                gate = gate or tree.fresh("one_at_a_time", "generating")
                gated = gated or function
                _under(edits, line, gate, tree.step(line))
    if gated is not None:
        top: cst.CSTNode = [gated, *tree.above(gated)][-2]
        new = statements(tree, f"{gate} = Lock()\n")[0]
        above = next((a for a, b in itertools.pairwise(tree.module.body) if b is top), None)
        edits.add(top, lambda n: _led(n, new, isinstance(above, cst.ClassDef | cst.FunctionDef)))
    after = made(program, edits)
    return add_import(after, "from threading import Lock") if after is not None and gate else after


def _led(node: Any, new: Any, apart: bool) -> Any:
    """A statement of the module before a definition, both set off by blank lines."""
    blank = cst.EmptyLine(indent=False)
    gap = [e for e in node.leading_lines if not e.comment]
    comments = [e for e in node.leading_lines if e.comment]
    return cst.FlattenSentinel(
        [new.with_changes(leading_lines=gap if apart else gap[:1]), node.with_changes(leading_lines=[blank, blank, *comments])]
    )


TURNS = 10
"""Turns of a conversation that stay in the prompt where the fix names no number."""


def cap_history(program: Program, context: Context) -> cst.Module | None:
    """The prompt takes the last turns of the history only; the history itself stays whole."""
    tree, edits = program.tree, Edits()
    turns = context.settings.get("app.history_turns") or TURNS
    for function in tree.functions:
        for name in [p for p in parameters(function) if p in ("history", "chat_history", "messages", "chatbot")]:
            for node in [*walk(function.body, cst.For), *walk(function.body, cst.CompFor)]:
                if dotted(node.iter) != name:
                    continue
                pairs = isinstance(node.target, cst.Tuple)
                number = int(float(str(turns))) * (1 if pairs else 2)
                edits.put(node.iter, expression(f"{name}[-{number}:]"))
    return made(program, edits)


TABLE = {
    "accumulate-yield": accumulate_yield,
    "add-inference-mode": add_inference_mode,
    "drop-compile": drop_compile,
    "cap-history": cap_history,
    "sync-handler": sync_handler,
}
