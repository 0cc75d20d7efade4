"""Gradio 4, 5 and 6 through the queue, as a browser does: join, then the event stream of the session.

A direct POST to a function's route bypasses the queue while `api_open` is true, so it would measure another thing than what users get.
"""

from __future__ import annotations

import itertools
import json
import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dstune.errors import DstuneError, UnobservableError
from dstune.lang import say
from dstune.load.answers import Pieces, Reply, events, refused, unpacked
from dstune.load.client import Answer, Ask, Pool
from dstune.load.detect import Server, fetch
from dstune.load.workload import prompts
from dstune.model import parse_json

_TEXT = frozenset(("textbox", "multimodaltextbox", "text", "textarea"))
_SILENT = ("clear", "undo", "retry", "stop", "delete", "like", "example", "save", "edit")


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


def find(config: dict[str, Any], wanted: str = "") -> Function:
    """The function that answers a message: the one named `wanted`, else the first that takes a text and is a generator, else that takes a text.

    Raises `DstuneError` naming the functions there are.
    """
    kinds = {c["id"]: c for c in config.get("components", ())}
    found: list[tuple[int, Function]] = []
    for place, d in enumerate(config.get("dependencies", ())):
        name = str(d.get("api_name") or "")
        if d.get("backend_fn") is False or (name == "False" and not d.get("queue", True)):
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
    server: Server, profile: str, pool: Pool, warm: bool = False, wanted: str = "", lane: tuple[int, int] = (0, 1)
) -> Ask:
    """Sends one message through the queue; both steps stand in one answer, timed from the join. `lane`: see `Options`."""
    status, _, body = fetch(f"{server.base}/config", dict(pool.target.headers), verify_tls=pool.target.verify_tls)
    try:
        function = find(parse_json(body), wanted)
    except (ValueError, AttributeError, KeyError, TypeError):
        raise UnobservableError(
            say(f"{server.base}/config is no Gradio configuration", f"{server.base}/config 不是 Gradio 配置"), f"HTTP {status}"
        ) from None
    texts = prompts(profile)
    route = urlsplit(server.base).path.rstrip("/") + function.prefix  # an app mounted under a path of another one

    async def ask(answer: Answer) -> None:
        number = lane[0] + lane[1] * answer.number
        prompt = texts[number % len(texts)]
        if not warm:
            prompt = f"[{number + 1}] {prompt}"
        data = list(function.inputs)
        data[function.prompt_at] = {"text": prompt, "files": []} if function.multimodal else prompt
        session = secrets.token_hex(6)
        join = {"data": data, "fn_index": function.number, "session_hash": session, "event_data": None, "trigger_id": None}
        first = Answer(answer.number, answer.due)
        await pool.send(pool.target.request(json.dumps(join).encode(), f"{route}/queue/join"), first)
        if first.error or first.status != 200:
            for name in ("sent", "ended", "status", "headers", "pieces", "error", "detail"):
                setattr(answer, name, getattr(first, name))
            return
        await pool.send(pool.target.request(b"", f"{route}/queue/data?session_hash={session}", "GET"), answer)
        answer.sent = first.sent

    return ask


def read(answer: Answer) -> Reply:
    """The reply of one event stream. Tokens are events with new text: Gradio counts none."""
    reply = Reply(answer.due, answer.sent, answer.ended, error=answer.error, detail=answer.detail, lag=answer.lag)
    pieces = unpacked(answer)
    if refused(answer, reply, pieces):
        reply.error = "queue-full" if answer.status == 503 else reply.error
        return reply
    try:
        _told(pieces, reply)
    except (TypeError, AttributeError, KeyError, IndexError, ValueError):  # events of another shape than Gradio's
        reply.error = reply.error or "no-json"
    return reply


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
