"""What is notable in how a program loads and places its model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from dstune.model import Fact
from dstune.readers.app_dtype import dtypes, moved, on_cpu
from dstune.readers.app_index import FUNCTIONS, MISSING
from dstune.readers.app_models import is_local, known
from dstune.readers.app_seen import Load, Seen

_GPU = re.compile(r"\bcuda|\bgpu|device_map|nvidia|\bxpu|\bmps|\bhip\b|rocm", re.I)
_CPU = re.compile(r"\bcpu\b", re.I)
_CACHE = re.compile(r"cache|singleton|memo|lazy|once", re.I)


def smells(seen: Seen) -> Iterator[Fact]:
    """`app.*` facts about loading."""
    yield from _models(seen)
    yield from dtypes(seen)
    yield from moved(seen)
    yield from _placement(seen)
    yield from _by_hand(seen)
    yield from _when_loaded(seen)
    yield from _compiled(seen)
    yield from _tokens(seen)


def _models(seen: Seen) -> Iterator[Fact]:
    for load in seen.loads:
        if not load.model:
            continue
        what = known(load.model)
        if what.misspelled and not _modelscope(seen):
            at = load.call.args[0] if load.call.args else load.call.node
            yield seen.smell("model_id_meant", at, what.misspelled)
            yield seen.smell("model_id_slip_sure", at, what.sure)
        if seen.value(load.keywords, "trust_remote_code") is True and _supported(load.model):
            yield seen.smell("trust_remote_code_needless", load.keywords["trust_remote_code"])
    if seen.what is not None:
        what = seen.what
        where: ast.AST | int = seen.loads[0].call.node if seen.loads else 1
        yield seen.smell("reasoning_model", where, what.reasoning)
        if what.chat is not None:
            yield seen.smell("chat_model", where, what.chat)
        if what.samples is not None:
            yield seen.smell("model_samples_itself", where, what.samples)


def _modelscope(seen: Seen) -> bool:
    return "modelscope" in seen.frameworks


def _supported(model: str) -> bool:
    """Whether transformers itself has the architecture of a catalogue model (MiniCPM, InternLM, ChatGLM and the first Qwen ship code)."""
    from dstune.catalog import models
    from dstune.errors import DstuneError

    try:
        row = models.find(model if not is_local(model) else known(model).name)
    except (DstuneError, KeyError, ValueError):
        return False
    return row.architecture in (
        "Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "GemmaForCausalLM", "Gemma2ForCausalLM", "OPTForCausalLM",
    ) and row.short.lower() in known(model).name.lower()  # fmt: skip


def placed(seen: Seen) -> str:
    """How the model gets onto the GPU: "" (it does not), "map" (device_map), "cuda" (moved), "open" (cannot be told)."""
    for load in seen.loads:
        if load.open_:
            return "open"
        if not load.native:
            return "open"
        where = seen.index.const(load.keywords["device_map"]) if "device_map" in load.keywords else None
        if where is not None and where != "cpu":
            return "cuda" if str(where).startswith("cuda") or where == 0 else "open" if "peft" in seen.frameworks else "map"
        if load.how == "pipeline":
            device = seen.index.const(load.keywords["device"]) if "device" in load.keywords else None
            return "cuda" if device not in (None, -1, "cpu") else "open"
        if {"quantization_config", "load_in_4bit", "load_in_8bit"} & set(load.keywords) or re.search(
            r"awq|gptq|bnb|4bit", load.model, re.I
        ):
            return "map"
        if "FastLanguageModel" in load.call.name or "from_quantized" in load.call.name:
            return "map"
    for node in seen.index.nodes:
        if isinstance(node, ast.With) and any(_on_device(seen, item.context_expr) for item in node.items):
            return "open"
        if not isinstance(node, ast.Call):
            continue
        name = seen.index.dotted(node.func)
        if name in ("torch.set_default_device", "accelerate.dispatch_model", "dispatch_model", "accelerate.load_checkpoint_and_dispatch") or name.endswith((".prepare", "init_inference", "DataParallel", "FullyShardedDataParallel", "get_peft_model")):  # fmt: skip
            return "open"
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in ("to", "cuda")
            and seen.index.kind(node.func.value) in ("model", "seq2seq", "encoder")
        ):
            if node.func.attr == "cuda":
                return "cuda"
            values = [*node.args, *(k.value for k in node.keywords if k.arg == "device")]
            if any(
                seen.index.const(v) != "cpu" and not str(seen.index.const(v)).startswith(("float", "bfloat", "half"))
                for v in values
            ):
                return "cuda"
    return ""


def _on_device(seen: Seen, context: ast.expr) -> bool:
    """`with torch.device("cuda"):`: what is made inside is made there."""
    return (
        isinstance(context, ast.Call)
        and seen.index.dotted(context.func) == "torch.device"
        and not (context.args and str(seen.index.const(context.args[0])).startswith("cpu"))
    )


def _placement(seen: Seen) -> Iterator[Fact]:
    loads = [load for load in seen.loads if load.how == "from_pretrained" and load.native]
    generates = [g for g in seen.generations if g.how == "generate"]
    if not loads or placed(seen) or on_cpu(seen):
        return
    if _CPU.search(seen.source.comments) or any(
        isinstance(n, ast.Constant) and n.value == "cpu" and not _where_no_card_is(seen, n) for n in seen.index.nodes
    ):
        return
    mentions = any(
        isinstance(n, ast.Constant | ast.Name | ast.Attribute)
        and _GPU.search(
            str(getattr(n, "value", "") if isinstance(n, ast.Constant) else getattr(n, "id", "") or getattr(n, "attr", ""))
        )
        for n in seen.index.nodes
    )
    large = re.search(r"(?i)(?<![\d.])(?:[1-9]\d*(?:\.\d+)?)b\b", " ".join(load.model for load in loads)) or not any(
        load.model for load in loads
    )
    if generates and (mentions or large or seen.snippet):
        yield seen.smell("model_never_on_gpu", loads[0].call.node)
        if mentions:
            yield seen.smell("gpu_meant", loads[0].call.node)


def _where_no_card_is(seen: Seen, node: ast.Constant) -> bool:
    """Whether this "cpu" is the other branch of `"cuda" if torch.cuda.is_available() else "cpu"`."""
    choice = seen.index.inside(node, ast.IfExp)
    return isinstance(choice, ast.IfExp) and "cuda" in ast.unparse(choice)


def _by_hand(seen: Seen) -> Iterator[Fact]:
    """Single layers moved to devices, `getattr(layers, "28")`, a slice of layers called."""
    for node in seen.index.nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="to" | "cuda" | "cpu")) if _is_layer(seen, value):
                yield seen.smell("layers_moved_by_hand", node)
            case ast.Call(func=ast.Name(id="getattr"), args=[value, key, *_]) if (
                _is_layers(value) and str(seen.index.const(key)).isdigit()
            ):
                yield seen.smell("layers_moved_by_hand", node)
            case ast.Call(func=ast.Subscript(value=value, slice=ast.Slice())) if _is_layers(value):
                yield seen.smell("layers_moved_by_hand", node)


def _is_layers(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ("layers", "h", "blocks")
        and isinstance(node.value, ast.Attribute | ast.Name)
    )


def _is_layer(seen: Seen, node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return _is_layers(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        return bool(node.args) and _is_layers(node.args[0])
    if isinstance(node, ast.Name):
        for row in seen.index.find(node.id, node):
            it = row.value
            if isinstance(it, ast.Call) and isinstance(it.func, ast.Name) and it.func.id == "enumerate" and it.args:
                it = it.args[0]
            if row.how == "iter" and (_is_layers(it) or (isinstance(it, ast.Subscript) and _is_layers(it.value))):
                return True
            if row.how == "" and _is_layer(seen, row.value):
                return True
    return False


def _when_loaded(seen: Seen) -> Iterator[Fact]:
    """Loads inside handlers, per rerun of a page, per worker; an old model kept while the next one loads."""
    if "streamlit" in seen.frameworks:
        yield from _reloaded_page(seen)
        return
    generating = {g.call.node for g in seen.generations}
    for handler in seen.handlers:
        reach = seen.reach(handler.function)
        answers = any(seen.within(n, f) or n is f for n in generating for f in reach) or any(
            isinstance(n, ast.Lambda) for n in reach[1:]
        )
        for load in seen.loads:
            home = next((f for f in reach if seen.within(load.call.node, f)), None)
            if home is None:
                continue
            if guarded(seen, load.call.node, home, reach):
                if _swaps(seen, load, home):
                    yield seen.smell("old_model_kept", load.call.node)
                continue
            if answers or seen.snippet:
                yield seen.smell("model_loaded_in_handler", load.call.node)
            elif _swaps(seen, load, home):
                yield seen.smell("old_model_kept", load.call.node)
    yield from _replaced(seen)
    yield from _workers(seen)


def _replaced(seen: Seen) -> Iterator[Fact]:
    """The same name loaded again, or loads in a loop, with nothing let go in between: two models at the peak."""
    if seen.source.notebook:  # cells are run apart, often after a restart
        return
    last: dict[tuple[ast.AST | None, str], ast.stmt] = {}
    for load in seen.loads:
        statement = next((a for a in seen.index.chain(load.call.node) if isinstance(a, ast.stmt)), None)
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        scope, name = seen.index.scope(statement), statement.targets[0].id
        before = last.get((scope, name))
        loop = seen.index.inside(statement, ast.For, ast.While)
        branch = seen.index.inside(statement, ast.If, ast.Try)
        rounds = isinstance(loop, ast.For | ast.While) and not _released(
            seen, scope, name, loop.lineno, loop.end_lineno or 1 << 30
        )
        rounds = rounds and not _kept(loop, name)
        again = (
            before is not None and before is not statement and not _released(seen, scope, name, before.lineno, statement.lineno)
        )
        if branch is None and (rounds or again):
            yield seen.smell("old_model_kept", load.call.node)
        if branch is None:
            last[(scope, name)] = statement


def _kept(loop: ast.AST | None, name: str) -> bool:
    """Whether each round of a loop puts its model aside on purpose: `models[key] = model`, `models.append(model)`."""
    for node in ast.walk(loop) if loop is not None else ():
        match node:
            case ast.Call(func=ast.Attribute(attr="append" | "add"), args=[ast.Name(id=n)]) if n == name:
                return True
            case ast.Assign(targets=[target], value=value):
                pairs = (
                    zip(target.elts, value.elts, strict=False)
                    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
                    else [(target, value)]
                )
                if any(isinstance(t, ast.Subscript) and isinstance(v, ast.Name) and v.id == name for t, v in pairs):
                    return True
    return False


def _released(seen: Seen, scope: ast.AST | None, name: str, first: int, last: int) -> bool:
    """Whether a name is let go between two lines."""
    for node in seen.index.own(scope) if scope else seen.index.nodes:
        if not first <= getattr(node, "lineno", 0) <= last:
            continue
        if isinstance(node, ast.Delete) and any(name in ast.unparse(t) for t in node.targets):
            return True
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None:
            return True
        if isinstance(node, ast.Return | ast.Break):
            return True
        if isinstance(node, ast.Call) and re.search(r"release|unload|free|cleanup|cpu$", seen.index.dotted(node.func)):
            return True
    return False


def guarded(seen: Seen, node: ast.AST, home: ast.AST, reach: list[ast.AST]) -> bool:
    """Whether the load happens once: behind a test, a cache decorator, or an early return."""
    if isinstance(home, FUNCTIONS) and any(
        _CACHE.search(seen.index.dotted(d.func if isinstance(d, ast.Call) else d)) for d in home.decorator_list
    ):
        return True
    for above in seen.index.chain(node):
        if isinstance(above, ast.If | ast.IfExp | ast.ExceptHandler | ast.BoolOp):
            return True
        if above is home:
            break
    own = [n for n in seen.index.own(home) if isinstance(n, ast.If) and n.lineno < getattr(node, "lineno", 0)]
    if any(isinstance(s, ast.Return | ast.Raise) for n in own for s in n.body if isinstance(s, ast.Return)):
        return True
    name = getattr(home, "name", "")
    if home is not reach[0]:
        sites = [
            n
            for f in reach
            for n in (ast.walk(f) if isinstance(f, ast.Lambda) else seen.index.own(f))
            if isinstance(n, ast.Call) and seen.function_of(n.func) is home
        ]
        if sites and all(
            any(isinstance(a, ast.If | ast.IfExp | ast.BoolOp) for a in seen.index.chain(s) if not isinstance(a, FUNCTIONS))
            and _if_above(seen, s)
            for s in sites
        ):
            return True
        if not sites and name:
            return True
    return False


def _if_above(seen: Seen, node: ast.AST) -> bool:
    for above in seen.index.chain(node):
        if isinstance(above, FUNCTIONS):
            return False
        if isinstance(above, ast.If | ast.IfExp | ast.BoolOp):
            return True
    return False


def _swaps(seen: Seen, load: Load, home: ast.AST) -> bool:
    """A load into a name that outlives the function, with nothing let go before."""
    above: ast.AST = load.call.node
    for above in seen.index.chain(load.call.node):
        if isinstance(above, ast.Assign):
            break
    if not isinstance(above, ast.Assign):
        return False
    target = above.targets[0]
    globals_ = seen.index.globals.get(home, set())
    if not (isinstance(target, ast.Name) and target.id in globals_) and not (isinstance(target, ast.Attribute)):
        return False
    for node in seen.index.own(home):
        row = getattr(node, "lineno", 1 << 30)
        if row >= above.lineno:
            continue
        if isinstance(node, ast.Delete) or (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None
        ):
            return False
        if isinstance(node, ast.Call) and re.search(
            r"empty_cache|collect|unload|release|free|clear|cleanup|close|dispose|\bcpu$", seen.index.dotted(node.func)
        ):
            return False
    tests = [n for n in seen.index.chain(load.call.node) if isinstance(n, ast.If)]
    return not any(isinstance(c, ast.Constant) and c.value is None for t in tests for c in ast.walk(t.test)) and not any(
        isinstance(u, ast.UnaryOp) and isinstance(u.op, ast.Not) for t in tests for u in ast.walk(t.test)
    )


def _reloaded_page(seen: Seen) -> Iterator[Fact]:
    for load in seen.loads:
        home = seen.index.scope(load.call.node)
        names = [seen.index.dotted(d.func if isinstance(d, ast.Call) else d) for d in getattr(home, "decorator_list", ())]
        if any(_CACHE.search(n) for n in names):
            continue
        if any(isinstance(a, ast.If) and "session_state" in ast.unparse(a.test) for a in seen.index.chain(load.call.node)):
            continue
        if isinstance(home, FUNCTIONS):
            callers = [n for n in seen.index.nodes if isinstance(n, ast.Call) and seen.function_of(n.func) is home]
            if callers and all(_page_cached(seen, c) for c in callers):
                continue
        yield seen.smell("model_loaded_per_rerun", load.call.node)


def _page_cached(seen: Seen, call: ast.AST) -> bool:
    if any(isinstance(a, ast.If) and "session_state" in ast.unparse(a.test) for a in seen.index.chain(call)):
        return True
    home = seen.index.scope(call)
    return isinstance(home, FUNCTIONS) and any(
        _CACHE.search(seen.index.dotted(d.func if isinstance(d, ast.Call) else d)) for d in home.decorator_list
    )


def _workers(seen: Seen) -> Iterator[Fact]:
    if seen.client_only:
        return
    for call in seen.index.calls():
        if call.name.endswith(("uvicorn.run", "uvicorn.Config", ".app.run", "serve")) or call.name in ("uvicorn.run",):
            count = seen.value(call.keywords, "workers", "processes")
            if isinstance(count, str) and count.isdigit():  # what the environment gives where it is silent
                count = int(count)
            elif count is MISSING and "cpu_count()" in ast.unparse(call.keywords.get("workers", call.node)):
                count = 2  # or more
            if isinstance(count, int) and count > 1 and (seen.loads or seen.snippet):
                yield seen.smell("workers", call.keywords.get("workers", call.node), count)


def _compiled(seen: Seen) -> Iterator[Fact]:
    """torch.compile of the module whose generate is called: generate runs the original's forward."""
    compiled = [c for c in seen.index.calls() if c.name == "torch.compile" and c.args and not c.via]
    if any(isinstance(c.args[0], ast.Attribute) and c.args[0].attr == "forward" for c in compiled):
        return
    generates = any(g.how in ("generate", "pipe") for g in seen.generations)
    for call in compiled:
        if seen.index.kind(call.args[0]) == "model" and generates:
            yield seen.smell("compile_not_reached", call.node)


def _tokens(seen: Seen) -> Iterator[Fact]:
    """A secret written into the program. The text of the line is redacted by `shown`."""
    for node in seen.constants():
        if re.fullmatch(
            r"(?:hf_[A-Za-z0-9]{20,}|sk-(?:proj-)?[A-Za-z0-9_-]{20,}|ms-[0-9a-f-]{30,}|(?:ghp|gsk)_[A-Za-z0-9]{30,}|AIza[\w-]{35}|nvapi-[\w-]{40,})",
            str(node.value),
        ) and not re.search(r"(?i)x{6}|your|example|\.\.\.|0{8}|12345", str(node.value)):
            yield seen.smell("secret_in_source", node)


def constant(seen: Seen, keywords: dict[str, ast.expr], *names: str) -> Any:
    """`Seen.value` with `MISSING` as None."""
    value = seen.value(keywords, *names)
    return None if value is MISSING else value
