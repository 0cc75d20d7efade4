"""Edits of what stands around the model: Gradio's queue and arguments, Streamlit's cache, OpenAI clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import libcst as cst

from dstune.catalog import load
from dstune.expr import Version
from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_keywords import callee_name, made
from dstune.readers.app_edit_sites import Program, add_keyword, drop_keyword, rename_keyword, set_at, site
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, expression, statements, text_of, walk

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
    """Arguments that Gradio lost (`removed` in engines/gradio.toml) go, or get their new name.

    Which ones: those the installed version rejects; where it is unknown, those that no version since 4 has and those the evidence names.
    """
    tree, edits = program.tree, Edits()
    version = context.versions.get("gradio")
    evidence = "\n".join(context.texts)
    queue = False
    for row in load("engines")["gradio"]["engine"]["removed"]:
        name, instead = row["keyword"], row["instead"]
        told = re.search(rf"\b{name}\b", evidence) is not None
        rejects = Version(version) >= Version(row["until"]) if version else Version(row["until"]) <= Version("4.0")
        if not (rejects or (told and not version)):
            continue
        for call in tree.calls:
            if callee_name(call) not in row["call"]:
                continue
            where = site(tree, call)
            found = where.get(name)
            if found is None:
                continue
            if "queue(" in instead:
                queue = True
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
                    add_keyword(edits, call, "buttons", '["copy"]' if "copy" in name else '["share"]')
            else:
                return None
    after = made(program, edits)
    if queue:
        return queue_method(Program(Tree(after)) if after is not None else program, context)
    return after


def _addresses(program: Program) -> Iterator[cst.BaseExpression]:
    """Expressions that are the address of an OpenAI-compatible server."""
    for call in program.tree.calls:
        where = site(program.tree, call)
        for name in ("base_url", "api_base", "openai_api_base"):
            found = where.get(name)
            if found is not None:
                yield found.value
    for assign in program.tree.find(cst.Assign):
        if dotted(assign.targets[0].target) in ("openai.api_base", "openai.base_url"):
            yield assign.value


_ROOT = re.compile(r"^(https?://[^/\s]+)(?:/|/chat/completions/?|/v1/chat/completions/?)?$")


def base_url_v1(program: Program, context: Context) -> cst.Module | None:
    """The base URL of a client ends in `/v1`; a name that other code uses keeps its value."""
    tree, edits = program.tree, Edits()
    for node in _addresses(program):
        name = dotted(node)
        origin = _origin(tree, node)
        if origin is None:
            return None
        joined = _with_v1(tree, origin)
        if joined is None:
            continue
        scope = tree.function(origin) if "." not in name else None
        uses = sum(_is_read(tree, n) for n in walk(scope or tree.module, cst.Name) if n.value == name.rpartition(".")[2])
        if name and uses > 1 and not (text_of(origin) or "").rstrip("/").endswith("completions"):
            edits.put(
                node, expression(f'{name}.rstrip("/") + "/v1"' if (text_of(origin) or "x").endswith("/") else f'{name} + "/v1"')
            )
        else:
            edits.put(origin, joined)
    return made(program, edits)


def _is_read(tree: Tree, name: cst.Name) -> bool:
    parent = tree.parent(name)
    named = isinstance(parent, cst.Arg) and parent.keyword is name
    return not named and not isinstance(parent, cst.Param | cst.AssignTarget)


def _origin(tree: Tree, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The string that an address comes from: literal, f-string, default of an environment variable, a variable's one value."""
    if isinstance(node, cst.SimpleString | cst.FormattedString):
        return node
    name = dotted(node)
    if name:
        given = tree.assigned(name, tree.function(node))
        if not given:
            return tree.default(name, node)
        return _origin(tree, given[0].value) if len(given) == 1 and given[0].value is not None else None
    if (
        isinstance(node, cst.Call)
        and callee(node) in (("os", "getenv"), ("os.environ", "get"), ("", "getenv"))
        and len(node.args) == 2
    ):
        return _origin(tree, node.args[1].value)
    if isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.Or):
        return _origin(tree, node.right)
    return None


def _with_v1(tree: Tree, node: cst.BaseExpression) -> cst.BaseExpression | None:
    if isinstance(node, cst.SimpleString):
        found = _ROOT.match(text_of(node) or "")
        return node.with_changes(value=f"{node.prefix}{node.quote}{found[1]}/v1{node.quote}") if found else None
    if not isinstance(node, cst.FormattedString):
        return None
    code = tree.code(node)
    inner = code[len(node.start) : -len(node.end)]
    bare = re.sub(r"\{[^}]*\}", "x", inner)
    if not re.match(r"^https?://[^/\s]+/?$", bare):
        return None
    return expression(f"{node.start}{inner.rstrip('/')}/v1{node.end}")


_REQUESTS = frozenset(("get", "post", "put", "stream", "request"))


def localhost_ipv4(program: Program, context: Context) -> cst.Module | None:
    """`localhost` → `127.0.0.1` in the addresses that the program calls: localhost may mean ::1, where the server does not listen."""
    tree, edits = program.tree, Edits()
    nodes = list(_addresses(program))
    for call in tree.calls:
        left, name = callee(call)
        web = re.search(r"(?:^|\.)(requests|httpx|session|client|http|aiohttp)$", left) and name in _REQUESTS
        if web or name in ("urlopen", "Client", "Request"):
            nodes += [a.value for a in call.args[:2] if a.keyword is None or a.keyword.value in ("url", "src")]
    done: set[cst.CSTNode] = set()
    for node in nodes:
        for part in _parts(tree, node, set()):
            if part in done:
                continue
            done.add(part)
            edits.add(part, lambda n: n.with_changes(value=re.sub(r"(?<=://)localhost(?=[:/\"'{]|$)", "127.0.0.1", n.value)))
    after = made(program, edits)
    return after if after is not None and after.code != tree.module.code else None


def _parts(tree: Tree, node: cst.BaseExpression, seen: set[str]) -> Iterator[cst.SimpleString | cst.FormattedStringText]:
    """String pieces of an address, through the variables in it."""
    yield from walk(node, cst.SimpleString)
    yield from walk(node, cst.FormattedStringText)
    for name in [*walk(node, cst.Name)]:
        if name.value in seen:
            continue
        seen.add(name.value)
        given = tree.assigned(name.value, tree.function(node))
        origin = given[0].value if len(given) == 1 else tree.default(name.value, node)
        if origin is not None:
            yield from _parts(tree, origin, seen)


def guard_none_content(program: Program, context: Context) -> cst.Module | None:
    """`chunk.choices[0].delta.content` is None in the first and last chunk, and the usage chunk has no choices: `… or ""`, and skip."""
    tree, edits = program.tree, Edits()
    loops: dict[cst.For, str] = {}
    for node in tree.find(cst.Attribute):
        if node.attr.value != "content" or not (isinstance(node.value, cst.Attribute) and node.value.attr.value == "delta"):
            continue
        code = tree.code(node)
        loop = next((n for n in tree.above(node) if isinstance(n, cst.For)), None)
        if loop is not None and dotted(loop.target) and code.startswith(f"{dotted(loop.target)}.choices[0]"):
            loops.setdefault(loop, dotted(loop.target))
        parent = tree.parent(node)
        if _tested(tree, node, code) or isinstance(
            parent, cst.BooleanOperation | cst.Comparison | cst.UnaryOperation | cst.IfExp | cst.If
        ):
            continue
        if isinstance(parent, cst.AugAssign | cst.Assign | cst.AnnAssign | cst.Arg | cst.Yield | cst.Return):
            if isinstance(parent, cst.Assign) and _name_tested(tree, parent):
                continue
            edits.add(node, lambda n: cst.BooleanOperation(n, cst.Or(), cst.SimpleString('""')))
    for loop, name in loops.items():
        if (
            f"if not {name}.choices" in tree.code(loop)
            or f"if {name}.choices" in tree.code(loop)
            or f"len({name}.choices)" in tree.code(loop)
        ):
            continue
        if isinstance(loop.body, cst.IndentedBlock):
            first = statements(tree, f"if not {name}.choices:\n{tree.step(loop.body.body[0])}continue\n")
            edits.open_with(loop.body, first)
    return made(program, edits)


def _tested(tree: Tree, node: cst.CSTNode, code: str) -> bool:
    return any(isinstance(n, cst.If | cst.IfExp) and code in tree.code(n.test) for n in tree.above(node))


def _name_tested(tree: Tree, assign: cst.Assign) -> bool:
    name = dotted(assign.targets[0].target)
    scope: cst.CSTNode = tree.function(assign) or tree.module
    return bool(name) and any(
        re.search(rf"\b{re.escape(name)}\b", tree.code(n.test)) for n in [*walk(scope, cst.If), *walk(scope, cst.IfExp)]
    )


def cache_resource(program: Program, context: Context) -> cst.Module | None:
    """Streamlit runs the script at every click: the load goes into a function under `@st.cache_resource`."""
    tree, edits = program.tree, Edits()
    st = tree.imported("streamlit")
    if not st:
        return None
    loads = [*program.loads, *program.tokenizer_loads, *program.pipelines]
    inside = {f for c in loads if (f := tree.function(c)) is not None}
    for function in inside:
        wanted = cst.Decorator(expression(f"{st}.cache_resource"))
        old = next(
            (
                d
                for d in function.decorators
                if re.search(r"\bcache\b|cache_data|cache_resource|singleton|memo|lru_cache", tree.code(d))
            ),
            None,
        )
        if old is None:
            edits.put(function, function.with_changes(decorators=[wanted, *function.decorators]))
        elif "cache_resource" not in tree.code(old) and "lru_cache" not in tree.code(old):
            edits.put(old, wanted.with_changes(leading_lines=old.leading_lines))
    if inside:
        return made(program, edits)
    return _wrapped(program, loads, st)


def _wrapped(program: Program, loads: list[cst.Call], st: str) -> cst.Module | None:
    """Loads at module level, one after another, moved into one cached function."""
    tree = program.tree
    body = list(tree.module.body)
    lines = {tree.statement(c) for c in loads}
    names = [n for s in body if s in lines for a in walk(s, cst.Assign) for n in [dotted(a.targets[0].target)]]
    places = [i for i, s in enumerate(body) if s in lines]
    if not places or not all(names) or len(names) != len(places) or len(places) != len(lines):
        return None
    first, last = places[0], places[-1]
    while last + 1 < len(body) and _belongs(body[last + 1], names):
        last += 1
    block = body[first : last + 1]
    if any(s not in lines and not _belongs(s, names) for s in block):
        return None
    title = tree.fresh("load_model", "load")
    listed = ", ".join(names)
    made_: Any = statements(tree, f"@{st}.cache_resource\ndef {title}():\n{tree.module.default_indent}return {listed}\n")[0]
    inner: list[Any] = [
        block[0].with_changes(leading_lines=[line for line in block[0].leading_lines if line.comment]),
        *block[1:],
    ]
    function = made_.with_changes(body=made_.body.with_changes(body=[*inner, *made_.body.body]))
    blank = cst.EmptyLine(indent=False)
    call = statements(tree, f"{listed} = {title}()\n")[0].with_changes(leading_lines=[blank, blank])
    leading = [blank, blank] if first else []
    new = [*body[:first], function.with_changes(leading_lines=leading), call, *body[last + 1 :]]
    return tree.module.with_changes(body=new)


def _belongs(line: Any, names: list[str]) -> bool:
    """Whether a statement finishes a load: `model.eval()`, `model.to(…)`, `tokenizer.pad_token = …`."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    small = line.body[0]
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        return callee(small.value)[0] in names
    if isinstance(small, cst.Assign):
        target = dotted(small.targets[0].target)
        return target.partition(".")[0] in names and (
            ("." in target) or (isinstance(small.value, cst.Call) and callee(small.value)[0] == target)
        )
    return False


TABLE = {
    "queue-method": queue_method,
    "drop-removed-argument": drop_removed_argument,
    "base-url-v1": base_url_v1,
    "localhost-ipv4": localhost_ipv4,
    "guard-none-content": guard_none_content,
    "cache-resource": cache_resource,
}
