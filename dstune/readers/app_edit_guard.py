"""Small safeguards: what starts an engine under a main guard, time limits of requests, downloads not forced, one model at a time."""

from __future__ import annotations

import re
from typing import Any

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_imports import add_import
from dstune.readers.app_edit_keywords import callee_name, made
from dstune.readers.app_edit_sites import Program, add_keyword, bound, drop_keyword, site
from dstune.readers.app_edit_tree import Edits, callee, dotted, drop_statement, statements, text_of, walk

CONNECT, READ = 5, 120
"""Seconds: to connect, and between two bytes; the second is `server.timeout` of the fourth article."""


def request_timeout(program: Program, context: Context) -> cst.Module | None:
    """`requests.post(url, …)` gets `timeout=(5, 120)`: a server that hangs would hold the client for ever."""
    tree, edits = program.tree, Edits()
    sessions = {
        n for c in tree.calls if callee(c) in (("requests", "Session"), ("requests", "session")) for n in bound(tree, c)
    }
    for call in tree.calls:
        left, name = callee(call)
        if left not in {"requests", *sessions} or name not in ("post", "put", "patch"):
            continue
        where = site(tree, call)
        if where.closed and not where.has("timeout"):
            add_keyword(edits, call, "timeout", f"({CONNECT}, {READ})")
    return made(program, edits)


def drop_force_download(program: Program, context: Context) -> cst.Module | None:
    """`force_download=True` goes: it fetches all weights again at each start."""
    tree, edits = program.tree, Edits()
    for call in tree.calls:
        if callee_name(call) not in ("from_pretrained", "snapshot_download", "hf_hub_download", "pipeline", "partial"):
            continue
        found = site(tree, call).get("force_download")
        if found is not None and dotted(found.value) == "True":
            drop_keyword(edits, found)
    return made(program, edits)


def unload_old_model(program: Program, context: Context) -> cst.Module | None:
    """Before a global model is loaded anew the old one goes: `model = None`, a collection, and torch's cache given back."""
    tree, edits = program.tree, Edits()
    torch = tree.imported("torch")
    for call in program.loads:
        function, line, names = tree.function(call), tree.statement(call), bound(tree, call)
        if function is None or len(names) != 1 or not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            continue
        name = names[0]
        shared = any(n.name.value == name for g in walk(function.body, cst.Global) for n in g.names) or "." in name
        block = tree.parent(line)
        body: list[Any] = list(getattr(block, "body", ()))
        if not shared or function.name.value in ("__init__",) or "empty_cache" in tree.code(function):
            continue
        held = [
            a
            for a in tree.find(cst.Assign)
            if any(dotted(t.target) == name for t in a.targets) and not tree.within(a, function)
        ]
        if line not in body or (not held and "." not in name):
            continue
        new = statements(
            tree, f"{name} = None  # the old one goes first\ngc.collect()\n{torch or 'torch'}.cuda.empty_cache()\n"
        )
        new[0] = new[0].with_changes(leading_lines=line.leading_lines)
        edits.add(line, lambda n, new=new: cst.FlattenSentinel([*new, n.with_changes(leading_lines=[])]))  # type: ignore[misc]
    after = made(program, edits)
    if after is None:
        return None
    after = add_import(after, "import gc")
    return after if torch else add_import(after, "import torch")


def pad_token_id(program: Program, context: Context) -> cst.Module | None:
    """`pad_token_id=tokenizer.eos_token_id` on generate calls that have none: it is what transformers takes, and then it says nothing."""
    edits = Edits()
    if len(program.tokenizers) != 1:
        return None
    tokenizer = next(iter(program.tokenizers))
    for where in program.generates:
        if where.has("generation_config") or dotted(where.call.func) in program.pipes:
            continue
        if where.closed and not where.has("pad_token_id"):
            add_keyword(edits, where.holders[0], "pad_token_id", f"{tokenizer}.eos_token_id")
    return made(program, edits)


def drop_visible_devices(program: Program, context: Context) -> cst.Module | None:
    """`os.environ["CUDA_VISIBLE_DEVICES"] = "1"` goes: it names a card that is not there."""
    tree, edits = program.tree, Edits()
    for assign in tree.find(cst.Assign):
        target = assign.targets[0].target
        if (
            not isinstance(target, cst.Subscript)
            or dotted(target.value) not in ("os.environ", "environ")
            or len(assign.targets) > 1
        ):
            continue
        index = target.slice[0].slice
        if (
            isinstance(index, cst.Index)
            and text_of(index.value) == "CUDA_VISIBLE_DEVICES"
            and text_of(assign.value) is not None
        ):
            drop_statement(tree, edits, assign)
    return made(program, edits)


_STARTS = re.compile(r"\b(?:LLM|AsyncLLMEngine\.from_engine_args|Engine|mp\.spawn|Process|ProcessPoolExecutor|Pool)\(")
_CALMS = (cst.FunctionDef, cst.ClassDef)


def main_guard(program: Program, context: Context) -> cst.Module | None:
    """What stands at the top level from the line on that starts processes → under `if __name__ == "__main__":`.

    Not where functions or classes are defined after it, or where the guard is there.
    """
    tree = program.tree
    body = list(tree.module.body)
    if any(isinstance(s, cst.If) and "__name__" in tree.code(s.test) for s in body):
        return None
    first = next(
        (i for i, s in enumerate(body) if not isinstance(s, _CALMS) and not _imports(s) and _STARTS.search(tree.code(s))), None
    )
    if first is None or any(isinstance(s, _CALMS) or _imports(s) for s in body[first:]):
        return None
    inside = body[first:]
    lead = inside[0].leading_lines
    inside[0] = inside[0].with_changes(leading_lines=[])
    blank = [cst.EmptyLine(indent=False)] if first and not any(not e.comment for e in lead) else []
    guard: Any = statements(tree, 'if __name__ == "__main__":\n    pass\n')[0]
    guard = guard.with_changes(
        leading_lines=[*blank, *lead], body=cst.IndentedBlock(inside, indent=None, footer=tree.module.footer)
    )
    return tree.module.with_changes(body=[*body[:first], guard], footer=[])


def _imports(line: Any) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and any(isinstance(s, cst.Import | cst.ImportFrom) for s in line.body)


TABLE = {
    "request-timeout": request_timeout,
    "drop-force-download": drop_force_download,
    "unload-old-model": unload_old_model,
    "main-guard": main_guard,
    "pad-token-id": pad_token_id,
    "drop-visible-devices": drop_visible_devices,
}
