"""In which type a program loads its weights, and whether it means the CPU."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dstune.model import Fact
from dstune.readers.app_seen import Load, Seen

_FLOAT32 = ("float32", "float", "torch.float32", "fp32")


def dtypes(seen: Seen) -> Iterator[Fact]:
    """`app.load_float32` and `app.load_without_dtype`."""
    if seen.trains():  # float32 is what mixed precision trains
        return
    for load in seen.loads:
        if not load.native or _kept_on_cpu(seen, load.call.node):
            continue
        given = [w for w in ("dtype", "torch_dtype") if w in load.keywords]
        if given:
            value = seen.index.const(load.keywords[given[0]])
            if isinstance(value, str) and value.removeprefix("torch.") in _FLOAT32 and not on_cpu(seen):
                yield seen.smell("load_float32", load.keywords[given[0]])
            continue
        if load.open_ or (not load.model and load.call.node.args and seen.index.kind(load.call.node.args[0]) == "config"):
            continue
        if (
            {"quantization_config", "load_in_4bit", "load_in_8bit", "gguf_file"} & set(load.keywords)
            or _halved(seen)
            or on_cpu(seen)
        ):
            continue
        if re.search(r"awq|gptq|bnb|int4|int8|fp8|4bit|8bit", load.model, re.I) or "FastLanguageModel" in load.call.name:
            continue
        yield seen.smell("load_without_dtype", load.call.node)


_CARD = re.compile(r"(?i)cuda|\bmps\b|\bxpu\b|\bnpu\b|gpu")
_HALF = ("float16", "half")


def moved(seen: Seen) -> Iterator[Fact]:
    """`app.half_on_cpu` (float16 in a program that knows only the CPU) and `app.quantized_model_moved`."""
    kept = on_cpu(seen) or any(_kept_on_cpu(seen, load.call.node) for load in seen.loads)
    placed = any(seen.value(load.keywords, "device_map") not in (None, "cpu") for load in seen.loads)
    if kept and not placed and not _stores(seen) and not any(_CARD.search(name) for name in seen.names()):
        for load in seen.loads:
            given = next((load.keywords[w] for w in ("dtype", "torch_dtype") if w in load.keywords), None)
            if given is not None and str(seen.index.const(given)).removeprefix("torch.") in _HALF:
                yield seen.smell("half_on_cpu", given)
        for node in seen.index.nodes:
            match node:
                case ast.Call(func=ast.Attribute(attr="half", value=owner)) if seen.index.kind(owner) in ("model", "encoder"):
                    yield seen.smell("half_on_cpu", node)
    bits = {b for load in seen.loads for b in ("8bit", "4bit") if _loads_in(seen, load, b)}
    if len(bits) == 1 and len(seen.loads) == 1:
        for node in seen.index.nodes:
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr not in ("to", "cuda", "half", "float") or seen.index.kind(node.func.value) != "model":
                continue
            values = [*node.args, *(k.value for k in node.keywords)]
            cast = node.func.attr in ("half", "float") or any(
                str(seen.index.const(v)).removeprefix("torch.") in (*_HALF, *_FLOAT32, "bfloat16") for v in values
            )
            yield seen.smell("quantized_model_moved", node, "cast" if cast else min(bits))


def _stores(seen: Seen) -> bool:
    """Whether the model is only merged, converted or saved: nothing is computed in its type but that."""
    kept = any(isinstance(n, ast.Attribute) and n.attr in ("save_pretrained", "push_to_hub") for n in seen.index.nodes)
    return kept and not any(g.how != "foreign" for g in seen.generations)


def _loads_in(seen: Seen, load: Load, bits: str) -> bool:
    """Whether bitsandbytes quantises this load to so many bits."""
    words, config = load.keywords, load.keywords.get("quantization_config")
    if isinstance(config, ast.Name):
        rows = seen.index.find(config.id, config)
        config = rows[0].value if rows and not rows[0].how else None
    if isinstance(config, ast.Call) and seen.index.dotted(config.func).endswith("BitsAndBytesConfig"):
        words = seen.index.keywords(config)[0]
    return seen.value(words, f"load_in_{bits}") is True


def _kept_on_cpu(seen: Seen, node: ast.Call) -> bool:
    """Whether this load says itself that the model stays on the CPU: `.to("cpu")` on it, `device_map="cpu"` in it."""
    keywords, _ = seen.index.keywords(node)
    if "device_map" in keywords:
        return _is_cpu(seen, keywords["device_map"])
    here: ast.AST = node
    while isinstance(up := seen.index.parent.get(here), ast.Attribute) and isinstance(
        over := seen.index.parent.get(up), ast.Call
    ):
        if up.attr == "cpu" or (up.attr == "to" and over.args and seen.index.const(over.args[0]) == "cpu"):
            return True
        here = over
    return False


def _is_cpu(seen: Seen, value: ast.expr) -> bool:
    """`"cpu"`, or a map whose every part is there: `{"": "cpu"}`."""
    if isinstance(value, ast.Dict) and value.values:
        return all(seen.index.const(v) == "cpu" for v in value.values)
    return bool(seen.index.const(value) == "cpu")


def _halved(seen: Seen) -> bool:
    """`.half()` or `.to(torch.float16)` afterwards, or a default type set before."""
    for node in seen.index.nodes:
        if isinstance(node, ast.Call):
            name = seen.index.dotted(node.func)
            if name == "torch.set_default_dtype":
                return True
            if (
                isinstance(node.func, ast.Attribute)
                and node.func.attr in ("half", "bfloat16")
                and seen.index.kind(node.func.value) in ("model", "encoder")
            ):
                return True
            if isinstance(node.func, ast.Attribute) and node.func.attr == "to" and seen.index.kind(node.func.value) == "model":
                values = [*node.args, *(k.value for k in node.keywords if k.arg == "dtype")]
                if any(str(seen.index.const(v)).removeprefix("torch.") in ("float16", "bfloat16", "half") for v in values):
                    return True
    return False


def on_cpu(seen: Seen) -> bool:
    """Whether the program says that it means the CPU."""
    for node in seen.index.nodes:
        match node:
            case ast.keyword(arg="device" | "device_map", value=value) if seen.index.const(value) == -1 or _is_cpu(seen, value):
                return True
            case ast.Call(func=ast.Attribute(attr="to" | "device"), args=[first, *_]) if (
                seen.index.const(first) == "cpu" and seen.index.kind(node) == "model"
            ):
                return True
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if (
                re.fullmatch(r"device|DEVICE", name) and seen.index.const(value) == "cpu"
            ):
                return True
            case ast.Attribute(attr="set_num_threads"):
                return True
    return False
