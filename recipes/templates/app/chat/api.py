"""The OpenAI-compatible API, health and metrics."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from chat.answer import Piece, answer, limits
from chat.engine import BusyError, Engine, Job, RequestError
from chat.fields import refused
from chat.prompt import TooLongError, prepare
from chat.settings import Settings

FINISH = {"stop": "stop", "length": "length", "timeout": "length", "runaway": "length", "cancelled": "stop"}
"""Our reasons in OpenAI's words. An answer cut for its time or its repetition is incomplete, which is what `length` tells a client."""
LEFT = 499
"""The status that proxies log for a client that closed the connection."""


BODY, BODY_PER_TOKEN = 8 << 20, 64
"""Bytes of a request at most, and for each token of a long context: more than text takes that could be answered, also as \\u escapes."""


class Bounded:
    """Refuses larger requests, and keeps nothing of what is too much. It is read to its end: who still writes reads no answer."""

    def __init__(self, app: Any, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Counts what comes."""
        came = 0

        async def counted() -> Any:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came <= self.most:
                return message
            while message.get("more_body"):
                message = await receive()
            raise HTTPException(413, f"body: {came} bytes and more, and a request has {self.most} at most")

        await self.app(scope, counted if scope["type"] == "http" else receive, send)


class TextPart(BaseModel):
    """A part of a message. An image or a sound is refused: an answer that never saw it would be made up."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A message; content as text or as OpenAI's list of parts."""

    role: str = Field(pattern="^(system|developer|user|assistant)$")
    content: str | list[TextPart]
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None

    def plain(self) -> dict[str, str]:
        """Role and text."""
        text = self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


Stop = Annotated[str, Field(max_length=256)]
"""A stop text. Each is looked for at every token, so their number and length are bounded."""


class StreamOptions(BaseModel):
    """What a stream carries beside the text."""

    include_usage: bool = False


class ChatRequest(BaseModel):
    """The fields that are read. What else a client sends is judged by `fields.refused`."""

    model_config = ConfigDict(extra="allow")

    messages: list[ChatMessage] = Field(min_length=1)
    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=256)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: Stop | list[Stop] | None = Field(None, max_length=16)
    seed: int | None = None
    ignore_eos: bool | None = False


def add_routes(app: FastAPI, settings: Settings, engine: Engine, tokenizer: Any) -> None:
    """/v1/chat/completions, /v1/models, /health and /metrics."""
    name = settings.model.path.rstrip("/").rsplit("/", 1)[-1]

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        deepest = max(error.errors(), key=lambda e: len(e["loc"]))  # of a text or a list of parts, the one that was meant
        if deepest["type"] == "json_invalid":
            return refusal(400, f"body: no JSON: {deepest['ctx']['error']} at character {deepest['loc'][-1]}")
        return refusal(400, f"{'.'.join(str(p) for p in deepest['loc'][1:]) or 'body'}: {deepest['msg']}")

    @app.exception_handler(HTTPException)
    async def failed(_: Request, error: HTTPException) -> Response:
        return refusal(error.status_code, str(error.detail))

    app.add_middleware(Bounded, most=max(BODY, BODY_PER_TOKEN * settings.cache.context))

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatRequest, request: Request) -> Response:
        if fault := refused(body.model_extra or {}):
            return refusal(400, fault, "unsupported_value")
        if any(m.tool_calls or m.function_call for m in body.messages):
            return refusal(400, "messages: this server calls no tools, and its model cannot read calls", "unsupported_value")
        messages = [m.plain() for m in body.messages]
        if messages[-1]["role"] != "user":
            return refusal(400, "messages: the last one must be the user's")
        try:
            prepared = await asyncio.to_thread(prepare, tokenizer, settings, messages)
        except TooLongError as error:
            return refusal(400, str(error), "context_length_exceeded")
        job = limits(
            settings, prepared, temperature=body.temperature, top_p=body.top_p, ignore_eos=body.ignore_eos,
            top_k=0 if body.top_k == -1 else body.top_k, max_new_tokens=body.max_completion_tokens or body.max_tokens,
        )  # fmt: skip
        if body.seed is not None and job.sampling.temperature:
            return refusal(
                400,
                "seed: a batch is drawn together and cannot be repeated; leave it out, or write temperature 0",
                "unsupported_value",
            )
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        pieces = answer(engine, tokenizer, job, prepared.thinking, stop)
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}
        # The first piece decides the status: a full queue or a prompt without memory is an HTTP error, not a broken stream.
        try:
            found = await unless_gone(request, opening(pieces))
        except BusyError as error:
            return refusal(503, str(error), "busy", {"Retry-After": "5"})
        except RequestError as error:
            return refusal(500, str(error), "request_failed")
        if found is None:
            return Response(status_code=LEFT)
        if body.stream:
            usage = bool(body.stream_options and body.stream_options.include_usage)
            return StreamingResponse(_events(head, found, pieces, job, usage), media_type="text/event-stream")
        return await unless_gone(request, _whole(head, found, pieces, job)) or Response(status_code=LEFT)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {
            "object": "list",
            "data": [{"id": name, "object": "model", "owned_by": "local", "max_model_len": settings.cache.context}],
        }

    @app.get("/health")
    async def health() -> Response:
        if engine.failed or not engine.ready.is_set():
            return PlainTextResponse(engine.failed or "loading the model", 503)
        return PlainTextResponse("ok")

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(engine.trace.prometheus(engine.gauges()), media_type="text/plain; version=0.0.4")


async def unless_gone(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """What the work gives; None, and the work is cancelled, when the client leaves before: nobody computes for a closed connection."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        left.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def opening(pieces: AsyncIterator[list[Piece]]) -> list[Piece]:
    """The first pieces of an answer; none of an empty one."""
    return await anext(pieces, [])


def refusal(status: int, message: str, code: str = "invalid_request", headers: dict[str, str] | None = None) -> Response:
    """An error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": code}}, status, headers)


def usage_of(job: Job) -> dict[str, Any]:
    """Tokens read, of them reused, and written."""
    prompt, written = len(job.prompt), len(job.tokens)
    cached = {"cached_tokens": job.reused}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": cached,
    }


def _delta(pieces: list[Piece]) -> dict[str, str]:
    """Pieces as fields of a message: the answer in `content`, what the model thought in `reasoning_content`."""
    names = ((False, "content"), (True, "reasoning_content"))
    joined = {field: "".join(p.text for p in pieces if p.thinking is inside) for inside, field in names}
    return {field: text for field, text in joined.items() if text}


async def _events(
    head: dict[str, Any], first: list[Piece], rest: AsyncIterator[list[Piece]], job: Job, usage: bool
) -> AsyncIterator[str]:
    """The stream: a chunk for each group of pieces, the reason, the usage if asked for, the end mark."""

    def chunk(**values: Any) -> str:
        return f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', **values}, ensure_ascii=False)}\n\n"

    def choice(delta: dict[str, str], reason: str | None = None) -> str:
        return chunk(choices=[{"index": 0, "delta": delta, "finish_reason": reason}])

    try:
        yield choice({"role": "assistant", **_delta(first)})
        async for pieces in rest:
            yield choice(_delta(pieces))
        yield choice({}, FINISH.get(job.reason, "stop"))
        if usage:
            yield chunk(choices=[], usage=usage_of(job))
    except RequestError as error:
        yield f"data: {json.dumps({'error': {'message': str(error), 'type': 'server_error'}})}\n\n"
    finally:
        await rest.aclose()  # type: ignore[attr-defined]
    yield "data: [DONE]\n\n"


async def _whole(head: dict[str, Any], first: list[Piece], rest: AsyncIterator[list[Piece]], job: Job) -> Response:
    """The answer in one piece."""
    found = list(first)
    try:
        async for pieces in rest:
            found += pieces
    except RequestError as error:
        return refusal(500, str(error), "request_failed")
    message = {"role": "assistant", "content": "", **_delta(found)}
    made = {"index": 0, "message": message, "finish_reason": FINISH.get(job.reason, "stop")}
    return JSONResponse({**head, "object": "chat.completion", "choices": [made], "usage": usage_of(job)})
