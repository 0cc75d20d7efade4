"""Conversations that ended, kept in host memory: their next turn need not be read again. Least recently used leave first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

SHORTEST = 32
"""Tokens below which a copy saves nothing: reading them anew takes one pass like any other prompt."""


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning, by halving: comparing slices is done in C."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class PrefixStore:
    """Saved caches by their tokens, at most `count` of them and `limit` bytes."""

    def __init__(self, count: int, limit: int) -> None:
        self.count, self.limit, self.bytes = count, limit, 0
        self.kept: OrderedDict[tuple[int, ...], list[Any]] = OrderedDict()

    def find(self, tokens: Sequence[int]) -> tuple[int, list[Any] | None]:
        """The saved cache that shares most of its beginning with these tokens, and how much."""
        wanted = tuple(tokens)
        same = [k for k in self.kept if k[:SHORTEST] == wanted[:SHORTEST]]
        best, key = max(((shared(k, wanted), k) for k in same), key=lambda found: found[0], default=(0, ()))
        if best < SHORTEST:
            return 0, None
        self.kept.move_to_end(key)
        return best, self.kept[key]

    def add(self, tokens: Sequence[int], saved: list[Any]) -> list[int]:
        """Keeps a cache; what it continues is replaced. Returns the lengths of those that had to leave."""
        key = tuple(tokens)
        for old in [k for k in self.kept if k[:SHORTEST] == key[:SHORTEST] and key[: len(k)] == k]:
            self._drop(old)
        self.kept[key] = saved
        self.bytes += sum(t.nbytes for t in saved)
        gone = []
        while self.kept and (len(self.kept) > self.count or self.bytes > self.limit):
            oldest = next(iter(self.kept))
            gone.append(len(oldest))
            self._drop(oldest)
        return gone

    def _drop(self, key: tuple[int, ...]) -> None:
        self.bytes -= sum(t.nbytes for t in self.kept.pop(key))
