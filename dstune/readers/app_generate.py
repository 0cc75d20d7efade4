"""What is notable in how a program generates and decodes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dstune.model import Fact
from dstune.readers import app_attention, app_prompt, app_sampling
from dstune.readers.app_index import FUNCTIONS
from dstune.readers.app_load import placed
from dstune.readers.app_seen import Generation, Seen


def smells(seen: Seen) -> Iterator[Fact]:
    """`app.*` facts about generating."""
    yield from _limits(seen)
    yield from app_sampling.smells(seen)
    yield from _cache(seen)
    yield from _inputs(seen)
    yield from _streaming(seen)
    yield from _pools(seen)
    yield from _gradients(seen)
    yield from _per_token(seen)
    yield from app_attention.smells(seen)
    yield from app_prompt.smells(seen)


def _local(seen: Seen) -> list[Generation]:
    return [g for g in seen.generations if g.how != "foreign"]


def _limits(seen: Seen) -> Iterator[Fact]:
    for g in seen.generations:
        words = g.keywords
        if (
            "max_length" in words
            and "max_new_tokens" in words
            and "max_length" in g.call.keywords
            and seen.value(words, "max_length") is not None
            and seen.value(words, "max_new_tokens") is not None
        ):
            yield seen.smell("max_length_beside_max_new_tokens", words["max_length"])
        if (
            "max_length" in g.call.keywords
            and "max_new_tokens" not in words
            and not g.open_
            and not g.configured
            and seen.value(words, "max_length") is not None
            and (g.how == "pipe" or (g.how == "generate" and seen.index.kind(g.base) == "model"))
            and not _seq2seq(seen)
            and not seen.trains()
        ):
            yield seen.smell("max_length_alone", words["max_length"])
        limited = {
            "max_new_tokens",
            "max_length",
            "max_tokens",
            "stopping_criteria",
            "max_time",
            "custom_generate",
            "config",
            "sampling_params",
        } & set(words)
        if limited or g.open_ or g.configured:
            continue
        if g.how == "foreign" and (seen.snippet or not seen.loads) and len(g.call.args) <= 1:
            yield seen.smell("generate_without_limit", g.call.node)
        elif (
            g.how == "generate"
            and seen.index.kind(g.base) == "model"
            and seen.loads
            and all(load.native for load in seen.loads)
        ):
            yield seen.smell("generate_default_limit", g.call.node)


def _seq2seq(seen: Seen) -> bool:
    """Whether the program has an encoder-decoder model or a task of one: there max_length is the answer's alone."""
    if any(seen.index.kind(load.call.node) == "seq2seq" for load in seen.loads):
        return True
    return any(
        re.search(r"(?i)summari[sz]ation|translation|text2text|\bt5|bart|speech-recognition|image-to-text", str(c.value))
        for c in seen.constants()
    )


def _cache(seen: Seen) -> Iterator[Fact]:
    if seen.trains():
        return
    for node in seen.index.nodes:
        match node:
            case ast.keyword(arg="use_cache", value=value) if seen.index.const(value) is False:
                above = seen.index.parent.get(node)
                name = seen.index.dotted(above.func) if isinstance(above, ast.Call) else ""
                if not re.search(r"(?i)datasets?|load_dataset|sentence|Config\.from|requests|cache_data", name):
                    yield seen.smell("use_cache_false", value)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "use_cache" and seen.index.const(value) is False:
                        yield seen.smell("use_cache_false", value)
            case ast.Assign(targets=[ast.Attribute(attr="use_cache", value=owner)], value=value) if (
                seen.index.const(value) is False
            ):
                if "config" in ast.unparse(owner):
                    yield seen.smell("use_cache_false", node)
            case ast.For() | ast.While():
                yield from _recomputes(seen, node)


def _recomputes(seen: Seen, loop: ast.For | ast.While) -> Iterator[Fact]:
    """A decode loop of one's own that feeds the whole sequence each time and keeps no cache."""
    grown = {
        t.id
        for n in ast.walk(loop)
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and seen.index.dotted(n.value.func) in ("torch.cat", "torch.concat", "torch.hstack")
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    for node in ast.walk(loop):
        if not isinstance(node, ast.Call):
            continue
        if _feeds(seen, node, grown):
            yield seen.smell("loop_without_cache", node)
        elif (step := seen.function_of(node.func)) is not None and isinstance(step, FUNCTIONS):
            # one step in a function of its own
            names = [a.arg for a in step.args.args if a.arg not in ("self", "cls")]
            given = {n for n, a in zip(names, node.args, strict=False) if isinstance(a, ast.Name) and a.id in grown}
            for inner in seen.index.own(step) if given else ():
                if isinstance(inner, ast.Call) and _feeds(seen, inner, given):
                    yield seen.smell("loop_without_cache", inner)


def _feeds(seen: Seen, node: ast.Call, grown: set[str]) -> bool:
    """Whether a call gives a model the whole of a sequence that grows, and no cache."""
    if seen.index.kind(node) != "forward":
        return False
    words, open_ = seen.index.keywords(node)
    fed = node.args[0] if node.args else words.get("input_ids")
    return isinstance(fed, ast.Name) and fed.id in grown and not open_ and not {"past_key_values", "cache"} & set(words)


def given(g: Generation) -> list[ast.expr]:
    """The expressions that carry a generation's input."""
    found = [a for a in g.call.args[:1] if not isinstance(a, ast.Starred)]
    found += [g.call.keywords[w] for w in ("input_ids", "inputs") if w in g.call.keywords]
    found += [k.value for k in g.call.node.keywords if k.arg is None]
    return found


def _inputs(seen: Seen) -> Iterator[Fact]:
    where = placed(seen)
    for g in _local(seen):
        if g.how != "generate":
            continue
        if g.call.args and not isinstance(g.call.args[0], ast.Starred) and seen.index.kind(g.base) != "encoder":
            kind = seen.index.kind(g.call.args[0])
            if kind == "batch":
                yield seen.smell("batch_encoding_positional", g.call.args[0])
            elif kind == "templated_ids":
                yield seen.smell("template_result_positional", g.call.args[0])
        if where in ("cuda", "map") and any(moved(seen, e) is False for e in given(g)):
            yield seen.smell("inputs_not_moved", g.call.node)
            yield seen.smell("placement", g.call.node, where)
    for call in seen.index.calls():
        if (
            not call.via
            and where == "cuda"
            and seen.index.kind(call.node) == "forward"
            and call.args
            and moved(seen, call.args[0]) is False
        ):
            yield seen.smell("inputs_not_moved", call.node)
            yield seen.smell("placement", call.node, where)
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in ("to", "cuda")
            and seen.index.kind(call.func.value) == "tokenizer"
            and not call.via
        ) and (
            isinstance(call.func.value, ast.Name | ast.Attribute)
            or seen.index.dotted(call.func.value.func if isinstance(call.func.value, ast.Call) else call.func).endswith(
                "from_pretrained"
            )
        ):
            yield seen.smell("tokenizer_to_device", call.node)


def moved(seen: Seen, node: ast.expr, depth: int = 8) -> bool | None:
    """Whether a tensor was moved to a device: None where it cannot be told."""
    if depth < 0:
        return None
    kind = seen.index.kind(node)
    match node:
        case ast.Call(func=func, keywords=keywords):
            if any(k.arg == "device" for k in keywords):
                return True
            if isinstance(func, ast.Attribute):
                if func.attr in ("to", "cuda"):
                    return True
                if seen.index.kind(func.value) == "tokenizer":
                    return False if any(k.arg == "return_tensors" for k in keywords) or kind == "ids" else None
                if seen.index.kind(func.value) in ("batch", "ids"):
                    return moved(seen, func.value, depth - 1)
            name = seen.index.dotted(func)
            if name in ("torch.tensor", "torch.LongTensor", "torch.as_tensor"):
                return False
            if (
                name in ("torch.cat", "torch.concat")
                and node.args
                and isinstance(node.args[0], ast.List | ast.Tuple)
                and node.args[0].elts
            ):
                return moved(seen, node.args[0].elts[0], depth - 1)
            if seen.index.kind(func) == "tokenizer":
                return False if any(k.arg == "return_tensors" for k in keywords) else None
            return None
        case ast.Name(id=name):
            rows = seen.index.find(name, node)
            if not rows or rows[0].how:
                return None
            if kind == "batch" and any(_moves_in_place(seen, n, name) for n in seen.index.nodes):
                return True
            return moved(seen, rows[0].value, depth - 1) if rows[0].index is None else None
        case ast.Attribute(value=value) | ast.Subscript(value=value) | ast.Await(value=value):
            return moved(seen, value, depth - 1) if kind in ("ids", "batch") else None
        case ast.DictComp():
            return True if any(isinstance(n, ast.Attribute) and n.attr in ("to", "cuda") for n in ast.walk(node)) else None
    return None


def _moves_in_place(seen: Seen, node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=n), attr="to" | "cuda")) if n == name:
            return True
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=n))]) if n == name:
            return True
    return False


def _streaming(seen: Seen) -> Iterator[Fact]:
    threaded = {seen.function_of(c.func) for c in seen.index.calls() if c.via} - {None}
    for g in _local(seen):
        streamer = g.keywords.get("streamer")
        if streamer is None:
            continue
        above = seen.index.parent.get(g.call.node)
        looped = isinstance(above, ast.For | ast.AsyncFor | ast.comprehension) and above.iter is g.call.node
        if not g.call.via and (looped or isinstance(above, ast.YieldFrom)):
            yield seen.smell("generate_iterated", g.call.node)
            continue
        home = seen.index.scope(g.call.node)
        in_lambda = any(isinstance(a, ast.Lambda) for a in seen.index.chain(g.call.node))
        made = streamer
        if isinstance(streamer, ast.Name):
            rows = seen.index.find(streamer.id, streamer)
            made = rows[0].value if rows else streamer
        built = isinstance(made, ast.Call) and seen.index.kind(made) == "streamer"
        if g.call.via or in_lambda or home in threaded or not built:
            continue
        loops = [
            n
            for n in (seen.index.own(home) if home else seen.index.nodes)
            if isinstance(n, ast.For) and seen.index.kind(n.iter) == "streamer"
        ]
        if any(loop.lineno > g.call.node.lineno for loop in loops):
            yield seen.smell("streamer_without_thread", g.call.node)


def _pools(seen: Seen) -> Iterator[Fact]:
    """Several threads that call generate on one model."""
    if any(
        isinstance(n, ast.Name | ast.Attribute)
        and seen.index.dotted(n).rsplit(".", 1)[-1] in ("Lock", "RLock", "Semaphore", "BoundedSemaphore", "CapacityLimiter")
        for n in seen.index.nodes
    ):
        return
    calls = {g.call.node for g in _local(seen)}
    many = [c for c in seen.index.calls() if c.name.rsplit(".", 1)[-1] == "ThreadPoolExecutor" and isinstance(n := seen.value(c.keywords, "max_workers") if "max_workers" in c.keywords else seen.index.const(c.args[0]) if c.args else None, int) and n > 1]  # fmt: skip
    if not many or not calls:
        return
    for call in seen.index.calls():
        over = seen.index.parent.get(call.node)
        handed = call.via == "partial" and isinstance(over, ast.Call) and seen.index.dotted(over.func).rsplit(".", 1)[-1]
        if (call.via != "executor" and handed not in ("submit", "map", "run_in_executor")) or call.name.endswith("to_thread"):
            continue
        function = seen.function_of(call.func)
        direct = (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "generate"
            and seen.index.kind(call.func.value) == "model"
        )
        if direct or (function is not None and any(seen.within(n, f) for n in calls for f in seen.reach(function))):
            yield seen.smell("thread_pool_generate", many[0].node)
            return


def _gradients(seen: Seen) -> Iterator[Fact]:
    if seen.trains() or not (seen.frameworks & {"torch", "transformers"} or seen.snippet):
        return
    for node in seen.index.nodes:
        if isinstance(node, ast.Call) and seen.index.dotted(node.func) in (
            "torch.set_grad_enabled",
            "torch._C._set_grad_enabled",
            "torch.autograd.set_grad_enabled",
        ):
            return
        if isinstance(node, ast.Attribute) and node.attr in ("requires_grad_", "requires_grad"):
            return
    for call in seen.index.calls():
        if call.via or seen.index.kind(call.node) != "forward" or _no_grad(seen, call.node):
            continue
        if not isinstance(call.func, ast.Name | ast.Attribute) or any(
            isinstance(a, ast.ClassDef) and any("Module" in ast.unparse(b) for b in a.bases)
            for a in seen.index.chain(call.node)
        ):
            continue
        yield seen.smell("forward_without_no_grad", call.node)


def _no_grad(seen: Seen, node: ast.AST, depth: int = 3) -> bool:
    for above in seen.index.chain(node):
        if isinstance(above, ast.With | ast.AsyncWith) and any(
            re.search(r"no_grad|inference_mode|set_grad_enabled", ast.unparse(i.context_expr)) for i in above.items
        ):
            return True
        if isinstance(above, FUNCTIONS):
            if any(re.search(r"no_grad|inference_mode", ast.unparse(d)) for d in above.decorator_list):
                return True
            callers = [n for n in seen.index.nodes if isinstance(n, ast.Call) and seen.function_of(n.func) is above]
            return bool(callers) and depth > 0 and all(_no_grad(seen, c, depth - 1) for c in callers)
    return False


def _per_token(seen: Seen) -> Iterator[Fact]:
    """Python work between two tokens: emptying the allocator's cache, or decoding the whole text again in a criterion."""
    for node in seen.index.nodes:
        match node:
            case ast.ClassDef(bases=bases) if any(
                re.search(r"StoppingCriteria|LogitsProcessor|LogitsWarper", ast.unparse(b)) for b in bases
            ):
                for n in ast.walk(node):
                    if (
                        isinstance(n, ast.Call)
                        and isinstance(n.func, ast.Attribute)
                        and n.func.attr in ("decode", "batch_decode")
                        and not any(isinstance(s, ast.Slice) for a in n.args for s in ast.walk(a))
                    ):
                        yield seen.smell("work_per_token", n)
            case ast.Call(func=func) if seen.index.dotted(func) in ("torch.cuda.empty_cache", "gc.collect"):
                loop = seen.index.inside(node, ast.For, ast.While)
                if (
                    isinstance(loop, ast.For | ast.While)
                    and any(isinstance(n, ast.Call) and seen.index.kind(n) == "forward" for n in ast.walk(loop))
                    and not _bigger_loop(loop)
                ) or (isinstance(loop, ast.For) and seen.index.kind(loop.iter) == "streamer"):
                    yield seen.smell("work_per_token", node)


def _bigger_loop(loop: ast.For | ast.While) -> bool:
    """A loop over a data set rather than over tokens."""
    text = ast.unparse(loop.iter) if isinstance(loop, ast.For) else ""
    return bool(re.search(r"loader|dataset|prompts|questions|files|batches|texts|samples|examples", text))
