"""What is notable in how a program answers its users: Gradio events, async handlers, streaming."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from dstune.expr import Version
from dstune.model import Fact
from dstune.readers.app_client import is_delta_content
from dstune.readers.app_index import MISSING
from dstune.readers.app_load import guarded
from dstune.readers.app_seen import Handler, Seen

_BLOCKING = frozenset(
    (
        "time.sleep",
        "requests.get",
        "requests.post",
        "requests.request",
        "urllib.request.urlopen",
        "httpx.get",
        "httpx.post",
        "ollama.chat",
        "ollama.generate",
        "subprocess.run",
        "subprocess.check_output",
    )
)
_SLOW_OWNER = re.compile(r"(?:chain|llm|model|pipe(?:line)?|agent|whisper|query_engine|retriever|rag|qa)\d*$", re.I)
_SLOW_METHOD = frozenset(("invoke", "predict", "complete", "create_chat_completion", "transcribe", "query"))
"""Methods of LangChain, LlamaIndex, llama-cpp-python and Whisper that block; their async twins are called ainvoke, aquery…"""


def smells(seen: Seen) -> Iterator[Fact]:
    """`app.*` facts about serving."""
    yield from _removed(seen)
    yield from _async(seen)
    yield from _handlers(seen)
    yield from _concurrency(seen)
    yield from _page(seen)
    yield from _states(seen)
    yield from _built_each_time(seen)


_BUILT = frozenset(("Llama", "LlamaCpp", "LlamaCPP", "LLM", "GPT4All", "SentenceTransformer", "CrossEncoder", "WhisperModel"))
"""Classes of other libraries that read a model's files when they are made."""


def _built_each_time(seen: Seen) -> Iterator[Fact]:
    """Engines made inside what answers a request, or in a function that it calls."""
    if "streamlit" in seen.frameworks:
        return
    for handler in seen.handlers:
        reach = seen.reach(handler.function)
        for call in seen.index.calls():
            if call.via or call.name.rsplit(".", 1)[-1] not in _BUILT:
                continue
            home = next((f for f in reach if seen.within(call.node, f)), None)
            if home is not None and not guarded(seen, call.node, home, reach):
                yield seen.smell("model_loaded_in_handler", call.node)


@cache
def _table() -> list[dict[str, Any]]:
    from dstune.catalog import load

    return list(load("engines")["gradio"]["engine"]["removed"])


def _removed(seen: Seen) -> Iterator[Fact]:
    """Arguments that Gradio does not take (any more), earliest removal first."""
    if "gradio" not in seen.frameworks and not seen.snippet:
        return
    found: list[tuple[Version, dict[str, Any], ast.expr, str]] = []
    for call in seen.index.calls():
        if call.via:
            continue
        last = call.name.rsplit(".", 1)[-1]
        if last == "style" or (isinstance(call.func, ast.Attribute) and call.func.attr == "style"):
            made = call.func.value if isinstance(call.func, ast.Attribute) else None
            if isinstance(made, ast.Call) and seen.index.dotted(made.func).startswith(("gradio.", "gr.")):
                found.append((Version("4.0"), {"keyword": "", "until": "4.0"}, call.node, "style"))
        method = isinstance(call.func, ast.Attribute) and call.func.attr in ("queue", "launch")
        if not method and not call.name.startswith(("gradio.", "gr.")):
            continue
        for row in _table():
            if last in row["call"] and any(k.arg == row["keyword"] for k in call.node.keywords):
                found.append((Version(row["until"]), row, call.keywords.get(row["keyword"], call.node), last))
    for _, row, node, last in sorted(found, key=lambda r: r[0].parts):
        yield seen.smell("gradio_removed_argument", node, f"{last}({row['keyword']}=…)" if row["keyword"] else f".{last}(…)")
        yield seen.smell("gradio_removed_in", node, row["until"])


def _server_side(seen: Seen) -> list[ast.AST]:
    found: list[ast.AST] = []
    for handler in seen.handlers:
        found += [f for f in seen.reach(handler.function) if f not in found]
    return found


def _async(seen: Seen) -> Iterator[Fact]:
    """Blocking work in async functions that answer requests: the event loop stands still, and all users with it."""
    generating = {g.call.node for g in seen.generations if not g.call.via}
    for function in _server_side(seen):
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        for node in seen.index.own(function):
            if isinstance(node, ast.Call):
                if isinstance(seen.index.parent.get(node), ast.Await) or any(
                    isinstance(a, ast.Lambda) for a in seen.index.chain(node)
                ):
                    continue
                if _blocks(seen, node, generating):
                    yield seen.smell("blocking_in_async", node)
            elif isinstance(node, ast.For) and (
                (seen.index.kind(node.iter) in ("streamer", "stream") and not _never_waits(seen))
                or _slow_generator(seen, node.iter)
            ):
                yield seen.smell("blocking_in_async", node)


def _never_waits(seen: Seen) -> bool:
    """Whether the streamer raises at once where no token is there (`timeout=0`), and the loop comes back later."""
    return any(
        c.name.rsplit(".", 1)[-1] == "TextIteratorStreamer" and seen.value(c.keywords, "timeout") == 0
        for c in seen.index.calls()
    )


def _blocks(seen: Seen, node: ast.Call, generating: set[ast.Call]) -> bool:
    if node in generating:
        return True
    name = seen.index.dotted(node.func)
    if name == "time.sleep":
        pause = seen.index.const(node.args[0]) if node.args else MISSING
        return not isinstance(pause, int | float) or pause >= 0.05
    if name in _BLOCKING:
        return True
    if isinstance(node.func, ast.Attribute) and node.func.attr == "create" and "completions." in name:
        owner: ast.expr = node.func
        while isinstance(owner, ast.Attribute) and owner.attr in ("create", "completions", "chat"):
            owner = owner.value
        return seen.index.kind(owner) == "client" and _built_as(seen, owner, "OpenAI")
    if (
        isinstance(node.func, ast.Attribute)
        and node.func.attr in ("generate", "chat")
        and _built_as(seen, node.func.value, "LLM")
    ):
        return True
    if (
        isinstance(node.func, ast.Attribute)
        and node.func.attr in _SLOW_METHOD
        and _SLOW_OWNER.search(seen.index.dotted(node.func.value) or "")
        and not any(isinstance(a, ast.Await) for a in seen.index.chain(node))
    ):
        return True
    function = seen.function_of(node.func)
    if isinstance(function, ast.FunctionDef) and not seen.yields(function):
        return any(
            seen.within(g, f)
            for g in generating
            for f in seen.reach(function, 2)
            if isinstance(f, ast.FunctionDef) and not _threaded(seen, f)
        )
    return False


def _threaded(seen: Seen, function: ast.AST) -> bool:
    return any(c.via and seen.function_of(c.func) is function for c in seen.index.calls())


def _built_as(seen: Seen, node: ast.expr, name: str) -> bool:
    """Whether a client is known to be of this class (a parameter called `client` may be the async one)."""
    rows = (
        seen.index.find(node.id, node)
        if isinstance(node, ast.Name)
        else seen.index.assigned.get((None, f".{node.attr}"), [])
        if isinstance(node, ast.Attribute)
        else []
    )
    return any(isinstance(r.value, ast.Call) and seen.index.dotted(r.value.func).rsplit(".", 1)[-1] == name for r in rows)


def _slow_generator(seen: Seen, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = seen.function_of(node.func)
    return (
        isinstance(function, ast.FunctionDef)
        and bool(seen.yields(function))
        and any(seen.index.kind(n.iter) in ("streamer", "stream") for n in seen.index.own(function) if isinstance(n, ast.For))
    )


def _handlers(seen: Seen) -> Iterator[Fact]:
    generating = {g.call.node for g in seen.generations}
    for handler in seen.handlers:
        function = handler.function
        if handler.kind == "http" and _answers_whole(seen, handler):
            yield seen.smell("endpoint_returns_whole", function)
        if handler.kind not in ("gradio", "chat"):
            continue
        reach = seen.reach(function)
        answers = any(seen.within(n, f) for n in generating for f in reach) or any(
            seen.within(c.node, f) for c in seen.completions for f in reach
        )
        if isinstance(handler.event, ast.Call) and seen.value(handler.keywords, "live") is True and answers:
            yield seen.smell("interface_live", handler.keywords["live"])
        if isinstance(function, ast.Lambda):
            continue
        yields = seen.yields(function)
        if yields:
            yield from _fragments(seen, function, yields)
        elif any(seen.within(n, f) for n in generating for f in reach) and not _streams(seen, handler):
            yield seen.smell("handler_returns_whole", function)
        if seen.component(seen.output(handler)) == "Chatbot" and handler.kind == "gradio":
            yield from _chatbot(seen, function)


def _answers_whole(seen: Seen, handler: Handler) -> bool:
    """Whether a web route for chats generates by itself and answers when all is there, in a program that streams nowhere."""
    names = [seen.index.dotted(n.func).rsplit(".", 1)[-1] for n in seen.index.nodes if isinstance(n, ast.Call)]
    if {"StreamingResponse", "EventSourceResponse", "stream_with_context"} & set(names) or isinstance(
        handler.function, ast.Lambda
    ):
        return False
    paths = [c.value for c in ast.walk(handler.event) if isinstance(c, ast.Constant) and isinstance(c.value, str)]
    if not any(re.search(r"(?i)chat|ask|answer|generat|complet|predict|qa$", p) for p in [handler.function.name, *paths]):
        return False
    return any(
        g.how == "generate" and not g.call.via and "streamer" not in g.keywords and seen.within(g.call.node, handler.function)
        for g in seen.generations
    )


def _streams(seen: Seen, handler: Handler) -> bool:
    """Whether another handler of the program streams (then this one is the plain variant)."""
    return any(not isinstance(h.function, ast.Lambda) and seen.yields(h.function) for h in seen.handlers if h is not handler)


def _fragments(seen: Seen, function: ast.AST, yields: list[ast.Yield | ast.YieldFrom]) -> Iterator[Fact]:
    for node in yields:
        if isinstance(node, ast.YieldFrom):
            if seen.index.kind(node.value) in ("fragments", "streamer"):
                yield seen.smell("yields_fragments", node)
        elif node.value is not None and is_fragment(seen, node.value):
            yield seen.smell("yields_fragments", node)
    for inner in seen.index.own(function):
        match inner:
            case ast.Assign(targets=[ast.Subscript(value=ast.Subscript())], value=value) if (
                is_fragment(seen, value) and seen.index.inside(inner, ast.For, ast.AsyncFor) is not None
            ):
                yield seen.smell("yields_fragments", inner)


def is_fragment(seen: Seen, node: ast.expr, depth: int = 4) -> bool:
    """Whether an expression is one piece of a stream, not the text so far."""
    if depth < 0:
        return False
    match node:
        case ast.Attribute() if is_delta_content(seen, node):
            return True
        case ast.BoolOp(op=ast.Or(), values=[first, *_]):
            return is_fragment(seen, first, depth - 1)
        case ast.Call(func=ast.Attribute(value=value, attr="strip" | "replace")):
            return is_fragment(seen, value, depth - 1)
        case ast.Dict(keys=keys, values=values):
            return any(
                isinstance(k, ast.Constant) and k.value == "content" and is_fragment(seen, v, depth - 1)
                for k, v in zip(keys, values, strict=True)
            )
        case ast.Name(id=name):
            scope = seen.index.scope(node)
            rows = seen.index.assigned.get((scope, name), [])
            if not rows or any(
                r.how == "aug" or any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(r.value))
                for r in rows
                if r.how != "iter"
            ):
                return False
            if any(r.how == "iter" and seen.index.kind(r.value) in ("streamer", "asyncstreamer", "fragments") for r in rows):
                return True
            return all(
                not r.how and is_fragment(seen, r.value, depth - 1) for r in rows if not isinstance(r.value, ast.Constant)
            ) and any(not isinstance(r.value, ast.Constant) for r in rows)
    return False


def _chatbot(seen: Seen, function: ast.AST) -> Iterator[Fact]:
    """A Chatbot wants the conversation, not a text."""
    for node in seen.index.own(function):
        if (
            isinstance(node, ast.Return | ast.Yield)
            and node.value is not None
            and (
                seen.index.kind(node.value) in ("text", "string")
                or ast.unparse(node.value).endswith(".choices[0].message.content")
            )
        ):
            yield seen.smell("chatbot_gets_text", node)


def _torn_out(seen: Seen, events: list[Handler]) -> bool:
    """Whether a few lines call a model or a function that is nowhere in them."""
    known = {*seen.index.functions, *seen.index.imports, *dir(builtins), *(name for _, name in seen.index.assigned)}
    for handler in events:
        for node in ast.walk(handler.function):
            if isinstance(node, ast.Call):
                root: ast.AST = node.func
                while isinstance(root, ast.Attribute):
                    root = root.value
                if (
                    isinstance(root, ast.Name)
                    and root.id not in known
                    and re.search(
                        r"(?i)llm|model|chain|agent|rag|client|generat|chat|infer|predict|answer|ask", ast.unparse(node.func)
                    )
                ):
                    return not seen.index.is_parameter(root.id, node)
    return False


def _concurrency(seen: Seen) -> Iterator[Fact]:
    """Gradio events that answer, without any limit set: one call at a time."""
    events = [h for h in seen.handlers if h.kind in ("gradio", "chat")]
    if not events and not (seen.snippet and any(isinstance(n, ast.Attribute) and n.attr == "launch" for n in seen.index.nodes)):
        return
    words = {k.arg for n in seen.index.nodes if isinstance(n, ast.Call) for k in n.keywords}
    if {"concurrency_limit", "default_concurrency_limit", "concurrency_count"} & words:
        return
    remote = [h for h in events if any(seen.within(c.node, f) for c in seen.completions for f in seen.reach(h.function))]
    local = any(seen.within(g.call.node, f) for g in seen.generations for h in events for f in seen.reach(h.function))
    at = (
        remote[0].event
        if remote
        else events[0].event
        if events
        else next(n for n in seen.index.nodes if isinstance(n, ast.Attribute) and n.attr == "launch")
    )
    posts = any(c.name in ("requests.post", "httpx.post") or c.name.endswith((".post", ".stream")) for c in seen.index.calls())
    local = local or bool(seen.loads) or any(seen.index.kind(c.node) == "llama" for c in seen.index.calls())
    where = "remote" if remote else "local" if local else "remote" if posts else "unknown"
    if where == "unknown" and sum(bool(line.strip()) for line in seen.source.lines) <= 15 and _torn_out(seen, events):
        where = "fragment"
    yield seen.smell("gradio_one_at_a_time", at, where)


def _states(seen: Seen) -> Iterator[Fact]:
    """`gr.Interface` with a State on one side alone. Sides that are no list written here are not judged."""
    for call in seen.index.calls():
        if call.via or call.name not in ("gradio.Interface", "gr.Interface"):
            continue
        placed = dict(zip(("fn", "inputs", "outputs"), call.node.args, strict=False))
        sides = [call.keywords.get(name, placed.get(name)) for name in ("inputs", "outputs")]
        held = [s.elts if isinstance(s, ast.List | ast.Tuple) else [s] for s in sides if s is not None]
        if len(held) != 2 or not all(isinstance(e, ast.Call | ast.Constant) for side in held for e in side):
            continue
        counts = [sum(_state(seen, e) for e in side) for side in held]
        if sorted(map(bool, counts)) == [False, True]:
            yield seen.smell("gradio_lone_state", call.node, "inputs" if counts[0] else "outputs")


def _state(seen: Seen, node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == "state"
    return isinstance(node, ast.Call) and seen.index.dotted(node.func) in ("gradio.State", "gr.State")


def _page(seen: Seen) -> Iterator[Fact]:
    """A Streamlit page whose answer is shown when all of it is there: it generates, and nothing in it streams."""
    names = [seen.index.dotted(n.func).rsplit(".", 1)[-1] for n in seen.index.nodes if isinstance(n, ast.Call)]
    if "streamlit" not in seen.frameworks or "write_stream" in names or not {"chat_input", "chat_message"} & set(names):
        return
    if any("streamer" in g.keywords or g.call.via for g in seen.generations):
        return
    texts = any(node.value == "generated_text" for node in seen.constants())
    whole = [
        g
        for g in seen.generations
        if (g.how == "generate" and seen.index.kind(g.base) not in ("seq2seq", "encoder", "llama"))
        or (g.how == "pipe" and texts)
    ]
    if whole:
        yield seen.smell("handler_returns_whole", whole[0].call.node)
