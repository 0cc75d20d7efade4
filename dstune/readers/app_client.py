"""What is notable in a program that talks to an OpenAI-compatible server."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dstune.model import Fact
from dstune.readers.app_seen import Seen

_URL = re.compile(r"^(?P<scheme>https?)://(?P<host>\[[^\]]+\]|[^/:\s]+)(?::(?P<port>\d+))?(?P<path>/[^?\s]*)?$")
ROOT_TOO = ("8080", "4000")
"""Usual ports of servers that take the routes without /v1 too: llama.cpp and the LiteLLM proxy."""
_HOSTED = frozenset(
    (
        "api.openai.com",
        "api.together.xyz",
        "api.x.ai",
        "api.mistral.ai",
        "api.moonshot.cn",
        "api.siliconflow.cn",
        "integrate.api.nvidia.com",
    )
)
"""Services that have the routes under /v1 alone."""
_LOCAL = re.compile(
    r"^(?:localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\d+\.\d+\.\d+\.\d+|\[::1?\]|host\.docker\.internal|[a-z][a-z0-9_-]*)$", re.I
)


def smells(seen: Seen) -> Iterator[Fact]:
    """`app.*` facts about clients."""
    yield from _addresses(seen)
    yield from _streams(seen)
    yield from _timeouts(seen)


def _addresses(seen: Seen) -> Iterator[Fact]:
    for call in seen.clients:
        for word in ("base_url", "api_base", "openai_api_base"):
            value = seen.value(call.keywords, word)
            if isinstance(value, str):
                yield from _address(seen, value, call.keywords[word])
    for node in seen.index.nodes:  # openai 0.x: openai.api_base = "...", or the variable that the package reads
        if isinstance(node, ast.Assign) and any(
            seen.index.dotted(t) in ("openai.api_base", "openai.base_url") or _variable(seen, t) for t in node.targets
        ):
            value = seen.index.const(node.value)
            if isinstance(value, str):
                yield from _address(seen, value, node.value)
    for call in seen.index.calls():
        if call.name in ("litellm.completion", "litellm.acompletion", "litellm.embedding"):
            value = seen.value(call.keywords, "api_base") or seen.value(call.keywords, "base_url")
            if isinstance(value, str) and str(seen.value(call.keywords, "model")).startswith(("openai/", "hosted_vllm/")):
                yield from _address(seen, value, call.node)
        if call.name in ("requests.post", "httpx.post", "httpx.stream", "requests.get") and (
            call.args or "url" in call.keywords
        ):
            value = seen.index.const(call.keywords.get("url") or call.args[-1 if call.name == "httpx.stream" else 0])
            found = _URL.match(value) if isinstance(value, str) else None
            if (
                found
                and re.fullmatch(r"/(?:chat/completions|completions)", found["path"] or "")
                and _LOCAL.match(found["host"])
                and found["port"] not in ("8080", None)
            ):
                yield seen.smell("base_url_without_v1", call.node, _shown(found))


def _variable(seen: Seen, target: ast.AST) -> bool:
    """`os.environ["OPENAI_BASE_URL"]`, which the openai package reads."""
    return (
        isinstance(target, ast.Subscript)
        and seen.index.dotted(target.value) == "os.environ"
        and seen.index.const(target.slice) in ("OPENAI_BASE_URL", "OPENAI_API_BASE")
    )


def _address(seen: Seen, url: str, node: ast.expr) -> Iterator[Fact]:
    found = _URL.match(url.strip())
    if not found:
        return
    local = bool(_LOCAL.match(found["host"]))
    known = local or found["port"] or found["host"] in _HOSTED
    if (found["path"] or "/") == "/" and known and found["port"] not in ROOT_TOO:
        yield seen.smell("base_url_without_v1", node, _shown(found))
    if local and not found["port"] and found["scheme"] == "http" and re.match(r"localhost|127\.|0\.0\.0\.0|\[", found["host"]):
        yield seen.smell("base_url_without_port", node, _shown(found))


def _shown(found: re.Match[str]) -> str:
    return f"{found['scheme']}://{found['host']}" + (f":{found['port']}" if found["port"] else "") + (found["path"] or "")


def is_delta_content(seen: Seen, node: ast.AST) -> bool:
    """`chunk.choices[0].delta.content`, also through a name for the delta."""
    if not (isinstance(node, ast.Attribute) and node.attr in ("content", "text")):
        return False
    owner = node.value
    if isinstance(owner, ast.Attribute):
        return owner.attr == "delta"
    if isinstance(owner, ast.Name) and node.attr == "content":
        rows = seen.index.find(owner.id, owner)
        return bool(rows) and isinstance(rows[0].value, ast.Attribute) and rows[0].value.attr == "delta"
    return False


def _streams(seen: Seen) -> Iterator[Fact]:
    """Pieces of a stream used as if each carried text, or choices of a stream that ends with a usage chunk."""
    for node in seen.index.nodes:
        if not is_delta_content(seen, node) or getattr(node, "attr", "") != "content":
            continue
        if _tested(seen, node, [ast.unparse(node)]):
            continue
        above = seen.index.parent.get(node)
        if isinstance(above, ast.Assign) and len(above.targets) == 1 and isinstance(above.targets[0], ast.Name):
            name = above.targets[0].id
            scope = seen.index.scope(above)
            body = seen.index.own(scope) if scope else iter(seen.index.nodes)
            uses = [
                n
                for n in body
                if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and n.lineno >= above.lineno
            ]
            if any(_tested(seen, u, [name]) for u in uses):
                continue
            if any(_consumed(seen, u) for u in uses):
                yield seen.smell("delta_content_unguarded", node)
        elif _consumed(seen, node):
            yield seen.smell("delta_content_unguarded", node)
    usage = any(
        isinstance(n, ast.Dict)
        and any(
            seen.index.const(k) == "include_usage" and seen.index.const(v) is True
            for k, v in zip(n.keys, n.values, strict=True)
            if k is not None
        )
        for n in seen.index.nodes
    )
    if usage:
        for node in seen.index.nodes:
            match node:
                case ast.Subscript(value=ast.Attribute(attr="choices")) if (
                    isinstance(up := seen.index.parent.get(node), ast.Attribute) and up.attr == "delta"
                ):
                    if not _has_choices(seen, node):
                        yield seen.smell("usage_chunk_unguarded", node)


def _tested(seen: Seen, node: ast.AST, names: list[str]) -> bool:
    """Whether None is handled: `or ""`, a condition on it around, a `continue` before, an except for the error."""
    below = node
    for above in seen.index.chain(node):
        match above:
            case ast.BoolOp(op=ast.Or(), values=values) if below is not values[-1]:
                return True
            case ast.BoolOp(op=ast.And()) | ast.Compare() | ast.NamedExpr():
                return True
            case ast.UnaryOp(op=ast.Not()):
                return True
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                text = ast.unparse(test)
                if below is test or any(n in text for n in names) or ".content" in text:
                    return True
            case ast.comprehension(ifs=ifs) if ifs:
                return True
            case ast.GeneratorExp(generators=generators) | ast.ListComp(generators=generators) if any(
                g.ifs for g in generators
            ):
                return True
            case ast.Try(handlers=handlers) if any(
                h.type is None or "Error" in ast.unparse(h.type) or "Exception" in ast.unparse(h.type) for h in handlers
            ) and any(isinstance(s, ast.Continue | ast.Pass) for h in handlers for s in h.body):
                return True
            case ast.For(body=body) | ast.AsyncFor(body=body):
                for statement in body:
                    if (
                        isinstance(statement, ast.If)
                        and statement.lineno <= getattr(node, "lineno", 0)
                        and any(isinstance(s, ast.Continue | ast.Break) for s in statement.body)
                    ):
                        text = ast.unparse(statement.test)
                        if any(n in text for n in names) or "content" in text:
                            return True
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        below = above
    return False


def _has_choices(seen: Seen, node: ast.Subscript) -> bool:
    """Whether a chunk without choices is sorted out before `choices[0]`. A test of the content itself comes too late: it fails."""
    whole = re.compile(re.escape(ast.unparse(node.value)) + r"(?![\[\w])|\.usage\b|hasattr")
    below: ast.AST = node
    for above in seen.index.chain(node):
        match above:
            case ast.BoolOp(op=ast.And(), values=values):
                if any(whole.search(ast.unparse(v)) for v in values if v is not below):
                    return True
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if whole.search(ast.unparse(test)):
                    return True
            case ast.comprehension(ifs=ifs) if any(whole.search(ast.unparse(i)) for i in ifs):
                return True
            case ast.GeneratorExp(generators=generators) | ast.ListComp(generators=generators) if any(
                whole.search(ast.unparse(i)) for g in generators for i in g.ifs
            ):
                return True
            case ast.Try(handlers=handlers) if any(isinstance(s, ast.Continue | ast.Pass) for h in handlers for s in h.body):
                return True
            case ast.For(body=body) | ast.AsyncFor(body=body):
                for statement in body:
                    if (
                        isinstance(statement, ast.If)
                        and statement.lineno <= node.lineno
                        and any(isinstance(s, ast.Continue | ast.Break) for s in statement.body)
                        and whole.search(ast.unparse(statement.test))
                    ):
                        return True
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        below = above
    return False


def _consumed(seen: Seen, node: ast.AST) -> bool:
    """Whether a value is used where None breaks or shows: added, joined, formatted, printed, yielded."""
    above = seen.index.parent.get(node)
    match above:
        case ast.AugAssign(value=value) if value is node:
            return True
        case ast.BinOp(op=ast.Add()):
            return True
        case ast.FormattedValue() | ast.Yield():
            return True
        case ast.GeneratorExp(elt=elt) | ast.ListComp(elt=elt) if elt is node:
            joined = seen.index.parent.get(above)
            return isinstance(joined, ast.Call) and isinstance(joined.func, ast.Attribute) and joined.func.attr == "join"
        case ast.Call(func=func, args=args) if node in args:
            name = seen.index.dotted(func)
            if name.endswith(".append"):
                return any(isinstance(n, ast.Attribute) and n.attr == "join" for n in seen.index.nodes)
            return name in ("print", "len", "sys.stdout.write") or name.endswith((".write", ".put", ".encode"))
        case ast.Attribute():
            return True
    return False


def _timeouts(seen: Seen) -> Iterator[Fact]:
    if not seen.client_only:
        return
    for call in seen.index.calls():
        if (
            call.name in ("requests.post", "requests.request")
            and "timeout" not in call.keywords
            and not call.open_
            and not call.via
        ):
            yield seen.smell("request_without_timeout", call.node)
