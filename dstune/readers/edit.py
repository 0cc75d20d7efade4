"""One remedy × one of the user's files → the file's new text. Knows no disk."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping

from dstune.catalog.vocabulary import Term, terms, to_number
from dstune.errors import RecipeError
from dstune.expr import parse
from dstune.model import Document, Evidence, Fix, Value, family_of
from dstune.readers import READERS, app_edit, text_edit
from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_notebook import in_cells, is_notebook, with_magics

CODE = frozenset(("transformers", "tokenizer", "generate", "gradio", "client", "app"))
"""Families of settings that stand in programs."""
PINNED = ("config", "command", "dockerfile")
"""Kinds of files in which packages are listed."""
_BY_EDIT = {
    "transformers.dtype": "set-dtype", "generate.max_new_tokens": "set-max-new-tokens", "generate.temperature": "set-sampling",
    "generate.top_p": "set-sampling", "generate.do_sample": "set-sampling", "gradio.queue_max_size": "queue-method",
    "gradio.default_concurrency_limit": "queue-method", "transformers.device_map": "device-map-auto", "tokenizer.padding_side": "padding-left",
}  # fmt: skip


_TAKEN = {
    "set-dtype": ("transformers.dtype",), "set-max-new-tokens": ("generate.max_new_tokens",),
    "set-sampling": ("generate.temperature", "generate.top_p", "generate.top_k", "generate.do_sample", "generate.repetition_penalty"),
    "queue-method": ("gradio.queue_max_size", "gradio.default_concurrency_limit"), "attn-sdpa": ("transformers.attn_implementation",),
    "padding-left": ("tokenizer.padding_side",), "device-map-auto": ("transformers.device_map",), "drop-use-cache-false": ("generate.use_cache",),
    "drop-compile": ("generate.cache_implementation",),
    "cap-history": ("app.history_turns",),
}  # fmt: skip
"""Settings that an edit writes itself. A static cache is left to a person: transformers compiles its decode step, and CUDA graphs assert
in any thread but the one that captured them, which is where a web handler runs."""


class Uncomputed(Exception):
    """A value of a fix that needs a fact which nobody read."""


def values_of(fix: Fix) -> dict[str, Value]:
    """The settings of a fix with values of their declared types. Raises `Uncomputed`."""
    return {key: _value(terms()[key], text) for key, text in fix.set.items() if key in terms()}


def _value(term: Term, text: str) -> Value:
    if text in ("None", "null"):
        return None
    if _is_expression(text):
        raise Uncomputed(text)
    if term.type == "bool":
        return text.strip().lower() in ("true", "1", "yes", "on")
    if term.type == "number":
        number = to_number(text)
        if number is None:
            raise Uncomputed(text)
        return number
    if term.type == "list":
        return [part.strip() for part in text.strip("[]").split(",")]
    return text.strip("'\"")


def _is_expression(text: str) -> bool:
    """Whether a value is still the recipe's expression over facts: one of them was unknown."""
    try:
        return any(name in terms() or name.startswith("hit.") for name in parse(text).names)
    except RecipeError:
        return False


def fixed(document: Document, fix: Fix, context: Context) -> str | None:
    """The document after a fix; None where it has no place here, is done already, or cannot be done safely."""
    values = values_of(fix)
    if document.kind == "app" and any(k.startswith("requirements.") for k in values):
        return None
    if document.kind == "app" and is_notebook(document.path, document.text):
        return in_cells(document.text, lambda code: _program(code, fix, values, context))
    if document.kind == "app":
        return with_magics(document.text, lambda code: _program(code, fix, values, context))
    pins = {k.partition(".")[2]: v for k, v in values.items() if k.startswith("requirements.")}
    if pins:
        from dstune.readers.pins import pinned

        after = pinned(document.kind, document.text, pins) if document.kind in PINNED else document.text
        return after if after != document.text else None
    if fix.edit in text_edit.EDITS:
        return text_edit.edited(document.kind, document.text, fix.edit, context.versions)
    if fix.edit or not values or document.kind not in READERS:
        return None
    module = importlib.import_module(READERS[document.kind])
    write = getattr(module, "write", None)
    if write is None:
        return None
    after = str(write(document.text, values))
    return after if after != document.text else None


def _program(text: str, fix: Fix, values: Mapping[str, Value], context: Context) -> str | None:
    context = Context(context.versions, values, context.lines, context.texts)
    done = app_edit.edited(text, fix.edit, context) if fix.edit else text
    if done is None:
        if all(key in _TAKEN.get(fix.edit, ()) for key in values):
            return None
        done = text
    for key, value in values.items():
        if fix.edit and key in _TAKEN.get(fix.edit, ()):
            continue
        edit = _BY_EDIT.get(key) if value is not None else None
        if edit == "device-map-auto" and value != "auto":
            edit = None
        after = app_edit.edited(done, edit, context) if edit else app_edit.keyword_set(done, key, source(value))
        done = (
            done if after is None else after
        )  # a fix names a setting of each engine: those without a place here are not meant
    return done if done != text else None


def source(value: Value) -> str | None:
    """A value as Python source; None stays None (it removes)."""
    if value is None or isinstance(value, bool):
        return None if value is None else str(value)
    if isinstance(value, str):
        return value if value.startswith("torch.") else json.dumps(value, ensure_ascii=False)
    return repr(value)


def suits(document: Document, fix: Fix, evidence: Evidence) -> bool:
    """Whether a document is a place for a fix: a program for code, else a file in which settings of its engine were read."""
    families = {key.partition(".")[0] for key in fix.set}
    if fix.edit in text_edit.EDITS:
        return document.kind in text_edit.EDITS[fix.edit][0] or (document.kind == "app" and fix.edit in app_edit.edits())
    if families == {"requirements"} or fix.edit == "torch-trio":
        return document.kind in PINNED and _reads(evidence, document.path, {"requirements"})
    if families == {"env"} and document.kind in ("command", "compose", "dockerfile"):
        return _reads(evidence, document.path, {"env", "command", "docker", "dockerfile"})
    if document.kind == "app":
        return bool(fix.edit) or bool(families & CODE) or _reads(evidence, document.path, families)
    return not fix.edit and _reads(evidence, document.path, families - CODE)


def _reads(evidence: Evidence, path: str, families: set[str]) -> bool:
    return any(f.source == path and family_of(f.subject) in families for f in evidence.facts)


def versions(evidence: Evidence) -> dict[str, str]:
    """Versions of the libraries that edits ask about: pinned in a requirements file first, else what is installed."""
    found: dict[str, str] = {}
    if (engine := evidence.first("vllm", "version")) is not None:
        found["vllm"] = str(engine)
    for family in ("requirements", "python"):
        for name in ("transformers", "gradio", "torch"):
            value = evidence.first(family, name)
            if value is not None:
                found.setdefault(name, str(value))
    return found
