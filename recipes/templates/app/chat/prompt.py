"""Messages to prompt tokens, and tokens back to text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chat.kinds import kind_of, with_directive
from chat.settings import Prompt, Settings

Message = dict[str, str]
CHARACTERS = 128
"""Characters of a token at most: a run of spaces. A text that is longer than this says is not read token by token to find out."""


class TooLongError(Exception):
    """The prompt leaves no room for an answer."""


@dataclass(frozen=True)
class Prepared:
    """A prompt as tokens. `thinking` says that the answer opens inside the model's reasoning, its opening mark being part of the prompt."""

    tokens: list[int]
    kind: str
    thinking: bool


def prepare(tokenizer: Any, settings: Settings, messages: Sequence[Message], drop: bool = False) -> Prepared:
    """The prompt of a conversation whose last message is the user's. `drop` leaves out the oldest turns until it fits.

    Raises `TooLongError` where it does not fit. Takes a second for a million characters: not for the event loop.
    """
    turns = [_plain(m) for m in messages]
    question = turns[-1]["content"]
    kind = kind_of(question)
    turns[-1]["content"] = with_directive(question, settings.generation.of(kind).directive)
    room = settings.cache.context - min(256, settings.cache.context // 4)  # an answer needs some room of its own
    if drop:
        turns = _last(tokenizer, turns, room)
    if (length := sum(len(m["content"]) for m in turns)) > room * CHARACTERS:
        raise TooLongError(f"the prompt has {length} characters, and at most {room} tokens leave room for an answer")
    while True:
        text = render(tokenizer, settings.prompt, turns)
        tokens = list(tokenizer(text, add_special_tokens=False).input_ids)
        if len(tokens) <= room:
            opened = text.rstrip().endswith("<think>")
            return Prepared(tokens, kind, opened)
        system = int(turns[0]["role"] == "system")
        if not drop or len(turns) - system < 3:
            raise TooLongError(f"the prompt has {len(tokens)} tokens, and at most {room} leave room for an answer")
        del turns[system : system + 2]


def _plain(message: Message) -> Message:
    """A message that tokenisers take: JSON may hold half a character. Reasoning of earlier turns is not read again: the vendors' templates
    cut it too."""
    text = message["content"].encode("utf-8", "replace").decode()
    return {**message, "content": text.rpartition("</think>")[2].strip() if message["role"] == "assistant" else text}


def _last(tokenizer: Any, turns: list[Message], room: int) -> list[Message]:
    """The system message and as many of the last turns as may fit, each read once; `prepare` then reads them together."""
    system, kept, tokens = int(turns[0]["role"] == "system"), len(turns) - 1, 0
    for number in range(len(turns) - 1, system - 1, -1):
        text = turns[number]["content"]
        tokens += room + 1 if len(text) > room * CHARACTERS else len(tokenizer(text, add_special_tokens=False).input_ids)
        if tokens > room:
            break
        kept = number
    while turns[kept]["role"] != "user":
        kept += 1
    return [*turns[:system], *turns[kept:]]


def render(tokenizer: Any, settings: Prompt, messages: Sequence[Message]) -> str:
    """The model's own chat template. It writes the opening token, so tokenising must add none."""
    turns = [dict(m) for m in messages]
    if settings.system == "user" and turns[0]["role"] == "system" and len(turns) > 1:
        first = turns.pop(0)["content"]
        turns[0]["content"] = f"{first}\n\n{turns[0]['content']}"
    text = str(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
    prefix = settings.think_prefix
    return text if not prefix or text.endswith(prefix) else text + prefix


class Detokenizer:
    """Tokens to text, piece by piece. A character of several tokens comes out once it is whole."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.ids, self.shown, self.begin = tokenizer, [], 0, 0

    def push(self, tokens: Sequence[int], final: bool = False) -> str:
        """The text that these tokens add. Decodes from the piece before on, since a token's text depends on its neighbours."""
        self.ids += tokens
        before = self._text(self.begin, self.shown)
        now = self._text(self.begin, len(self.ids))
        if len(now) <= len(before) or (now.endswith("\ufffd") and not final):
            return ""
        self.begin, self.shown = self.shown, len(self.ids)
        return now[len(before) :]

    def _text(self, begin: int, end: int) -> str:
        return str(self.tokenizer.decode(self.ids[begin:end], skip_special_tokens=True)) if end > begin else ""
