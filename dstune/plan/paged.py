"""Continuous batching of transformers: how its paged cache divides the share of free memory that it takes.

transformers/generation/continuous_batching/cache.py, PagedAttentionMemoryHandler (5.24): of the free memory it takes `max_memory_percent`;
what `max_batch_tokens` tokens of activations, the logits of `max_requests_per_batch` requests and, without a flash kernel, the attention
mask need is set aside, the rest becomes cache. A token of cache costs its keys and values in all layers, the copy of one layer that
attention reads back (repeated for each query head without a flash kernel), its read index, and its column of the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from dstune.catalog.models import ModelSpec
from dstune.plan import physics


@dataclass(frozen=True, slots=True)
class Pool:
    """Tokens that the cache holds, its bytes, and the bytes set aside beside it; together `taken`."""

    tokens: int
    cache: float
    aside: float

    @property
    def taken(self) -> float:
        """What continuous batching takes of the free memory at most."""
        return self.cache + self.aside


def pool(model: ModelSpec, free: float, per_token: float, width: int, flash: bool) -> Pool:
    """The pool in `free` bytes for `per_token` bytes of keys and values; `width` bytes an element."""
    row = physics.entry("transformers", "continuous_batching")
    d, batch, rows = model.head_dim, row["batch_tokens"], row["requests"]
    copies = 2 if flash else 1  # a flash kernel needs no mask, and only then inputs are prepared a batch ahead
    read_back = (2 * model.kv_heads if flash else 2 * model.heads + model.kv_heads) * d * width
    activations = width * (model.hidden + (model.heads + 2 * model.kv_heads) * d) + read_back
    inputs = copies * (8 * 4 + (row["blocks"] * 4 if flash else 0) + 16)
    fixed = rows * (model.hidden * width + 4 * model.vocab) + batch * (activations + inputs)
    mask = 0 if flash else width * batch
    available = free * row["share"]
    each = per_token + read_back + 8 * copies + mask
    tokens = max(0, int((available - fixed - mask * batch) / each))
    return Pool(tokens, tokens * per_token, min(available, max(fixed, available - tokens * per_token)))
