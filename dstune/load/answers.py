"""Bytes of an answer → what was said and when: OpenAI chat and completions, streamed and whole."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dstune.load.client import Answer
from dstune.model import parse_json


@dataclass(slots=True)
class Reply:
    """One answer, read. Times in seconds; `ttft` from the moment it was due to the first chunk with text (reasoning counts as
    text, the role chunk does not). `stamps` are the arrivals of chunks with text. `error` is a kind of `Answer.error`, or
    `http-<status>`, `server-error`, `empty`, `no-json`.
    """

    due: float
    sent: float
    ended: float
    ttft: float | None = None
    stamps: Sequence[float] = ()
    text: str = ""
    reasoning: str = ""
    finish: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    counted: str = ""
    error: str = ""
    detail: str = ""
    none_chunks: int = 0
    bursts: int = 0
    timings: dict[str, Any] | None = None
    served: str = ""

    @property
    def ok(self) -> bool:
        """Whether it was answered."""
        return not self.error


def read(answer: Answer) -> Reply:
    """The reply of one OpenAI answer."""
    reply = Reply(answer.due, answer.sent, answer.ended, error=answer.error, detail=answer.detail)
    if answer.status >= 400:
        reply.error, reply.detail = f"http-{answer.status}", server_words(b"".join(p for _, p in answer.pieces))
        return reply
    streamed = answer.headers.get("content-type", "").startswith("text/event-stream")
    try:
        if streamed:
            _streamed(answer, reply)
        elif not reply.error:
            _whole(answer, reply)
    except (TypeError, AttributeError, KeyError, ValueError) as error:  # JSON of another shape than OpenAI's
        reply.error, reply.detail = reply.error or "no-json", str(error)
    if not reply.error and not reply.stamps and not reply.output_tokens:
        reply.error = "empty"
    return reply


def events(pieces: list[tuple[float, bytes]]) -> Iterator[tuple[float, bytes, bytes]]:
    """(arrival of its last byte, event name, data) of each server-sent event; an unfinished last one is left out."""
    rest = b""
    for stamp, piece in pieces:
        if not rest and piece.startswith(b"data: {") and piece.endswith(b"}\n\n") and piece.count(b"\n") == 2:
            yield stamp, b"", piece[6:-2]  # one whole event in one piece: what nearly every server sends
            continue
        rest += piece
        if b"\r" in rest:
            rest = rest.replace(b"\r\n", b"\n")
        while (end := rest.find(b"\n\n")) >= 0:
            block, rest = rest[:end], rest[end + 2 :]
            name, data = b"", []
            for line in block.split(b"\n"):
                if line.startswith(b"data:"):
                    data.append(line[5:].removeprefix(b" "))
                elif line.startswith(b"event:"):
                    name = line[6:].strip()
            if data:
                yield stamp, name, b"\n".join(data)


def _streamed(answer: Answer, reply: Reply) -> None:
    """Events of one stream. Most differ from the one before in nothing but their text: once an event was parsed whole, those with the
    same bytes around the text are read without JSON (a quarter of the processor time per chunk)."""
    stamps: list[float] = []
    said: list[str] = []
    thought: list[str] = []
    last = -1.0
    before, behind = b"", b""
    at, tail = 0, 0
    for stamp, _, data in events(answer.pieces):
        if at and data.startswith(before) and data.endswith(behind):
            text = data[at : len(data) - tail]
            if text and b'"' not in text and b"\\" not in text:
                said.append(text.decode("utf-8", "replace"))
                if stamp == last:
                    reply.bursts += 1
                stamps.append(stamp)
                last = stamp
                continue
        if data == b"[DONE]":
            continue
        try:
            event = parse_json(data)
        except ValueError:
            reply.error, reply.detail = reply.error or "no-json", data[:200].decode("utf-8", "replace")
            continue
        if "error" in event and not event.get("choices"):
            reply.error, reply.detail = "server-error", _words(event)
            continue
        _usage(event, reply)
        for choice in event.get("choices") or ():
            delta = choice.get("delta")
            if delta is None:
                content, reasoning = choice.get("text"), None
            else:
                content, reasoning = delta.get("content"), delta.get("reasoning") or delta.get("reasoning_content")
                if "content" in delta and content is None and not reasoning and "role" not in delta:
                    reply.none_chunks += 1
            if content:
                said.append(content)
            if reasoning:
                thought.append(reasoning)
            if content or reasoning:
                if stamp == last:
                    reply.bursts += 1
                stamps.append(stamp)
                last = stamp
            if choice.get("finish_reason"):
                reply.finish = choice["finish_reason"]
            if (
                content
                and not reasoning
                and not choice.get("finish_reason")
                and not event.get("usage")
                and "timings" not in event
            ):
                before, behind = _around(data, content, "text" if delta is None else "content")
                at, tail = len(before), len(behind)
        if "timings" in event:
            reply.timings = event["timings"]
    reply.stamps, reply.text, reply.reasoning = array("d", stamps), "".join(said), "".join(thought)
    if stamps:
        reply.ttft = stamps[0] - reply.due
        if reply.output_tokens is None:
            reply.output_tokens, reply.counted = len(stamps), "chunks"


def _around(data: bytes, text: str, key: str) -> tuple[bytes, bytes]:
    """The bytes before and behind the text of an event that was parsed, where they are plain to see: one choice, the text once, after
    its key, without escapes. ("", "") otherwise."""
    raw = text.encode()
    for mark in (f'"{key}":"', f'"{key}": "'):
        head, found, rest = data.partition(mark.encode())
        if (
            found
            and rest.startswith(raw + b'"')
            and mark.encode() not in rest
            and b'"index":1' not in data
            and b'"index": 1' not in data
        ):
            return head + found, rest[len(raw) :]
    return b"", b""


def _whole(answer: Answer, reply: Reply) -> None:
    body = b"".join(p for _, p in answer.pieces)
    try:
        event = parse_json(body)
    except ValueError:
        reply.error, reply.detail = "no-json", body[:200].decode("utf-8", "replace")
        return
    if not isinstance(event, dict) or ("error" in event and not event.get("choices")):
        reply.error, reply.detail = "server-error", _words(event)
        return
    _usage(event, reply)
    for choice in event.get("choices") or ():
        message = choice.get("message") or {}
        reply.text += message.get("content") or choice.get("text") or ""
        reply.reasoning += message.get("reasoning") or message.get("reasoning_content") or ""
        reply.finish = choice.get("finish_reason") or reply.finish
    if reply.text or reply.reasoning:
        reply.stamps = (reply.ended,)
        reply.ttft = reply.ended - reply.due
    reply.timings = event.get("timings")


def _usage(event: dict[str, Any], reply: Reply) -> None:
    reply.served = reply.served or str(event.get("model") or "")
    usage = event.get("usage")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        reply.prompt_tokens, reply.output_tokens, reply.counted = (
            usage.get("prompt_tokens"),
            usage["completion_tokens"],
            "usage",
        )
        reply.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def server_words(body: bytes) -> str:
    """What a server said about an error, in its own words, at most 300 characters."""
    try:
        return _words(parse_json(body))
    except ValueError:
        return body[:300].decode("utf-8", "replace").strip()


def _words(event: Any) -> str:
    if isinstance(event, dict):
        for key in ("error", "message", "detail", "msg"):
            if event.get(key):
                return _words(event[key])
    if isinstance(event, list) and event:
        return _words(event[0])
    return str(event)[:300]
