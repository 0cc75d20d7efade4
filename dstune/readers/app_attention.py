"""Which attention a program of transformers leaves to torch, and in what kind of thread it runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dstune.model import Fact
from dstune.readers.app_index import FUNCTIONS
from dstune.readers.app_seen import Generation, Seen

_CHOSEN = frozenset(("enable_cudnn_sdp", "sdpa_kernel", "SDPBackend"))
_OTHER = ("eager", "flash", "flex", "paged", "kernels")


def smells(seen: Seen) -> Iterator[Fact]:
    """`app.sdpa_left_to_torch`: "thread" where a thread that is new for each request generates, else "call".

    Silent where the program chooses a kernel, where its attention is not sdpa, and where the cache keeps one length.
    """
    if seen.trains() or not any(load.native for load in seen.loads) or _chosen(seen):
        return
    own = [g for g in seen.generations if g.how != "foreign" and "cache_implementation" not in g.keywords]
    if own:
        new = [g for g in own if _in_new_thread(seen, g)]
        yield seen.smell("sdpa_left_to_torch", (new or own)[0].call.node, "thread" if new else "call")


def _chosen(seen: Seen) -> bool:
    for node in seen.index.nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _CHOSEN:
                return True
            case ast.Constant(value=str(word)) if word.startswith("TORCH_CUDNN_SDPA"):
                return True
    words = [
        load.keywords[w] for load in seen.loads for w in ("attn_implementation", "_attn_implementation") if w in load.keywords
    ]
    named = [seen.index.const(w) for w in words]
    return any(not isinstance(n, str) or n.startswith(_OTHER) for n in named)


def _in_new_thread(seen: Seen, g: Generation) -> bool:
    """Whether a `Thread` that a function makes for one request runs this call; a worker that waits for requests loops."""
    if g.call.via == "thread":
        return seen.index.scope(g.call.node) is not None
    home = seen.index.scope(g.call.node)
    if home is None or any(isinstance(a, ast.While) for a in seen.index.chain(g.call.node)):
        return False
    return any(
        c.via == "thread" and seen.index.scope(c.node) is not None and seen.function_of(c.func) is home
        for c in seen.index.calls()
    ) and isinstance(home, FUNCTIONS)
