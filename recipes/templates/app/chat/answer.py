"""One answer as pieces of text: asks the engine, turns tokens into text, tells reasoning from answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chat.engine import BusyError, Engine, Job, RequestError
from chat.prompt import Detokenizer, Prepared
from chat.settings import Settings
from chat.stops import StopText

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Piece:
    """Some text; `thinking` while the model reasons."""

    text: str
    thinking: bool


class Thinking:
    """Splits text at the marks of reasoning, which may come in parts."""

    def __init__(self, inside: bool) -> None:
        self.inside, self.begun, self.stops = inside, inside, StopText([CLOSE if inside else OPEN])

    def push(self, text: str, final: bool = False) -> list[Piece]:
        """The pieces that are certain now. Only an answer that opens with the mark reasons: later the word is text."""
        out: list[Piece] = []
        while True:
            held = self.stops.held + text
            if self.begun and not self.inside:
                self.stops.held = ""
                return [*out, *([Piece(held, False)] if held else [])]
            if not self.begun and held.strip() and not OPEN.startswith(held.lstrip()[: len(OPEN)]):
                self.begun = True
                continue
            shown, met = self.stops.push(text, final)
            if shown.strip() or (shown and self.begun):
                out.append(Piece(shown, self.inside))
            if not met:
                return out
            text = held.split(CLOSE if self.inside else OPEN, 1)[1].lstrip("\n")
            self.inside = not self.inside
            self.begun, self.stops = True, StopText([CLOSE])


def limits(settings: Settings, prepared: Prepared, **asked: Any) -> Job:
    """A job with the limits of its kind; what the client asked for goes before, within the context."""
    of = settings.generation.of(prepared.kind)
    given = {k: v for k, v in asked.items() if v is not None and v == v and hasattr(of, k)}  # the page lets NaN through
    room = settings.cache.context - len(prepared.tokens)
    sampling = replace(of, **given)
    sampling = replace(sampling, max_new_tokens=max(1, min(sampling.max_new_tokens, room)))
    return Job(prepared.tokens, sampling, prepared.kind, bool(asked.get("ignore_eos")))


async def answer(
    engine: Engine, tokenizer: Any, job: Job, thinking: bool, stop: Sequence[str] = ()
) -> AsyncIterator[list[Piece]]:
    """Pieces of an answer as they come: all tokens that wait are taken at once, so a slow reader gets fewer, larger pieces.

    `job.reason` says at the end why it ended. Raises `BusyError` where there was no place for it, at once or after waiting, and
    `RequestError` when this request failed. Leaving the loop early cancels the request.
    """
    text, split, stops = Detokenizer(tokenizer), Thinking(thinking), StopText(stop)
    engine.submit(job)
    try:
        finish = ""
        while not finish:
            tokens, finish = await job.inbox.get()
            while not job.inbox.empty():
                more, finish = job.inbox.get_nowait()
                tokens = [*tokens, *more]
            shown, met = stops.push(text.push(tokens, bool(finish)), bool(finish))
            if pieces := split.push(shown, bool(finish) or met):
                yield pieces
            if met:
                job.cut = True
                return
        if job.error:
            raise RequestError(job.error) if job.started else BusyError(job.error)
    finally:
        engine.cancel(job)
