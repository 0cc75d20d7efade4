"""Messages to prompt tokens, and tokens back to text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chat.kinds import kind_of, with_directive
from chat.settings import Prompt, Settings

Message = dict[str, str]


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

    Raises `TooLongError` where it does not fit.
    """
    question = messages[-1]["content"]
    kind = kind_of(question)
    directive = settings.generation.of(kind).directive
    turns = [*messages[:-1], {**messages[-1], "content": with_directive(question, directive)}]
    room = settings.cache.context - min(256, settings.cache.context // 4)  # an answer needs some room of its own
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


def render(tokenizer: Any, settings: Prompt, messages: Sequence[Message]) -> str:
    """The model's own chat template. It writes the opening token, so tokenising must add none."""
    turns = [dict(m) for m in messages]
    for turn in turns:
        if turn["role"] == "assistant":  # reasoning of earlier turns is not read again: the vendors' templates cut it too
            turn["content"] = turn["content"].rpartition("</think>")[2].strip()
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
