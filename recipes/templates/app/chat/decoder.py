"""Prompts in, tokens out: one forward pass at a time over the slots. Only the engine's worker thread calls this.

Decoding one token is 1,200 small kernels on a 1.5B model, and starting them from Python takes five times as long as running them.
So each decode step is recorded once as a CUDA graph, for some numbers of rows (1, 8, 64, …: on an H200 a step of 8 rows takes 7 % longer
than one of 1) and lengths of the cache (512, 1024, …: 512 more positions cost 15 %), and replayed with a single call. A graph takes
0.06 s to record and 12 MB; torch.compile would take half a minute a shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from chat.attention import SlotCache, Step
from chat.model import Loaded

CANDIDATES = 256
"""Tokens that sampling looks at, the likeliest ones. Their share is computed over the whole vocabulary, so top_p is exact within them."""


def sample(logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """A token for each row: [rows, vocabulary] → [rows]. Temperature 0 takes the likeliest; top_k 0 is no bound."""
    logits = logits.float()
    scaled = logits / temperature.clamp(min=1e-4)[:, None]
    values, ids = scaled.topk(min(CANDIDATES, logits.shape[-1]), dim=-1)
    share = (values - scaled.logsumexp(-1, keepdim=True)).exp()
    before = share.cumsum(-1) - share
    rank = torch.arange(share.shape[-1], device=share.device)
    kept = share * ((before < top_p[:, None]) & ((rank < top_k[:, None]) | (top_k[:, None] == 0)))
    # The largest of share / exponential noise is a draw by share: no host synchronisation, so it can stand in a CUDA graph.
    drawn = (kept / torch.empty_like(kept).exponential_().clamp_(min=1e-10)).argmax(-1, keepdim=True)
    return torch.where(temperature > 0, ids.gather(-1, drawn)[:, 0], logits.argmax(-1))


def steps(low: int, high: int, by: int) -> list[int]:
    """low, low x by, low x by x by … high."""
    out = [low]
    while out[-1] < high:
        out.append(min(by * out[-1], high))
    return out


class Decoder:
    """A model with its slots. `ids`, `positions` and the sampling values stay on the device between steps."""

    def __init__(self, loaded: Loaded, slots: int, context: int, float8: bool) -> None:
        self.loaded, self.slots, self.context = loaded, slots, context
        self.cache = SlotCache(slots, context, float8)
        device = loaded.device
        self.ids = torch.zeros(slots, dtype=torch.long, device=device)
        self.positions = torch.full((slots,), context, dtype=torch.long, device=device)
        self.moving = torch.zeros(slots, dtype=torch.long, device=device)
        self.temperature = torch.zeros(slots, device=device)
        self.top_p = torch.ones(slots, device=device)
        self.top_k = torch.zeros(slots, dtype=torch.long, device=device)
        self.rows = torch.arange(slots, device=device)
        self.dtype = next(p.dtype for p in loaded.model.parameters() if p.is_floating_point())
        self.grouped = device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)
        self.row_counts = steps(1, slots, 8)
        self.lengths = steps(min(512, context), context, 2)
        self.graphs: dict[tuple[int, int], Any] = {}
        self.unrecorded = ""

    @torch.inference_mode()
    def warm_up(self) -> float:
        """Allocates the cache and records the graphs. Returns the seconds that recording took (0: nothing to record)."""
        self._forward(
            torch.zeros(1, 8, dtype=torch.long, device=self.ids.device),
            Step(self.cache, self.rows[:1], grouped=self.grouped),
            0,
        )
        if not self.loaded.graphs:
            return 0.0
        begin = time.monotonic()
        pool = torch.cuda.graph_pool_handle()
        try:
            for rows in reversed(self.row_counts):
                for length in reversed(self.lengths):
                    self.graphs[rows, length] = _record(partial(self._step, rows, length), pool)
        except RuntimeError as error:  # a layer that waits for the host cannot be recorded: slower, and right all the same
            self.graphs.clear()
            self.unrecorded = str(error).split("\n")[0]
        return time.monotonic() - begin

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[tuple[int, int, Sequence[int]]]) -> torch.Tensor:
        """Reads (slot, start, tokens) into the cache; several prompts only with start 0. Returns the logits behind each one's last token."""
        longest = max(len(tokens) for _, _, tokens in prompts)
        device = self.ids.device
        ids = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for _, _, tokens in prompts], device=device)
        rows = torch.tensor([slot for slot, _, _ in prompts], device=device)
        last = torch.tensor([len(tokens) - 1 for _, _, tokens in prompts], device=device)
        logits = self._forward(ids, Step(self.cache, rows, prompts[0][1], grouped=self.grouped), last)
        each = torch.arange(len(prompts), device=device)
        return logits[each, each]

    @torch.inference_mode()
    def join(self, logits: torch.Tensor, joining: Sequence[tuple[int, int, float, float, int]]) -> list[int]:
        """Draws the first token of answers and lets their rows take part: (slot, prompt tokens, temperature, top_p, top_k) each."""
        device = self.ids.device
        slots, lengths, temperature, top_p, top_k = (
            torch.tensor(column, device=device) for column in zip(*joining, strict=True)
        )
        temperature, top_p = temperature.float(), top_p.float()
        first = sample(logits, temperature, top_p, top_k)
        for state, values in (
            (self.ids, first),
            (self.positions, lengths),
            (self.temperature, temperature),
            (self.top_p, top_p),
            (self.top_k, top_k),
        ):
            state[slots] = values
        self.moving[slots] = 1
        return first.tolist()

    @torch.inference_mode()
    def leave(self, slot: int) -> None:
        """A row takes no part any more; it writes behind the context."""
        self.moving[slot] = 0
        self.positions[slot] = self.context

    @torch.inference_mode()
    def decode(self, rows: int, length: int) -> Callable[[], list[int]]:
        """Starts one step of the first `rows` slots over `length` positions of the cache; the call that is returned waits for its tokens."""
        rows = next(n for n in self.row_counts if n >= rows)
        length = next(n for n in self.lengths if n >= min(length, self.context))
        graph = self.graphs.get((rows, length))
        if graph:
            graph.replay()
        else:
            self._step(rows, length)
        if self.ids.device.type != "cuda":
            tokens = self.ids[:rows].tolist()
            return lambda: tokens
        copied = torch.empty(rows, dtype=torch.long, pin_memory=True).copy_(self.ids[:rows], non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return lambda: (done.synchronize(), copied.tolist())[1]

    def _step(self, rows: int, length: int) -> None:
        """One token for the first rows: reads `ids` at `positions`, leaves the new ids and the next positions there."""
        positions = self.positions[:rows]
        seen = torch.arange(length, device=positions.device) <= positions[:, None]
        mask = torch.zeros(rows, length, dtype=self.dtype, device=positions.device).masked_fill_(~seen, float("-inf"))[
            :, None, None
        ]
        step = Step(self.cache, self.rows[:rows], length=length, positions=positions, mask=mask)
        logits = self._forward(self.ids[:rows, None], step, 1, positions[:, None])[:, -1]
        new = sample(logits, self.temperature[:rows], self.top_p[:rows], self.top_k[:rows])
        self.ids[:rows].copy_(new)
        self.positions[:rows].add_(self.moving[:rows])

    def _forward(self, ids: torch.Tensor, step: Step, keep: Any, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of the positions `keep`."""
        if positions is None:
            positions = torch.arange(step.start, step.start + ids.shape[1], device=ids.device)[None].expand(ids.shape[0], -1)
        return self.loaded.model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=keep, slots=step).logits


def _record(step: Callable[[], None], pool: Any) -> Any:
    """A CUDA graph of a step, recorded on the stream of this thread. An ordinary run before lets libraries allocate what they keep."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
        step()
    return graph
