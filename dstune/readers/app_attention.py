"""Which attention a program of transformers leaves to torch, and in what kind of thread it runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dstune.model import Fact
from dstune.readers.app_index import FUNCTIONS
from dstune.readers.app_load import placed
from dstune.readers.app_seen import Generation, Seen

_CHOSEN = frozenset(("enable_cudnn_sdp", "sdpa_kernel", "sdp_kernel", "SDPBackend"))
_NAMED = frozenset(("attn_implementation", "_attn_implementation"))
_OLD = frozenset(("use_flash_attention_2", "use_flash_attn"))
_OTHER = ("eager", "flash", "flex", "paged", "kernels")


def smells(seen: Seen) -> Iterator[Fact]:
    """`app.sdpa_left_to_torch`: "thread" where a thread that is new for each request generates, else "call".

    Silent where the program chooses a kernel, where its attention is not sdpa, where the cache keeps one length, and on the CPU.
    """
    if seen.trains() or not any(load.native for load in seen.loads) or not placed(seen) or _chosen(seen):
        return
    own = [g for g in seen.generations if g.how != "foreign" and "cache_implementation" not in g.keywords]
    if own:
        new = [g for g in own if _in_new_thread(seen, g)]
        yield seen.smell("sdpa_left_to_torch", (new or own)[0].call.node, "thread" if new else "call")


def _chosen(seen: Seen) -> bool:
    """Whether the program, or a configuration that it makes, says which attention runs: with a kernel, or another than sdpa."""
    named: list[ast.expr] = [load.keywords[word] for load in seen.loads for word in _NAMED & load.keywords.keys()]
    for node in seen.index.nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _CHOSEN:
                return True
            case ast.Constant(value=str(word)) if word.startswith("TORCH_CUDNN_SDPA"):
                return True
            case ast.keyword(arg=word) if word in _OLD and seen.index.const(node.value) is not False:
                return True
            case ast.keyword(arg=word, value=value) if word in _NAMED:
                named.append(value)
            case ast.Assign(targets=[ast.Attribute(attr=word)], value=value) if word in _NAMED:
                named.append(value)
            case ast.Call(func=ast.Attribute(attr="set_attn_implementation"), args=[value, *_]):
                named.append(value)
    words = [seen.index.const(node) for node in named]
    return any(not isinstance(word, str) or word.startswith(_OTHER) for word in words)


def _in_new_thread(seen: Seen, g: Generation) -> bool:
    """Whether a `Thread` that a function makes for one request runs this call; a worker loops over the requests that it waits for."""
    if g.call.via == "thread":
        return _for_a_request(seen, g.call.node)
    home = seen.index.scope(g.call.node)
    if home is None or any(_waits(a) for a in seen.index.chain(g.call.node)):
        return False
    return any(
        c.via == "thread" and seen.function_of(c.func) is home and _for_a_request(seen, c.node) for c in seen.index.calls()
    ) and isinstance(home, FUNCTIONS)


def _for_a_request(seen: Seen, node: ast.AST) -> bool:
    """Whether this runs for each request: within reach of a handler; without any, in a function that is no beginning of a program."""
    scope = seen.index.scope(node)
    if seen.handlers:
        return any(scope in seen.reach(handler.function) for handler in seen.handlers)
    return scope is not None and getattr(scope, "name", "") not in ("__init__", "main")


def _waits(node: ast.AST) -> bool:
    """Whether a loop may be that of a worker: `while`, and `for job in iter(jobs.get, None)`."""
    match node:
        case ast.While():
            return True
        case ast.For(iter=ast.Call(func=ast.Name(id="iter"), args=[_, _])):
            return True
    return False
