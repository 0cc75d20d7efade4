"""Edits of how much runs side by side on one model: worker processes, thread pools; and of a loader that no longer works."""

from __future__ import annotations

import re

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_imports import add_import
from dstune.readers.app_edit_keywords import dtype_keyword, made
from dstune.readers.app_edit_sites import Program, add_keyword, bound, drop_keyword, set_at, site
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, expression, walk

_SERVERS = frozenset(("uvicorn.run", "granian.run", "hypercorn.run"))


def one_worker_process(program: Program, context: Context) -> cst.Module | None:
    """`uvicorn.run(…, workers=4)` → `workers=1`: each process would load its own copy of the model."""
    tree, edits = program.tree, Edits()
    for call in tree.calls:
        left, name = callee(call)
        where = site(tree, call)
        if f"{left}.{name}" not in _SERVERS and not (name == "Config" and left.endswith("uvicorn")):
            continue
        found = where.get("workers")
        if found is not None and re.search(r"getenv\(|environ|cpu_count\(", tree.code(found.value)):
            edits.put(found.value, expression("1"))  # whatever the environment says, the model is there once
        elif where.has("workers") and set_at(tree, edits, where, "workers", "1") is None:
            return None
    top = {
        dotted(a.targets[0].target): a
        for a in tree.find(cst.Assign)
        if isinstance(tree.parent(tree.parent(a) or a), cst.Module)
    }
    conf = {"bind", "worker_class", "timeout", "keepalive", "preload_app"} & set(top)  # gunicorn.conf.py
    if conf and "workers" in top and tree.code(top["workers"].value) != "1":
        edits.put(top["workers"].value, expression("1"))
    return made(program, edits)


def one_pool_thread(program: Program, context: Context) -> cst.Module | None:
    """The pool whose threads generate gets one: the others' work waits in its queue, which is what the card does anyway."""
    tree, edits = program.tree, Edits()
    generating = _reaching(tree, {n for w in program.generates if (n := tree.function(w.call)) is not None})
    pools = [c for c in tree.calls if callee(c)[1] == "ThreadPoolExecutor"]
    for pool in pools:
        if len(pools) > 1 and not _runs(tree, pool, generating):
            continue
        found = site(tree, pool).get("max_workers")
        node = (
            found.value if found is not None else next((a.value for a in pool.args if a.keyword is None and not a.star), None)
        )
        if node is None:
            add_keyword(edits, pool, "max_workers", "1")
        elif tree.code(node) != "1":
            edits.put(node, expression("1"))
    return made(program, edits)


def _reaching(tree: Tree, found: set[cst.FunctionDef]) -> set[str]:
    """Names of the functions that generate, and of those that call them."""
    names = {f.name.value for f in found}
    while True:
        more = {
            f.name.value
            for f in tree.functions
            if f.name.value not in names and any(callee(c)[1] in names for c in walk(f, cst.Call))
        }
        if not more:
            return names
        names |= more


def _runs(tree: Tree, pool: cst.Call, generating: set[str]) -> bool:
    """Whether a pool is handed one of these functions."""
    names = set(bound(tree, pool))
    item = tree.parent(pool)
    if isinstance(item, cst.WithItem) and item.asname is not None:
        names.add(dotted(item.asname.name))
    for call in tree.calls:
        left, name = callee(call)
        mine = (left in names and name in ("submit", "map")) or (
            name == "run_in_executor" and bool(call.args) and dotted(call.args[0].value) in names
        )
        given = [a.value for a in call.args[:2]]
        if mine and any(dotted(g).rpartition(".")[2] in {*generating, "generate"} for g in given):
            return True
    return False


def awq_by_transformers(program: Program, context: Context) -> cst.Module | None:
    """`AutoAWQForCausalLM.from_quantized(path)` → `AutoModelForCausalLM.from_pretrained(path, …)`: transformers reads AWQ itself.

    Programs that quantise stay: only autoawq and its successor do that.
    """
    tree, edits = program.tree, Edits()
    imports = [i for i in tree.find(cst.ImportFrom) if dotted(i.module) == "awq" and not isinstance(i.names, cst.ImportStar)]
    calls = [c for c in tree.calls if callee(c)[0].endswith("AutoAWQForCausalLM")]
    if not calls or len(imports) != 1 or len(imports[0].names) != 1 or any(callee(c)[1] != "from_quantized" for c in calls):
        return None
    if sum(n.value == "AutoAWQForCausalLM" for n in tree.find(cst.Name)) != len(calls) + 1:
        return None
    for call in calls:
        where = site(tree, call)
        for name in (
            "fuse_layers",
            "max_seq_len",
            "batch_size",
            "max_new_tokens",
            "use_exllama",
            "use_exllama_v2",
            "safetensors",
            "use_ipex",
        ):
            found = where.get(name)
            if found is not None:
                drop_keyword(edits, found)
        if len([a for a in call.args if a.keyword is None and not a.star]) > 1:
            return None
        edits.put(call.func, expression("AutoModelForCausalLM.from_pretrained"))
        if not where.has("torch_dtype") and not where.has("dtype"):
            add_keyword(edits, call, dtype_keyword(context), '"auto"')
        if not where.has("device_map"):
            add_keyword(edits, call, "device_map", '"auto"')
        for name in bound(tree, call):  # autoawq wrapped the model
            for inner in tree.find(cst.Attribute):
                if dotted(inner) == f"{name}.model" and isinstance(tree.parent(inner), cst.Attribute):
                    return None
    old = imports[0]
    others = [i for i in tree.find(cst.ImportFrom) if dotted(i.module) == "transformers"]
    line = tree.parent(old)
    if others:
        if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
            body = list(tree.module.body)
            below = body[body.index(line) + 1] if line in body and line is not body[-1] else None
            if below is not None and line.leading_lines:
                edits.add(below, lambda n: n.with_changes(leading_lines=[*line.leading_lines, *n.leading_lines]))
            edits.drop(line)
        else:
            edits.drop(old)
        after = edits.made(tree.module)
        return add_import(after, "from transformers import AutoModelForCausalLM")
    edits.put(
        old,
        cst.ensure_type(
            cst.ensure_type(cst.parse_statement("from transformers import AutoModelForCausalLM"), cst.SimpleStatementLine).body[
                0
            ],
            cst.ImportFrom,
        ),
    )
    return made(program, edits)


TABLE = {
    "one-worker-process": one_worker_process,
    "one-pool-thread": one_pool_thread,
    "awq-by-transformers": awq_by_transformers,
}
