"""The chat page: text as it comes, a stop button, reasoning folded, and an honest word when there is no place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from chat.answer import CLOSE, OPEN, Piece, answer, limits
from chat.engine import BusyError, Engine, RequestError
from chat.prompt import TooLongError, prepare
from chat.settings import Settings

EVERY_S = 0.05
"""Seconds between two updates of the page: the eye sees no more, and each update is work for server and browser."""

TEXTS = {
    "busy": ("The server is busy: {why}. Please try again in a moment.", "服务繁忙：{why}。请稍后再试。"),
    "long": ("This message is too long: {why}.", "消息太长：{why}。"),
    "failed": ("This request failed: {why}. Others are not affected.", "本次请求失败：{why}。其他请求不受影响。"),
    "length": ("cut at the limit of {n} tokens", "已达到 {n} token 上限，回答被截断"),
    "runaway": ("stopped: the model was repeating itself", "已停止：模型在重复输出"),
    "timeout": ("stopped: it took longer than {n:g} s", "已停止：超过 {n:g} 秒"),
    "temperature": ("Temperature (empty: the kind's own)", "温度（留空按问题类型）"),
    "tokens": ("Tokens of an answer at most (empty: the kind's own)", "回答 token 上限（留空按问题类型）"),
    "more": ("Settings", "设置"),
}


def build(settings: Settings, engine: Engine, tokenizer: Any) -> gr.Blocks:
    """The page. The engine's queue is its queue."""

    def say(key: str, **values: Any) -> str:
        return TEXTS[key][settings.page.language == "zh"].format(**values)

    async def chat(
        message: str, history: list[dict[str, Any]], temperature: float | None, tokens: float | None
    ) -> AsyncIterator[str]:
        messages = [
            *({"role": m["role"], "content": plain(m["content"])} for m in history),
            {"role": "user", "content": message},
        ]
        try:
            prepared = await asyncio.to_thread(prepare, tokenizer, settings, messages, drop=True)
        except TooLongError as error:
            yield say("long", why=error)
            return
        job = limits(settings, prepared, temperature=temperature, max_new_tokens=int(tokens) if tokens else None)
        text, shown_at, fresh = Folded(), 0.0, False
        pieces = answer(engine, tokenizer, job, prepared.thinking)
        try:
            async for some in pieces:
                text.add(some)
                fresh = time.monotonic() - shown_at < EVERY_S
                if not fresh:
                    shown_at = time.monotonic()
                    yield text.now
            if job.reason in ("length", "runaway", "timeout"):
                n = job.sampling.max_new_tokens if job.reason == "length" else settings.server.timeout
                text.note(say(job.reason, n=n))
                fresh = True
            if fresh:
                yield text.now
        except BusyError as error:
            yield say("busy", why=error)
        except RequestError as error:
            yield say("failed", why=error)
        finally:
            await pieces.aclose()  # the stop button and a closed page end here: the engine frees the slot

    page = gr.ChatInterface(
        chat,
        title=settings.page.title,
        chatbot=gr.Chatbot(reasoning_tags=[(OPEN, CLOSE)], height="70vh"),
        additional_inputs=[
            gr.Number(None, label=say("temperature"), minimum=0, maximum=2, step=0.1),
            gr.Number(None, label=say("tokens"), minimum=1, maximum=settings.cache.context, step=1, precision=0),
        ],
        additional_inputs_accordion=gr.Accordion(say("more"), open=False),
        concurrency_limit=None,  # no queue of Gradio's before the engine's: page and API share one, and its word is told when it is full
        fill_height=True,
        api_name="chat",
    )
    return page


class Folded:
    """The text of a message as the page takes it: reasoning between its marks, which Gradio folds."""

    def __init__(self) -> None:
        self.now, self.inside = "", False

    def add(self, pieces: list[Piece]) -> None:
        """Appends pieces and the marks between them."""
        for piece in pieces:
            if piece.thinking and not self.inside:
                self.now += OPEN
            elif self.inside and not piece.thinking:
                self.now += CLOSE + "\n\n"
            self.inside = piece.thinking
            self.now += piece.text

    def note(self, text: str) -> None:
        """A remark under the answer."""
        self.add([Piece(f"\n\n*[{text}]*", False)])


def plain(content: Any) -> str:
    """The text of a message of Gradio's history: a string, or a list of parts."""
    if isinstance(content, list):
        return "".join(str(p.get("text", "")) if isinstance(p, dict) else str(p) for p in content)
    return str(content)
