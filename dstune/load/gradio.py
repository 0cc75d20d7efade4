"""Gradio 4, 5 and 6 by one of three ways (`paths`): the queue, as a browser does (join, then the event stream of the session), the call
API (4.20 and later), which enters the same queue, and a direct POST to the function's route, which bypasses the queue where `api_open` lets it.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from dstune.errors import DstuneError, UnobservableError
from dstune.expr import Version
from dstune.lang import say
from dstune.load.answers import Pieces, Reply, events, refused, unpacked
from dstune.load.client import Answer, Ask, Pool
from dstune.load.detect import Server, fetch
from dstune.load.paths import FIRST_VALUE
from dstune.load.workload import prompts
from dstune.model import parse_json

_TEXT = frozenset(("textbox", "multimodaltextbox", "text", "textarea"))
_SILENT = ("clear", "undo", "retry", "stop", "delete", "like", "example", "save", "edit")

CALLS_SINCE = Version("4.20")
"""The first Gradio with `POST call/NAME`."""


@dataclass(frozen=True, slots=True)
class Function:
    """The function of an app that is called: its number, route prefix, name, and the data that its inputs take (None: the prompt)."""

    number: int
    prefix: str
    name: str
    inputs: tuple[Any, ...]
    prompt_at: int
    generator: bool
    multimodal: bool = False


def find(config: dict[str, Any], wanted: str = "", named: bool = False) -> Function:
    """The function that answers a message: the one named `wanted`, else the first that takes a text and is a generator, else that takes a text.
    `named`: only one that has a name to be called by.

    Raises `DstuneError` naming the functions there are.
    """
    kinds = {c["id"]: c for c in config.get("components", ())}
    found: list[tuple[int, Function]] = []
    for place, d in enumerate(config.get("dependencies", ())):
        name = str(d.get("api_name") or "")
        if d.get("backend_fn") is False or (name == "False" and not d.get("queue", True)) or (named and name in ("", "False")):
            continue
        components = [kinds.get(i, {}) for i in d.get("inputs", ())]
        at = next((i for i, c in enumerate(components) if c.get("type") in _TEXT), -1)
        if wanted:
            if name.strip("/") != wanted.strip("/"):
                continue
        elif at < 0 or any(w in name.lower() for w in _SILENT) or not d.get("outputs"):
            continue
        generator = bool((d.get("types") or {}).get("generator"))
        made = Function(
            d.get("id", place), str(config.get("api_prefix") or ""), name, tuple(_default(c) for c in components), max(at, 0), generator,
            bool(components) and components[max(at, 0)].get("type") == "multimodaltextbox",
        )  # fmt: skip
        chats = "chat" in name.lower() or "predict" in name.lower() or "submit" in name.lower()
        found.append((-2 * generator - chats - 3 * bool(d.get("queue") in (None, True)), made))
    if not found:
        told = dict.fromkeys(str(d["api_name"]) for d in config.get("dependencies", ()) if d.get("api_name"))
        names = ", ".join(n for n in told if not n.startswith(("lambda", "unnamed", "_"))) or ", ".join(told) or "-"
        raise DstuneError(
            say(f"this Gradio app has no function {wanted!r}", f"这个 Gradio 应用没有函数 {wanted!r}")
            if wanted
            else say(
                "this Gradio app has no function with an API name that takes a text",
                "这个 Gradio 应用没有带 API 名称且接收文本的函数",
            )
            if named
            else say("this Gradio app has no function that takes a text", "这个 Gradio 应用没有接收文本的函数"),
            names,
            "--api-name NAME",
        )
    return min(found, key=lambda f: f[0])[1]


def _default(component: dict[str, Any]) -> Any:
    props = component.get("props") or {}
    if component.get("type") in ("state", "chatbot"):
        return [] if component.get("type") == "chatbot" else None
    return props.get("value")


def asker(
    server: Server, profile: str, pool: Pool, warm: bool = False, wanted: str = "", lane: tuple[int, int] = (0, 1), path: str = "queue"
) -> Ask:  # fmt: skip
    """Sends one message by a path of `PATHS`; where it takes two steps both stand in one answer, timed from the first. `lane`: see `Options`."""
    if path == "call" and (version := Version(server.version)).parts and version < CALLS_SINCE:
        raise DstuneError(
            say(f"Gradio {server.version} has no call API", f"Gradio {server.version} 没有 call API"),
            say(f"it came with {CALLS_SINCE}", f"{CALLS_SINCE} 才加入"),
            f"dstune bench --gradio {server.base}",
        )
    status, _, body = fetch(f"{server.base}/config", dict(pool.target.headers), verify_tls=pool.target.verify_tls)
    try:
        function = find(parse_json(body), wanted, path == "call")
    except (ValueError, AttributeError, KeyError, TypeError):
        raise UnobservableError(
            say(f"{server.base}/config is no Gradio configuration", f"{server.base}/config 不是 Gradio 配置"), f"HTTP {status}"
        ) from None
    texts = prompts(profile)
    route = urlsplit(server.base).path.rstrip("/") + function.prefix  # an app mounted under a path of another one
    name = quote(function.name.strip("/"), safe="")

    async def post(where: str, body: dict[str, Any], answer: Answer) -> bool:
        await pool.send(pool.target.request(json.dumps(body).encode(), route + where), answer)
        return not answer.error and answer.status == 200

    async def listen(where: str, first: Answer, answer: Answer) -> None:
        await pool.send(pool.target.request(b"", route + where, "GET"), answer)
        answer.sent = first.sent

    async def queue(data: list[Any], first: Answer, answer: Answer) -> bool:
        session = secrets.token_hex(6)
        join = {"data": data, "fn_index": function.number, "session_hash": session, "event_data": None, "trigger_id": None}
        if joined := await post("/queue/join", join, first):
            await listen(f"/queue/data?session_hash={session}", first, answer)
        return joined

    async def call(data: list[Any], first: Answer, answer: Answer) -> bool:
        if not await post(f"/call/{name}", {"data": data}, first) or not (event := _event_id(first)):
            return False
        await listen(f"/call/{name}/{event}", first, answer)
        return True

    async def direct(data: list[Any], first: Answer, answer: Answer) -> bool:
        unnamed = function.name in ("", "False")
        await post(
            "/run/predict" if unnamed else f"/run/{name}",
            {"data": data} | ({"fn_index": function.number} if unnamed else {}),
            first,
        )
        return False

    way = {"queue": queue, "call": call, "direct": direct}[path]

    async def ask(answer: Answer) -> None:
        number = lane[0] + lane[1] * answer.number
        prompt = texts[number % len(texts)]
        if not warm:
            prompt = f"[{number + 1}] {prompt}"
        data = list(function.inputs)
        data[function.prompt_at] = {"text": prompt, "files": []} if function.multimodal else prompt
        first = Answer(answer.number, answer.due)
        if not await way(data, first, answer):
            for field in ("sent", "ended", "status", "headers", "pieces", "error", "detail"):
                setattr(answer, field, getattr(first, field))

    return ask


def _event_id(answer: Answer) -> str:
    """The id that a call was given; "" where the answer is no such thing."""
    try:
        found = parse_json(b"".join(p for _, p in unpacked(answer)))["event_id"]
    except (ValueError, KeyError, TypeError):
        return ""
    return quote(found, safe="") if isinstance(found, str) else ""


def reader(path: str) -> Callable[[Answer], Reply]:
    """What makes a reply of an answer that came by this path."""
    return {"queue": read, "call": read_call, "direct": read_direct}[path]


def read(answer: Answer) -> Reply:
    """The reply of one event stream of a session. Tokens are events with new text: Gradio counts none."""
    return _read(answer, _told, queued=True)


def read_call(answer: Answer) -> Reply:
    """The reply of one event stream of the call API. Tokens are counted as those of the queue."""
    return _read(answer, _called, queued=True)


def read_direct(answer: Answer) -> Reply:
    """The reply of one direct call, which comes in one piece."""
    return _read(answer, _whole, queued=False)


def _read(answer: Answer, understand: Callable[[Pieces, Reply], None], queued: bool) -> Reply:
    reply = Reply(answer.due, answer.sent, answer.ended, error=answer.error, detail=answer.detail, lag=answer.lag)
    pieces = unpacked(answer)
    if refused(answer, reply, pieces):
        reply.error = "queue-full" if queued and answer.status == 503 else reply.error
        return reply
    try:
        understand(pieces, reply)
    except (TypeError, AttributeError, KeyError, IndexError, ValueError):  # of another shape than Gradio's
        reply.error = reply.error or "no-json"
    return reply


def _called(pieces: Pieces, reply: Reply) -> None:
    """Events of the call API: `generating` and `complete` carry all outputs, `heartbeat` nothing. `error` carries words, or nothing: what
    a function raised is in it since Gradio 6.13."""
    stamps: list[float] = []
    outputs: list[Any] = []
    ended = False
    for stamp, name, raw in events(pieces):
        if name not in (b"generating", b"complete", b"error"):
            continue
        value = parse_json(raw)
        if name == b"error":
            words = value.get("error") or value.get("title") if isinstance(value, dict) else value
            reply.error, reply.detail, reply.ended, ended = "server-error", str(words or ""), stamp, True
            break
        if not isinstance(value, list):
            raise TypeError
        if text_of(value) != text_of(outputs):
            stamps.append(stamp)
        outputs = value
        if name == b"complete":
            reply.ended, reply.finish, ended = stamp, "stop", True
            break
    if not ended and not reply.error:
        reply.error = "truncated" if outputs else "no-json"
    _settled(outputs, stamps, reply)


def _whole(pieces: Pieces, reply: Reply) -> None:
    """The one body of a direct call. Where the function yields it says `is_generating` and holds the first value."""
    if reply.error:
        return
    body = parse_json(b"".join(p for _, p in pieces))
    outputs = body["data"]
    if not isinstance(outputs, list):
        raise TypeError
    reply.finish = FIRST_VALUE if body.get("is_generating") else "stop"
    _settled(outputs, [reply.ended], reply)


def _told(pieces: Pieces, reply: Reply) -> None:
    stamps: list[float] = []
    outputs: list[Any] = []
    for stamp, _, raw in events(pieces):
        try:
            event = parse_json(raw)
        except ValueError:
            continue
        message = event.get("msg")
        output = event.get("output") or {}
        if message == "process_starts":
            reply.timings = {"queue_ms": 1e3 * (stamp - reply.due)}
        elif message == "estimation" and reply.timings is None and event.get("rank"):
            reply.timings = {"rank": event["rank"]}
        elif message == "process_generating":
            before = text_of(outputs)
            outputs = _applied(outputs, output.get("data") or [])
            if text_of(outputs) != before:
                stamps.append(stamp)
        elif message == "process_completed":
            if not event.get("success", True):
                reply.error, reply.detail = "server-error", str(output.get("error") or event.get("title") or "")
            outputs = output.get("data") or outputs
            if not stamps:
                stamps.append(stamp)
            reply.ended, reply.finish = stamp, "stop"
            break
        elif message == "unexpected_error":
            reply.error, reply.detail = "server-error", str(event.get("message") or "")
    _settled(outputs, stamps, reply)


def _settled(outputs: list[Any], stamps: list[float], reply: Reply) -> None:
    """Puts what was shown at last, and when there was new text, into the reply."""
    reply.text, reply.stamps = text_of(outputs), tuple(stamps)
    if reply.finish and reply.error == "truncated":
        reply.error = ""
    if stamps:
        reply.ttft, reply.output_tokens, reply.counted = stamps[0] - reply.due, len(stamps), "events"
    if not reply.error and not reply.text.strip():
        reply.error, reply.detail = "empty", say("no text in what the page shows", "页面返回的内容中没有文本")


def text_of(outputs: list[Any]) -> str:
    """The text that a user sees: a string output, else the last message of a chat history (pairs or messages)."""
    for value in outputs:
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value:
            last = value[-1]
            content = last.get("content") if isinstance(last, dict) else last[-1] if isinstance(last, list) and last else last
            if isinstance(content, list):
                content = "".join(str(c.get("text", "")) if isinstance(c, dict) else str(c) for c in content)
            if isinstance(content, str) and content:
                return content
    return ""


def _applied(old: list[Any], new: list[Any]) -> list[Any]:
    """Outputs after one generating event: whole values first, then (protocol sse_v2 and later) lists of edits."""
    if not old:
        return new
    return [
        _edited(o, n) if isinstance(n, list) and all(_is_edit(e) for e in n) else n for o, n in itertools.zip_longest(old, new)
    ]


def _is_edit(edit: Any) -> bool:
    return (
        isinstance(edit, list)
        and len(edit) == 3
        and edit[0] in ("append", "add", "replace", "delete")
        and isinstance(edit[1], list)
    )


def _edited(value: Any, edits: list[Any]) -> Any:
    """The value after edits `[action, path, new]` as Gradio's client applies them."""
    for action, path, new in edits:
        if not path:
            value = (value or "") + new if action == "append" else new
            continue
        box = value
        for key in path[:-1]:
            box = box[key]
        key = path[-1]
        if action == "append":
            box[key] = box[key] + new
        elif action == "delete":
            del box[key]
        elif action == "add" and isinstance(box, list):
            box.insert(key, new)
        else:
            box[key] = new
    return value
