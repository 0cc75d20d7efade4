"""The attention cache: one row ("slot") for each answer that runs, fixed in size, so that nothing is allocated while answering.

transformers gives the attention of every layer to a function of ours (its "attention interface") and hands our `Step` through to
it. The same tensors stay at the same addresses for the life of the model: that is what lets a CUDA graph replay the decode step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

NAME = "slots"
PADDING = 8
"""Positions behind the context: rows that run no answer write there. Eight keep the rows aligned."""


class SlotCache:
    """Keys and values of all layers, [slots, kv heads, context + 8, head dim] each; layers appear at their first use, on their device.

    `float8` stores e4m3 with a scale for each token and head: 1 + 2/head_dim bytes instead of 2, precise to 6 %.
    """

    def __init__(self, slots: int, context: int, float8: bool) -> None:
        self.slots, self.context, self.float8 = slots, context, float8
        self.layers: dict[int, list[torch.Tensor]] = {}

    def bytes(self) -> int:
        """Memory of the cache."""
        return sum(t.nbytes for layer in self.layers.values() for t in layer)

    def layer(self, index: int, like: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of a layer: key, value, and with float8 their scales."""
        if index not in self.layers:
            _, heads, _, dim = like.shape
            shape = (self.slots, heads, self.context + PADDING)
            kind = torch.uint8 if self.float8 else like.dtype
            made = [torch.zeros(*shape, dim, dtype=kind, device=like.device) for _ in range(2)]
            if self.float8:
                made += [torch.zeros(*shape, 1, dtype=like.dtype, device=like.device) for _ in range(2)]
            self.layers[index] = made
        return self.layers[index]

    def write(self, index: int, where: tuple[Any, ...], key: torch.Tensor, value: torch.Tensor) -> None:
        """Puts keys and values at `where` (an index of slot, heads, positions)."""
        stored = self.layer(index, key if key.dim() == 4 else key[:, :, None])
        if not self.float8:
            stored[0][where], stored[1][where] = key, value
            return
        for at, x in enumerate((key, value)):
            scale = (x.float().abs().amax(-1, keepdim=True) / 448).clamp(min=1e-12)  # 448 is the largest e4m3 number
            stored[at][where] = (x.float() / scale).to(torch.float8_e4m3fn).view(torch.uint8)
            stored[at + 2][where] = scale.to(x.dtype)

    def read(self, index: int, rows: Any, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of rows, their first `length` positions: views where stored in the model's type."""
        stored = self.layers[index]
        if not self.float8:
            return stored[0][rows, :, :length], stored[1][rows, :, :length]
        scales = stored[2][rows, :, :length], stored[3][rows, :, :length]
        packed = stored[0][rows, :, :length], stored[1][rows, :, :length]
        key, value = (p.view(torch.float8_e4m3fn).to(s.dtype) * s for p, s in zip(packed, scales, strict=True))
        return key, value

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` positions of a slot to another."""
        for layer in self.layers.values():
            for tensor in layer:
                tensor[target, :, :length].copy_(tensor[source, :, :length])

    @torch.inference_mode()
    def save(self, slot: int, length: int) -> list[torch.Tensor]:
        """The first `length` positions of a slot in host memory."""
        return [t[slot, :, :length].to("cpu", copy=True) for _, layer in sorted(self.layers.items()) for t in layer]

    @torch.inference_mode()
    def restore(self, slot: int, saved: list[torch.Tensor], length: int) -> None:
        """Writes back what `save` returned, its first `length` positions."""
        tensors = [t for _, layer in sorted(self.layers.items()) for t in layer]
        for tensor, kept in zip(tensors, saved, strict=True):
            tensor[slot, :, :length].copy_(kept[:, :length])


@dataclass
class Step:
    """What one forward pass does to the cache.

    Prefill: `rows` get tokens from position `start` on (several rows only from 0; shorter ones are padded on the right, where a causal
    mask hides the padding and later tokens overwrite it). Decode: row i gets one token at `positions[i]` and sees `length` positions
    through `mask` ([rows, 1, 1, length], 0 or -inf).
    """

    cache: SlotCache
    rows: Any
    start: int = 0
    length: int = 0
    positions: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    grouped: bool = True


def slot_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, scaling: float | None = None,
    slots: Step | None = None, **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Writes the new keys and values, then attends: query [batch, heads, new, dim] to [batch, new, heads, dim]."""
    assert slots is not None, "the model must be called with slots=Step(...)"
    out = _decode if slots.positions is not None else _prefill
    return out(slots, module.layer_idx, query, key, value, scaling).transpose(1, 2).contiguous(), None


def _decode(
    step: Step, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """One token a row. The query heads that share a key head stand as positions of one query: no key is copied for them."""
    count, heads, _, dim = query.shape
    rows, positions, mask = (t.to(key.device) for t in (step.rows, step.positions, step.mask))
    step.cache.write(layer, (rows, slice(None), positions), key[:, :, 0], value[:, :, 0])
    keys, values = step.cache.read(layer, slice(0, count), step.length)
    groups = query.view(count, key.shape[1], heads // key.shape[1], dim)
    out = F.scaled_dot_product_attention(groups, keys, values, attn_mask=mask, scale=scaling)
    return out.reshape(count, heads, 1, dim)


def _prefill(
    step: Step, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Whole prompts from position 0, or one row's next part behind what it has."""
    new, share = query.shape[2], query.shape[1] // key.shape[1]
    rows = step.rows.to(key.device)
    step.cache.write(layer, (rows, slice(None), slice(step.start, step.start + new)), key, value)
    mask = None
    if step.start:
        key, value = step.cache.read(layer, rows, step.start + new)
        seen = torch.arange(step.start + new, device=key.device)
        mask = seen <= torch.arange(step.start, step.start + new, device=key.device)[:, None]
    elif step.grouped:  # flash kernels share a key head among query heads by themselves
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=share > 1)
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling)
