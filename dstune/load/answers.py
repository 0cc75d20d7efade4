"""Bytes of an answer → what was said and when: OpenAI chat and completions, streamed and whole."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dstune.lang import say
from dstune.load.client import MAX_BODY, Answer
from dstune.model import parse_json

Pieces = list[tuple[float, bytes]]
"""(arrival, bytes) of a body."""


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
    lag: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it was answered."""
        return not self.error


def read(answer: Answer) -> Reply:
    """The reply of one OpenAI answer."""
    reply = Reply(answer.due, answer.sent, answer.ended, error=answer.error, detail=answer.detail, lag=answer.lag)
    pieces = unpacked(answer)
    if refused(answer, reply, pieces):
        return reply
    if coding := unreadable(answer):
        reply.error, reply.detail = reply.error or "no-json", f"content-encoding: {coding}"
        return reply
    try:
        if answer.headers.get("content-type", "").lower().startswith("text/event-stream") or _looks_streamed(pieces):
            _streamed(pieces, reply)
        elif not reply.error:
            _whole(pieces, reply)
    except (TypeError, AttributeError, KeyError, ValueError):  # JSON of another shape than OpenAI's
        reply.error, reply.detail = reply.error or "no-json", _excerpt(pieces)
    if not reply.error and not reply.stamps:
        written = reply.output_tokens or 0
        reply.error, reply.detail = (
            "empty",
            say(f"{written} tokens, no text", f"{written} 个 token，没有文本") if written else "",
        )
    return reply


def refused(answer: Answer, reply: Reply, pieces: Pieces) -> bool:
    """Whether the status alone says that this is no answer; the reply then has the server's words."""
    if answer.status >= 400:
        reply.error, reply.detail = f"http-{answer.status}", server_words(b"".join(p for _, p in pieces))
    elif answer.status >= 300:
        reply.error, reply.detail = f"http-{answer.status}", f"location: {answer.headers.get('location', '-')}"[:300]
    return answer.status >= 300


_PACKED = ("gzip", "x-gzip", "deflate")


def unreadable(answer: Answer) -> str:
    """The content encoding of a body that was packed, without being asked to be, in a way that is not read here; else ""."""
    coding = answer.headers.get("content-encoding", "").strip().lower()
    return "" if coding in ("", "identity", *_PACKED) else coding[:40]


def unpacked(answer: Answer) -> Pieces:
    """The pieces of the body, decompressed where a server or proxy compresses without being asked to; up to `MAX_BODY` bytes."""
    coding = answer.headers.get("content-encoding", "").strip().lower()
    if coding not in _PACKED:
        return answer.pieces
    import zlib

    unpack, left, out = zlib.decompressobj(zlib.MAX_WBITS | 32), MAX_BODY, []
    try:
        for stamp, piece in answer.pieces:
            plain = unpack.decompress(piece, left)
            left -= len(plain)
            out.append((stamp, plain))
            if left <= 0:
                break
    except zlib.error:
        return answer.pieces
    return out


def _looks_streamed(pieces: Pieces) -> bool:
    """Whether a body under another content type is a stream of events all the same, as some proxies and home-made servers send."""
    return bool(pieces) and pieces[0][1].startswith((b"data:", b"event:", b": "))


def _excerpt(pieces: Pieces) -> str:
    return b"".join(p for _, p in pieces[:20])[:200].decode("utf-8", "replace")


def events(pieces: Pieces) -> Iterator[tuple[float, bytes, bytes]]:
    """(arrival of its last byte, event name, data) of each server-sent event; an unfinished last one is left out.

    Lines end in LF, CR LF or CR alone, as the standard has it; the LF of a CR LF that was cut in two ends nothing more.
    """
    rest = bytearray()
    cut = False
    looked = 0
    for stamp, piece in pieces:
        if not rest and not cut and piece.startswith(b"data: {") and piece.endswith(b"}\n\n") and piece.count(b"\n") == 2:
            yield stamp, b"", piece[6:-2]  # one whole event in one piece: what nearly every server sends
            continue
        if cut and piece:
            piece = piece.removeprefix(b"\n")
            cut = False
        if b"\r" in piece:
            cut = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        rest += piece
        begin = max(0, looked - 1)  # an event of megabytes in small pieces is searched once, not once a piece
        while (end := rest.find(b"\n\n", begin)) >= 0:
            block = bytes(rest[:end])
            del rest[: end + 2]
            begin = 0
            name, data = b"", []
            for line in block.split(b"\n"):
                if line.startswith(b"data:"):
                    data.append(line[5:].removeprefix(b" "))
                elif line.startswith(b"event:"):
                    name = line[6:].strip()
            if data:
                yield stamp, name, b"\n".join(data)
        looked = len(rest)


def _streamed(pieces: Pieces, reply: Reply) -> None:
    """Events of one stream. Most differ from the one before in nothing but their text: once an event was parsed whole, those with the
    same bytes around the text are read without JSON (a quarter of the processor time per chunk)."""
    stamps: list[float] = []
    said: list[str] = []
    thought: list[str] = []
    last = -1.0
    before, behind = b"", b""
    at, tail = 0, 0
    for stamp, name, data in events(pieces):
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
            event = _parsed(data)
        except ValueError:
            kind = "server-error" if name == b"error" else "no-json"
            reply.error, reply.detail = reply.error or kind, data[:200].decode("utf-8", "replace")
            continue
        if not isinstance(event, dict):
            raise TypeError
        if (event.get("error") or name == b"error") and not event.get("choices"):
            reply.error, reply.detail = "server-error", _words(event)
            continue
        _usage(event, reply)
        for choice in event.get("choices") or ():
            delta = choice.get("delta")
            if delta is None:
                content, reasoning = _said(choice.get("text")), ""
            else:
                content, reasoning = (
                    _said(delta.get("content")),
                    _said(delta.get("reasoning") or delta.get("reasoning_content")),
                )
                if "content" in delta and delta["content"] is None and not reasoning and "role" not in delta:
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
                reply.finish = str(choice["finish_reason"])
            if (
                content
                and not reasoning
                and not choice.get("finish_reason")
                and not event.get("usage")
                and "timings" not in event
            ):
                before, behind = _around(data, content, "text" if delta is None else "content")
                at, tail = len(before), len(behind)
        if isinstance(event.get("timings"), dict):
            reply.timings = event["timings"]
    reply.stamps, reply.text, reply.reasoning = array("d", stamps), "".join(said), "".join(thought)
    if stamps:
        reply.ttft = stamps[0] - reply.due
        if reply.output_tokens is None:
            reply.output_tokens, reply.counted = len(stamps), "chunks"


def _parsed(data: bytes) -> Any:
    """JSON. Bytes that are no UTF-8 become U+FFFD: half a character is a finding about the text, and no reason to lose the answer."""
    try:
        return parse_json(data)
    except UnicodeDecodeError:
        return parse_json(data.decode("utf-8", "replace"))


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


def _said(content: Any) -> str:
    """The text of a `content`: a string, nothing, or a list of parts with `text`. Raises `TypeError` for another shape.

    Halves of a surrogate pair, which no terminal or file takes, become U+FFFD.
    """
    if isinstance(content, list):
        return "".join(_said(part.get("text")) for part in content)
    if content is not None and not isinstance(content, str):
        raise TypeError
    if not content or content.isascii():
        return content or ""
    return content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _whole(pieces: Pieces, reply: Reply) -> None:
    body = b"".join(p for _, p in pieces)
    if not body.strip():
        reply.error = "empty"
        return
    try:
        event = _parsed(body)
    except ValueError:
        reply.error, reply.detail = "no-json", body[:200].decode("utf-8", "replace")
        return
    if not isinstance(event, dict) or (event.get("error") and not event.get("choices")):
        reply.error, reply.detail = "server-error", _words(event)
        return
    _usage(event, reply)
    for choice in event.get("choices") or ():
        message = choice.get("message") or {}
        reply.text += _said(message.get("content") or choice.get("text"))
        reply.reasoning += _said(message.get("reasoning") or message.get("reasoning_content"))
        reply.finish = str(choice.get("finish_reason") or reply.finish)
    if reply.text or reply.reasoning:
        reply.stamps = (reply.ended,)
        reply.ttft = reply.ended - reply.due
    if isinstance(event.get("timings"), dict):
        reply.timings = event["timings"]


def _usage(event: dict[str, Any], reply: Reply) -> None:
    reply.served = reply.served or str(event.get("model") or "")
    usage = event.get("usage")
    if isinstance(usage, dict) and (written := _count(usage.get("completion_tokens"))) is not None:
        reply.prompt_tokens, reply.output_tokens, reply.counted = _count(usage.get("prompt_tokens")), written, "usage"
        details = usage.get("prompt_tokens_details")
        reply.cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None


def _count(value: Any) -> int | None:
    """A number of tokens; None for what can be none."""
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def server_words(body: bytes) -> str:
    """What a server said about an error, in its own words, at most 300 characters."""
    try:
        return _words(parse_json(body))
    except ValueError:
        text = body[:4000].decode("utf-8", "replace")
        if text.lstrip().startswith("<"):  # the page of a proxy: what a person would read of it
            text = " ".join(re.sub(r"<(style|script)\b.*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL | re.IGNORECASE).split())
        return text[:300].strip()


def _words(event: Any) -> str:
    if isinstance(event, dict):
        for key in ("error", "message", "detail", "msg"):
            if event.get(key):
                return _words(event[key])
    if isinstance(event, list) and event:
        return _words(event[0])
    return str(event)[:300]
