"""When an answer ends early: runaway repetition, and the stop texts of a request."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_LOOP = 64
"""Tokens of the longest loop that is looked for. A loop of a whole paragraph is longer and ends at max_new_tokens."""


def runs_away(tokens: Sequence[int], limit: int) -> bool:
    """Whether the last `limit` tokens are one loop: a token (endless newlines) or an n-gram of up to 64 repeated at least 4 times.

    A table's rule or a row of zeros is a loop too, but of less than `limit` tokens. Costs about 20 µs; ask every 8 tokens.
    """
    if not limit or len(tokens) < limit:
        return False
    tail = list(tokens[-limit:])
    return any(tail[period:] == tail[:-period] for period in range(1, min(LONGEST_LOOP, limit // 4) + 1))


class StopText:
    """Holds back what may become a stop text, and cuts at one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = [s for s in stops if s]
        self.held = ""

    def push(self, text: str, final: bool = False) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop text was met."""
        text = self.held + text
        found = [at for s in self.stops if (at := text.find(s)) >= 0]
        if found:
            self.held = ""
            return text[: min(found)], True
        keep = 0 if final else max((n for s in self.stops for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep], False
