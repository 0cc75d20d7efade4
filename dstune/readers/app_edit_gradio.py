"""Edits of a Gradio app's frame: its queue, and arguments that its version does not take (any more)."""

from __future__ import annotations

import re
from typing import Any

import libcst as cst

from dstune.catalog import load
from dstune.expr import Version
from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_keywords import callee_name, made
from dstune.readers.app_edit_sites import (
    Found,
    Program,
    Site,
    add_keyword,
    appended,
    drop_keyword,
    rename_keyword,
    set_at,
    site,
)
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, expression, text_of

_DEMO = frozenset(("Interface", "ChatInterface", "Blocks", "TabbedInterface"))
_SIZE = ("max_size",)
_LIMIT = ("default_concurrency_limit", "concurrency_count")
_GONE = ("queue", "enable_queue", *_SIZE, *_LIMIT)
WAITING = 20
"""`max_size` where neither the program nor the fix names one: the number in Gradio's own guide ("Setting Up a Demo for Maximum Performance")."""
AT_A_TIME = 1
"""Gradio's own default for `default_concurrency_limit`: one GPU answers one `generate` at a time."""


def queue_method(program: Program, context: Context) -> cst.Module | None:
    """`Interface(queue=, max_size=)` and the like → `demo.queue(max_size=…, default_concurrency_limit=…)` before launch."""
    tree, edits = program.tree, Edits()
    size, limit = "", ""
    demos = [c for c in tree.calls if callee(c)[1] in _DEMO]
    names = {n for c in demos for n in _named(tree, c)}
    launches = [
        c
        for c in tree.calls
        if callee_name(c) == "launch" and isinstance(c.func, cst.Attribute) and _is_demo(c.func.value, names)
    ]
    queues = [
        c
        for c in tree.calls
        if callee_name(c) == "queue" and isinstance(c.func, cst.Attribute) and _is_demo(c.func.value, names)
    ]
    for call in [*demos, *launches]:
        where = site(tree, call)
        for name in _GONE:
            found = where.get(name)
            if found is None:
                continue
            size = tree.code(found.value) if name in _SIZE else size
            limit = tree.code(found.value) if name in _LIMIT else limit
            drop_keyword(edits, found)
    size = size or _number(context.settings.get("gradio.queue_max_size"), WAITING)
    limit = limit or _number(context.settings.get("gradio.default_concurrency_limit"), AT_A_TIME)
    for call in queues:
        where = site(tree, call)
        old = where.get("concurrency_count")
        if old is not None:
            if where.has("default_concurrency_limit"):
                drop_keyword(edits, old)
            else:
                rename_keyword(edits, old, "default_concurrency_limit")
        if not where.closed:
            return None
        wanted = {"max_size": "gradio.queue_max_size", "default_concurrency_limit": "gradio.default_concurrency_limit"}
        for name, value in (("max_size", size), ("default_concurrency_limit", limit)):
            if name == "default_concurrency_limit" and old is not None:
                continue
            if where.has(name) and wanted[name] in context.settings:
                set_at(tree, edits, where, name, value)
            elif not where.has(name) and not (name == "max_size" and where.positional()):
                add_keyword(edits, call, name, value)
    if not queues:
        if not launches:
            return None
        for call in launches:
            func = cst.ensure_type(call.func, cst.Attribute)
            code = f"x.queue(max_size={size}, default_concurrency_limit={limit})"
            _through_queue(edits, func, cst.ensure_type(expression(code), cst.Call))
    return made(program, edits)


def _through_queue(edits: Edits, launch: cst.Attribute, queue: cst.Call) -> None:
    """`demo.launch` → `demo.queue(…).launch`."""
    edits.add(launch, lambda n: n.with_changes(value=queue.with_changes(func=cst.Attribute(n.value, cst.Name("queue")))))


def _number(value: object, other: int) -> str:
    return str(int(value)) if isinstance(value, int | float) else str(other)


def _named(tree: Tree, call: cst.Call) -> list[str]:
    """Names of a demo: assigned, or `with gr.Blocks() as demo`."""
    here: cst.CSTNode = call
    up = tree.parent(here)
    while isinstance(up, cst.Attribute) or (isinstance(up, cst.Call) and up.func is here):
        here, up = up, tree.parent(up)
    if isinstance(up, cst.WithItem) and up.asname is not None:
        return [dotted(up.asname.name)]
    if isinstance(up, cst.Assign):
        return [n for t in up.targets if (n := dotted(t.target))]
    return []


def _is_demo(node: cst.BaseExpression, names: set[str]) -> bool:
    while isinstance(node, cst.Call):
        if callee(node)[1] in _DEMO:
            return True
        node = node.func.value if isinstance(node.func, cst.Attribute) else node.func
    return dotted(node) in names


_RENAMED = frozenset(("value", "flagging_mode", "server_name", "status_update_rate"))


def drop_removed_argument(program: Program, context: Context) -> cst.Module | None:
    """Arguments that Gradio lost (`removed` in engines/gradio.toml) go, or get their new name; `.style(…)` joins its constructor.

    Which ones: those the installed version rejects; where it is unknown, those that no version since 4 has and those the evidence
    names, and beside such a one, which no program for 4 holds, those that were for looks alone.
    """
    tree, edits = program.tree, Edits()
    version = context.versions.get("gradio")
    evidence = "\n".join(context.texts)
    rows = load("engines")["gradio"]["engine"]["removed"]
    old = not version and any(Version(r["until"]) <= Version("4.0") and _given(tree, r) for r in rows)
    old = old or (not version and bool(_styled(tree)))
    queue = False
    for row in rows:
        name, instead = row["keyword"], row["instead"]
        told = re.search(rf"\b{name}\b", evidence) is not None
        rejects = Version(version) >= Version(row["until"]) if version else Version(row["until"]) <= Version("4.0")
        harmless = old and instead == "" and name != "type"
        if not (rejects or harmless or (told and not version)):
            continue
        for where, found in _given(tree, row):
            call = where.call
            if "queue(" in instead:
                queue = True
            elif instead == "launch()":
                if not _to_launch(tree, edits, name, found):
                    return None
            elif instead in _RENAMED and not where.has(instead):
                rename_keyword(edits, found, instead)
            elif instead == "sources" and text_of(found.value) is not None:
                rename_keyword(edits, found, instead)
                edits.put(found.value, expression(f"[{tree.code(found.value)}]"))
            elif instead in ("", "footer_links", *_RENAMED):
                drop_keyword(edits, found)
            elif instead == "buttons":
                drop_keyword(edits, found)
                if dotted(found.value) == "True" and not where.has("buttons"):
                    word = "copy" if "copy" in name else "download" if "download" in name else "share"
                    add_keyword(edits, call, "buttons", f'["{word}"]')
            else:
                return None
    if not version or Version(version) >= Version("4.0"):
        for call in _styled(tree):
            edits.add(call, _unstyled)
    after = made(program, edits)
    if queue:
        return queue_method(Program(Tree(after)) if after is not None else program, context)
    return after


def _given(tree: Tree, row: dict[str, Any]) -> list[tuple[Site, Found]]:
    """The places where a program gives an argument of the table."""
    sites = [site(tree, c) for c in tree.calls if callee_name(c) in row["call"]]
    return [(s, found) for s in sites if (found := s.get(row["keyword"])) is not None]


def _to_launch(tree: Tree, edits: Edits, name: str, found: Found) -> bool:
    """Moves an argument to the one `launch(…)`; False where there are several or none."""
    launches = [c for c in tree.calls if callee_name(c) == "launch"]
    if len(launches) != 1:
        return False
    drop_keyword(edits, found)
    if not site(tree, launches[0]).has(name):
        add_keyword(edits, launches[0], name, tree.code(found.value))
    return True


def _styled(tree: Tree) -> list[cst.Call]:
    """`gr.Textbox(…).style(…)` calls."""
    gradio = tree.imported("gradio")
    return [
        c
        for c in tree.calls
        if callee_name(c) == "style"
        and isinstance(c.func, cst.Attribute)
        and isinstance(c.func.value, cst.Call)
        and callee(c.func.value)[0] in ("gr", gradio or "gr")
        and not any(a.star or a.keyword is None for a in c.args)
    ]


def _unstyled(node: cst.Call) -> cst.BaseExpression:
    """The constructor with the words of its `.style(…)` that it takes."""
    inner = cst.ensure_type(cst.ensure_type(node.func, cst.Attribute).value, cst.Call)
    kept = load("engines")["gradio"]["engine"]["style_kept"]
    have = {a.keyword.value for a in inner.args if a.keyword is not None}
    for argument in node.args:
        name = argument.keyword.value if argument.keyword is not None else ""
        name = "columns" if name == "grid" else name
        if name in kept and name not in have:
            new = argument.with_changes(
                keyword=cst.Name(name), comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=cst.SimpleWhitespace("")
            )
            inner = appended(inner, new)
    return inner


TABLE = {"queue-method": queue_method, "drop-removed-argument": drop_removed_argument}
