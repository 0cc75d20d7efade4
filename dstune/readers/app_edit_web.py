"""Edits of what stands around the model: Streamlit's cache, OpenAI clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_keywords import made
from dstune.readers.app_edit_sites import Program, site
from dstune.readers.app_edit_tree import Edits, Tree, callee, dotted, expression, statements, text_of, walk


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
    "base-url-v1": base_url_v1,
    "localhost-ipv4": localhost_ipv4,
    "guard-none-content": guard_none_content,
    "cache-resource": cache_resource,
}
