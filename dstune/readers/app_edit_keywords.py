"""Edits of keywords on loads, generate calls and their helpers."""

from __future__ import annotations

import re

import libcst as cst

from dstune.catalog import load
from dstune.catalog.vocabulary import terms
from dstune.expr import Version
from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_sites import (
    Program,
    Site,
    add_keyword,
    drop_keyword,
    outermost,
    rename_keyword,
    set_at,
    site,
)  # fmt: skip
from dstune.readers.app_edit_tree import Edits, Tree, callee, constant, dotted, drop_statement, expression, text_of

_DTYPES = ("dtype", "torch_dtype")
_SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty", "min_p")
R1 = {"temperature": 0.6, "top_p": 0.95}
"""Sampling that the vendor of the R1 family recommends (deepseek-ai/DeepSeek-R1 README.md, usage recommendations)."""


def made(program: Program, edits: Edits) -> cst.Module | None:
    """The edited module; None where nothing was edited."""
    return edits.made(program.tree.module) if edits else None


def dtype_keyword(context: Context) -> str:
    """`dtype` from transformers 4.56 on, where `torch_dtype` warns; `torch_dtype` before and where the version is unknown: it works in all."""
    version = context.versions.get("transformers")
    return "dtype" if version and Version(version) >= Version("4.56") else "torch_dtype"


def set_dtype(program: Program, context: Context) -> cst.Module | None:
    """Weights in 16 bit: the checkpoint's own type ("auto"), or the one that the fix names for the card."""
    tree, edits = program.tree, Edits()
    wanted = str(
        context.settings.get("transformers.dtype") or context.settings.get("transformers.torch_dtype") or "auto"
    ).removeprefix("torch.")
    torch = tree.imported("torch")
    value = f"{torch}.{wanted}" if torch and wanted in ("float16", "bfloat16") else f'"{wanted}"'
    for call in [*program.loads, *(p for p in program.pipelines if not _has_model_object(program, p))]:
        where = site(tree, call)
        if where.has("quantization_config") or where.has("load_in_4bit") or where.has("load_in_8bit") or where.has("gguf_file"):
            continue
        given = next((d for d in _DTYPES if where.has(d)), "")
        nested = where.get("model_kwargs")
        if nested is not None:
            if not isinstance(nested.value, cst.Dict):
                return None
            where.holders.append(nested.value)
            given = next((d for d in _DTYPES if where.has(d)), "")
        if _elsewhere(tree, where):
            continue
        if given:
            found = where.get(given)
            if wanted == "auto" and found is not None and re.search(r"float16|half|auto", tree.code(found.value)):
                continue  # the other model's
            set_at(tree, edits, where, given, value)
        elif not where.closed:
            return None
        else:
            add_keyword(edits, where.holders[0], dtype_keyword(context), value)
        edits_float(tree, edits, call)
    return made(program, edits)


def _elsewhere(tree: Tree, where: Site) -> bool:
    """Whether a load says that its model stays on the CPU, which computes in float32."""
    found = where.get("device_map")
    if found is not None:
        return text_of(found.value) == "cpu"
    return bool(re.search(r"\.cpu\(\)|\.to\(\s*[\"']cpu[\"']", tree.code(outermost(tree, where.call))))


def edits_float(tree: Tree, edits: Edits, load: cst.Call) -> None:
    """Takes `.float()` off the chain of a load: it would undo the 16 bit."""
    here: cst.BaseExpression = load
    whole = outermost(tree, load)
    while here is not whole:
        attribute = tree.parent(here)
        over = tree.parent(attribute) if attribute is not None else None
        assert isinstance(attribute, cst.Attribute)
        assert isinstance(over, cst.Call)
        if attribute.attr.value == "float":
            edits.add(over, lambda n: n.func.value)
        here = over


def _has_model_object(program: Program, call: cst.Call) -> bool:
    where = site(program.tree, call)
    found = where.get("model")
    node = found.value if found else next((a.value for a in where.positional()[1:2]), None)
    return node is not None and text_of(node) is None and (dotted(node) in program.models or isinstance(node, cst.Call))


def drop_use_cache_false(program: Program, context: Context) -> cst.Module | None:
    """`use_cache=False` on generate, load and generation config, and as a statement on their config."""
    tree, edits = program.tree, Edits()
    sites = [*program.generates, *program.configs(), *(site(tree, c) for c in program.loads)]
    seen: set[cst.CSTNode] = set()
    for where in sites:
        found = where.get("use_cache")
        if found is not None and dotted(found.value) == "False" and found.element not in seen:
            seen.add(found.element)
            drop_keyword(edits, found)
        for assign in where.set_later("use_cache"):
            if dotted(assign.value) == "False" and assign not in seen:
                seen.add(assign)
                drop_statement(tree, edits, assign)
    for assign in tree.find(cst.Assign):
        name = dotted(assign.targets[0].target)
        if re.search(r"\.(generation_)?config\.use_cache$", name) and dotted(assign.value) == "False":
            drop_statement(tree, edits, assign)
    return made(program, edits)


def drop_max_length(program: Program, context: Context) -> cst.Module | None:
    """`max_length` beside `max_new_tokens` goes; alone it becomes `max_new_tokens`, as it counted the prompt too."""
    tree, edits = program.tree, Edits()
    seen: set[cst.CSTNode] = set()
    for where in [*program.generates, *program.configs()]:
        found, beside = where.get("max_length"), where.has("max_new_tokens")
        for assign in where.set_later("max_length"):
            if not beside:
                return None
            if assign not in seen:
                seen.add(assign)
                drop_statement(tree, edits, assign)
        if found is None or found.element in seen:
            continue
        seen.add(found.element)
        if beside:
            drop_keyword(edits, found)
        elif where.closed:
            rename_keyword(edits, found, "max_new_tokens")
    return made(program, edits)


def set_max_new_tokens(program: Program, context: Context) -> cst.Module | None:
    """`max_new_tokens` of each generate call to the fix's number; a `max_length` beside it goes."""
    number = context.settings.get("generate.max_new_tokens")
    if not isinstance(number, int | float):
        return None
    return _set_generate(program, {"max_new_tokens": str(int(number))}, ("max_length",))


def _set_generate(program: Program, values: dict[str, str], drop: tuple[str, ...] = ()) -> cst.Module | None:
    tree, edits = program.tree, Edits()
    done: set[tuple[int, str]] = set()
    for where in program.generates:
        if where.has("generation_config"):
            continue
        for name, value in values.items():
            if (id(where.holders[-1]), name) in done and len(where.holders) > 1:
                continue
            done.add((id(where.holders[-1]), name))
            if set_at(tree, edits, where, name, value) is None:
                return None
        for name in drop:
            found = where.get(name)
            if found is not None:
                drop_keyword(edits, found)
    for where in program.configs():
        for name, value in values.items():
            if set_at(tree, edits, where, name, value) is None:
                return None
    return made(program, edits)


def set_sampling(program: Program, context: Context) -> cst.Module | None:
    """Sampling of the fix (`generate.temperature`, …) with `do_sample=True`; a value that the user computes (a slider) stays.

    Without values in the fix: `do_sample=True` where sampling keywords stand without it.
    """
    wanted = {k.partition(".")[2]: v for k, v in context.settings.items() if k.startswith("generate.")}
    tree, edits = program.tree, Edits()
    for where in [*program.generates, *program.configs()]:
        if where.has("generation_config"):
            continue
        values = {k: v for k, v in wanted.items() if k in _SAMPLING}
        if not values and not wanted.get("do_sample"):
            if any(where.has(k) for k in _SAMPLING) and not where.has("do_sample"):
                values = {}
            else:
                continue
        for name, value in values.items():
            found = where.get(name)
            if found is not None and not constant(found.value):
                continue
            if set_at(tree, edits, where, name, str(value)) is None:
                return None
        if (
            wanted.get("do_sample") is not False
            and set_at(tree, edits, where, "do_sample", "True") is None
            and not where.has("do_sample")
        ):
            return None
    return made(program, edits)


def attn_sdpa(program: Program, context: Context) -> cst.Module | None:
    """FlashAttention-2 → torch's own scaled dot product attention, which needs no package and every card has."""
    tree, edits = program.tree, Edits()
    for call in [*program.loads, *program.pipelines]:
        where = site(tree, call)
        nested = where.get("model_kwargs")
        if nested is not None and isinstance(nested.value, cst.Dict):
            where.holders.append(nested.value)
        old = where.get("use_flash_attention_2")
        if old is not None:
            if where.has("attn_implementation"):
                drop_keyword(edits, old)
            else:
                rename_keyword(edits, old, "attn_implementation")
                edits.put(old.value, expression('"sdpa"'))
        found = where.get("attn_implementation")
        if (
            found is not None
            and text_of(found.value) != "sdpa"
            and set_at(tree, edits, where, "attn_implementation", '"sdpa"') is None
        ):
            return None
    return made(program, edits)


def add_skip_special_tokens(program: Program, context: Context) -> cst.Module | None:
    """`skip_special_tokens=True` on decodes of generated tokens and on streamers."""
    tree, edits = program.tree, Edits()
    for call in tree.calls:
        left, name = callee(call)
        decode = name in ("decode", "batch_decode") and (
            left in program.tokenizers or "tok" in left.lower() or "processor" in left.lower()
        )
        if not decode and name not in ("TextIteratorStreamer", "TextStreamer"):
            continue
        where = site(tree, call)
        found = where.get("skip_special_tokens")
        if found is None and where.closed:
            add_keyword(edits, call, "skip_special_tokens", "True")
        elif found is not None and dotted(found.value) == "False":
            edits.put(found.value, expression("True"))
    return made(program, edits)


def padding_left(program: Program, context: Context) -> cst.Module | None:
    """Prompts of a batch end at the same place: the tokenizer pads on the left."""
    tree, edits = program.tree, Edits()
    for assign in tree.find(cst.Assign):
        if dotted(assign.targets[0].target).endswith(".padding_side"):
            if text_of(assign.value) == "left":
                return None
            if text_of(assign.value) == "right":
                edits.put(assign.value, expression('"left"'))
            else:
                return None
    if edits:
        return made(program, edits)
    for call in program.tokenizer_loads:
        where = site(tree, call)
        if set_at(tree, edits, where, "padding_side", '"left"') is None:
            return None
    return made(program, edits)


def callee_name(call: cst.Call) -> str:
    """The last name of what is called, also on a chain."""
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func)


def set_keyword(program: Program, key: str, value: str | None) -> cst.Module | None:
    """A setting (`generate.top_k`, `gradio.server_name`) as a keyword of its call, as its engine's recipe declares; None removes it.

    Changed where it stands; where it stands nowhere, added to the first kind of call that takes it.
    """
    term = terms().get(key)
    if term is None or "keyword" not in term.spec:
        return None
    names = term.spec["keyword"] if isinstance(term.spec["keyword"], list) else [term.spec["keyword"]]
    kinds = [
        *term.spec.get("call", ()),
        *(load("engines")[term.engine].get("engine", {}).get("keyword_call", ()) if term.engine else ()),
    ]
    tree, edits = program.tree, Edits()
    groups = [sites for kind in kinds if (sites := sites_of(program, kind))]
    if "from_pretrained" in kinds and names[0] in ("trust_remote_code", "local_files_only"):
        groups.append(sites_of(program, "tokenizer"))
    if value == "False" and term.spec.get("default") is False:
        value = None  # what is off by itself need not be written
    given = [(where, name) for sites in groups for where in sites for name in names if where.has(name)]
    seen: set[cst.CSTNode] = set()
    for where, name in given:
        if where.call in seen:
            continue
        seen.add(where.call)
        found = where.get(name)
        if value is None:
            if found is None:
                return None
            drop_keyword(edits, found)
        elif set_at(tree, edits, where, name, value) is None:
            return None
    if not given and value is not None and groups:
        for where in groups[0]:
            if set_at(tree, edits, where, names[0], value) is None:
                return None
    return made(program, edits)


def sites_of(program: Program, kind: str) -> list[Site]:
    """The calls of a kind as the engines' recipes name them."""
    tree = program.tree
    groups = {"from_pretrained": program.loads, "pipeline": program.pipelines, "tokenizer": program.tokenizer_loads}
    if kind in groups:
        return [site(tree, c) for c in groups[kind]]
    pipes = [s for s in program.generates if dotted(s.call.func) in program.pipes]
    if kind in ("generate", "pipe"):
        return pipes if kind == "pipe" else [s for s in program.generates if s not in pipes]
    if kind == "OpenAI":
        return [site(tree, c) for c in tree.calls if callee_name(c) in ("OpenAI", "AsyncOpenAI")]
    if kind == "completion":
        return [site(tree, c) for c in tree.calls if callee_name(c) == "create" and "completions" in callee(c)[0]]
    return [
        site(tree, c)
        for c in tree.calls
        if callee_name(c) == kind.rpartition(".")[2] and kind not in ("event", "http", "tokenize", "llama")
    ]


TABLE = {
    "set-dtype": set_dtype,
    "drop-use-cache-false": drop_use_cache_false,
    "drop-max-length": drop_max_length,
    "set-max-new-tokens": set_max_new_tokens,
    "set-sampling": set_sampling,
    "attn-sdpa": attn_sdpa,
    "add-skip-special-tokens": add_skip_special_tokens,
    "padding-left": padding_left,
}
