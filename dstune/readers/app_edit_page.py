"""A Streamlit page that shows the finished answer → one that writes it as it comes (`st.write_stream`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import libcst as cst

from dstune.readers.app_edit_keywords import callee_name
from dstune.readers.app_edit_sites import Program, Site
from dstune.readers.app_edit_tail import Tail
from dstune.readers.app_edit_tail_parts import slicing
from dstune.readers.app_edit_thread import read, with_imports, worker
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, statements, walk, walk_shallow

_SHOWS = frozenset(("write", "markdown", "text", "success", "info"))
_AROUND = re.compile(r"^(?:torch\.)?(?:no_grad|inference_mode)\(\)$|\.spinner\(")


@dataclass(slots=True)
class Shown:
    """Where the answer is shown: the statement that goes, and the one that writes the stream instead."""

    line: Any
    new: Any


def stream_page(program: Program) -> cst.Module | None:
    """Every generation whose text one `st.write(text)` shows, in the script itself or through one helper that returns the text.

    None where the text is worked on before it is shown, or shown in another way.
    """
    tree, edits = program.tree, Edits()
    st = tree.imported("streamlit")
    sites = [
        w
        for w in program.generates
        if not w.skip and not w.has("streamer") and (callee_name(w.call) == "generate" or dotted(w.call.func) in program.pipes)
    ]
    if not st or len(sites) != 1 or sites[0].has("num_beams") or sites[0].has("num_return_sequences"):
        return None
    where = sites[0]
    line = tree.statement(where.call)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    around, rest = following(tree, line)
    piped = dotted(where.call.func) in program.pipes
    answer = _of_pipeline(program, where, line, rest) if piped else decoded(program, where, line, rest)
    if answer is None:
        return None
    tail, name, after = answer
    function = tree.function(where.call)
    if name and (shown := _shown(tree, name, after, "streamer")) is not None:
        working = _worker(program, where, tail, line)
        new = [*working, *read(tree, tail, tree.step(line), [shown.new]), *_raised(tree, tail)]
        _put(tree, edits, around, line, new, tail)
        edits.drop(shown.line)
    elif function is not None and _gives(tree, function, name, after):
        if not _callers_write(tree, edits, st, function):
            return None
        working = _worker(program, where, tail, line)
        stream = statements(tree, f"yield from {tail.streamer}\n")
        new = [*working, *read(tree, tail, tree.step(line), stream), *_raised(tree, tail)]
        _put(tree, edits, around, line, new, tail)
        for gone in after:
            edits.drop(gone)
        if function.returns is not None:
            edits.add(function, lambda n: n.with_changes(returns=None))
    else:
        return None
    return with_imports(tree, edits.made(tree.module), "from transformers import TextIteratorStreamer")


def following(tree: Tree, line: Any, locks: bool = False) -> tuple[Any, list[Any]]:
    """(the statement that holds the line and nothing but guards, what follows in order). `locks`: a `with name:` is one too."""
    here, rest = line, []
    while True:
        block = tree.parent(here)
        body = list(getattr(block, "body", ()))
        rest += body[next(i for i, s in enumerate(body) if s is here) + 1 :]
        owner = tree.parent(block) if block is not None else None
        if isinstance(owner, cst.With) and all(
            _AROUND.search(tree.code(i.item)) or (locks and isinstance(i.item, cst.Name)) for i in owner.items
        ):
            here = owner
            continue
        return here, rest


def decoded(
    program: Program, where: Site, line: Any, rest: list[Any], anyhow: bool = False
) -> tuple[Tail, str, list[Any]] | None:
    """(tail with tokenizer and what goes, name of the text or "" where it is returned at once, statements after it).

    `anyhow`: the decode may stand inside a larger expression, as the statement itself is not replaced.
    """
    tree = program.tree
    small = line.body[0]
    if not isinstance(small, cst.Assign) or len(small.targets) != 1 or not slicing(small.value, where.call):
        return None
    derived = {dotted(small.targets[0].target)}
    tail = Tail("", cst.Name("x"), gone=[line], leading=[*line.leading_lines], streamer="streamer", failed="failed")
    for at, one in enumerate(rest):
        if not isinstance(one, cst.SimpleStatementLine) or len(one.body) != 1:
            return None
        inner = one.body[0]
        reads = {n.value for n in walk(inner, cst.Name)} & derived
        decode = next((c for c in walk(inner, cst.Call) if callee_name(c) in ("decode", "batch_decode") and callee(c)[0]), None)
        if decode is not None and reads:
            value = getattr(inner, "value", None)
            whole: Any = decode
            if callee_name(decode) == "batch_decode":
                whole = tree.parent(decode)
            tail.tokenizer = callee(decode)[0]
            tail.options = [a for a in decode.args if a.keyword is not None and a.keyword.value != "token_ids"]
            stripped = (
                isinstance(value, cst.Call)
                and callee_name(value) == "strip"
                and isinstance(value.func, cst.Attribute)
                and value.func.value is whole
            )
            if anyhow:
                return tail, "", rest[at:]
            if value is not whole and not stripped:
                return None
            if isinstance(inner, cst.Return):
                return tail, "", rest[at:]
            if not isinstance(inner, cst.Assign) or len(inner.targets) != 1 or not dotted(inner.targets[0].target):
                return None
            tail.gone.append(one)
            return tail, dotted(inner.targets[0].target), rest[at + 1 :]
        if not reads or not isinstance(inner, cst.Assign) or not slicing(inner.value, None):
            return None
        derived |= {dotted(t.target) for t in inner.targets}
        tail.gone.append(one)
    return None


def _of_pipeline(program: Program, where: Site, line: Any, rest: list[Any]) -> tuple[Tail, str, list[Any]] | None:
    """What `decoded` says, of a pipeline: `out = pipe(messages)`, `text = out[0]["generated_text"][-1]["content"]`, or both in one.

    A streamer gives the answer alone, so the program must take it without the prompt already.
    """
    tree, small = program.tree, line.body[0]
    alone = where.get("return_full_text")
    wanted = (
        '["generated_text"]' if alone is not None and dotted(alone.value) == "False" else '["generated_text"][-1]["content"]'
    )
    if not isinstance(small, cst.Assign) or len(small.targets) != 1 or not dotted(small.targets[0].target):
        return None
    pipe, name = dotted(where.call.func), dotted(small.targets[0].target)
    tail = Tail(
        "", cst.Name("x"), f"{pipe}.tokenizer", gone=[line], leading=[*line.leading_lines], streamer="streamer", failed="failed"
    )

    def rooted(node: Any, root: str) -> bool:
        code = tree.code(node).replace("'", '"').replace(" ", "")
        return code in (f"{root}[0]{wanted}", f"{root}{wanted}")

    call = tree.code(where.call).replace("'", '"').replace(" ", "")
    if rooted(small.value, call):
        return tail, name, rest
    if small.value is not where.call:
        return None
    for at, one in enumerate(rest):
        inner = one.body[0] if isinstance(one, cst.SimpleStatementLine) and len(one.body) == 1 else None
        if not any(n.value == name for n in walk(one, cst.Name)):
            continue
        if isinstance(inner, cst.Assign) and len(inner.targets) == 1 and rooted(inner.value, name):
            later = [n for other in rest[at + 1 :] for n in walk(other, cst.Name) if n.value == name]
            target = dotted(inner.targets[0].target)
            tail.gone.append(one)
            return (tail, target, rest[at + 1 :]) if target and (target == name or not later) else None
        return None
    return None


def _shown(tree: Tree, name: str, after: list[Any], stream: str) -> Shown | None:
    """The one statement that shows the text, alone or alone in its `with`; nothing may change the text before."""
    for one in after:
        inner = one
        if isinstance(one, cst.With) and isinstance(one.body, cst.IndentedBlock) and len(one.body.body) == 1:
            inner = one.body.body[0]
        small = inner.body[0] if isinstance(inner, cst.SimpleStatementLine) and len(inner.body) == 1 else None
        call = small.value if isinstance(small, cst.Expr) else None
        source = _showing(tree, call, name) if isinstance(call, cst.Call) else ""
        if source:
            line = statements(tree, f"{name} = {source}.write_stream({stream})\n")[0]
            new: Any = line.with_changes(leading_lines=inner.leading_lines)
            if inner is not one:
                new = one.with_changes(body=one.body.with_changes(body=[new]))
            return Shown(one, new)
        if any(dotted(t.target) == name for a in walk(one, cst.Assign) for t in a.targets):
            return None
    return None


def _showing(tree: Tree, call: cst.Call, name: str) -> str:
    """What writes the text (`st`, `st.chat_message("assistant")`) where a call does nothing but that."""
    if callee_name(call) not in _SHOWS or len(call.args) != 1 or not isinstance(call.func, cst.Attribute):
        return ""
    return tree.code(call.func.value) if dotted(call.args[0].value) == name else ""


def _gives(tree: Tree, function: cst.FunctionDef, name: str, after: list[Any]) -> bool:
    """Whether the function ends by returning the text, and returns nothing else anywhere."""
    if len(after) != 1 or not isinstance(after[0], cst.SimpleStatementLine) or not isinstance(after[0].body[0], cst.Return):
        return False
    returns = list(walk_shallow(function.body, cst.Return))
    value = after[0].body[0].value
    plain = value is not None and (not name or dotted(value) == name)
    cached = any("cache" in tree.code(d) for d in function.decorators)
    return plain and len(returns) == 1 and not cached and not any(walk_shallow(function.body, cst.Yield))


def _callers_write(tree: Tree, edits: Edits, st: str, function: cst.FunctionDef) -> bool:
    """Each call `answer = helper(…)` whose answer is shown becomes `answer = st.write_stream(helper(…))`."""
    own = function.name.value
    calls = [c for c in tree.calls if callee(c) == ("", own) and tree.function(c) is not function]
    named = sum(n.value == own for n in tree.find(cst.Name))
    if not calls or named != len(calls) + 1:
        return False
    for call in calls:
        line = tree.statement(call)
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
        if not isinstance(small, cst.Assign) or small.value is not call or len(small.targets) != 1:
            return False
        around, rest = following(tree, line)
        shown = _shown(tree, dotted(small.targets[0].target), rest, tree.code(call))
        if shown is None:
            return False
        edits.put(around, shown.new)
        edits.drop(shown.line)
    return True


def _worker(program: Program, where: Site, tail: Tail, line: Any) -> list[Any]:
    """The worker's statements. What the call reads of Streamlit is read before: another thread has no session."""
    tree, st = program.tree, program.tree.imported("streamlit")
    lines = worker(program, where, tail, line)
    before: list[Any] = []
    edits = Edits()
    for arg in walk(lines[-2], cst.Arg):
        code = tree.code(arg.value)
        if not re.search(rf"\b{re.escape(st)}\.", code):
            continue
        name = tree.fresh(f"{arg.keyword.value}_given" if arg.keyword is not None else "conversation", f"given{len(before)}")
        before += statements(tree, f"{name} = {code}\n")
        edits.put(arg.value, cst.Name(name))
    if before:
        lines[-2] = edits.made(cst.Module([lines[-2]])).body[0]
        before[0] = before[0].with_changes(leading_lines=lines[0].leading_lines)
        lines[0] = lines[0].with_changes(leading_lines=[])
    return [*before, *lines]


def _raised(tree: Tree, tail: Tail) -> list[Any]:
    step = tree.module.default_indent
    return statements(tree, f"if {tail.failed}:\n{step}raise {tail.failed}[0]\n")


def _put(tree: Tree, edits: Edits, around: Any, line: Any, new: list[Any], tail: Tail) -> None:
    """The new statements where generating began, with what stood before it in its guard."""
    kept: list[Any] = []
    if around is not line:
        inner = [
            s for s in walk(around, cst.SimpleStatementLine) if s is not line and s not in tail.gone and tree.before(s, line)
        ]
        kept = inner
        new = [*kept, *new]
        new[0] = new[0].with_changes(leading_lines=[*around.leading_lines, *(e for e in new[0].leading_lines if e.comment)])
    edits.instead(around, new)
    for gone in tail.gone:
        if gone is not line and not tree.within(gone, around):
            edits.drop(gone)
