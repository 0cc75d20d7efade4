"""Prompts on their way in and text on its way out: templates, echoes, special tokens, padding, history."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dstune.model import Fact
from dstune.readers import app_prompt_batch, app_prompt_end, app_prompt_history, app_prompt_sent
from dstune.readers.app_prompt_sent import TURNS
from dstune.readers.app_seen import Seen

_MARKS = re.compile(
    r"<\|im_start|<\|user|<\|start_header|\[INST\]|<｜User｜>|<\|User\|>|<start_of_turn>|<\|begin_of|<\|system|\[gMASK\]|<s>\["
)
_USER_MARKS = re.compile(r"<\|im_start\|>user|<\|user\|>|<\|start_header_id\|>user|\[INST\]|<start_of_turn>user")
_WORDS = re.compile(r"###\s*(?:Instruction|Human|User|Question)|USER:|Human:|User:|用户[：:]|Question:|Q:")
"""Turns written in plain words: the template of older chat models, and none for those that have tokens for their turns."""
_CUTS = frozenset(
    (
        "split",
        "rsplit",
        "partition",
        "rpartition",
        "replace",
        "removeprefix",
        "find",
        "rfind",
        "index",
        "startswith",
        "splitlines",
    )
)


def smells(seen: Seen) -> Iterator[Fact]:
    """`app.*` facts about prompts and answers."""
    yield from _template(seen)
    yield from app_prompt_sent.smells(seen, _templated(seen))
    yield from _decoded(seen)
    yield from app_prompt_batch.smells(seen)
    yield from app_prompt_end.smells(seen)
    yield from app_prompt_history.smells(seen)


def _templated(seen: Seen) -> bool:
    """Whether any template stands in the program: the tokenizer's, messages, or marks written by hand."""
    for node in seen.index.nodes:
        if isinstance(node, ast.Attribute) and node.attr in (
            "apply_chat_template",
            "chat",
            "stream_chat",
            "create_chat_completion",
            "build_chat_input",
            "chat_template",
        ):
            return True
        if isinstance(node, ast.ImportFrom | ast.Import) and any(
            re.search(r"template|conversation|fastchat|prompter|prompt_util", a.name, re.I) for a in node.names
        ):
            return True
    what = seen.what
    words = what is None or not (what.r1 or (what.chat and TURNS.search(what.name)))
    return any(
        node.value == "role" or _MARKS.search(str(node.value)) or (words and _WORDS.search(str(node.value)))
        for node in seen.constants()
    )


def _template(seen: Seen) -> Iterator[Fact]:
    local = [g for g in seen.generations if g.how != "foreign"]
    what = seen.what
    if what is not None and what.r1:
        for node in seen.index.nodes:
            if isinstance(node, ast.Dict):
                entries = {
                    seen.index.const(k): v
                    for k, v in zip(node.keys, node.values, strict=True)
                    if k is not None and isinstance(seen.index.const(k), str)
                }
                if (
                    "role" in entries
                    and seen.index.const(entries["role"]) == "system"
                    and seen.index.const(entries.get("content")) != ""
                ):
                    yield seen.smell("system_prompt_on_r1", node)
    if what is not None and what.chat is False and (at := _marked(seen)) is not None:
        yield seen.smell("base_model_templated", at)
    if not local or what is None or not seen.loads:
        return
    if what.chat and not _templated(seen) and "peft" not in seen.frameworks:
        for call in seen.index.calls():
            if call.via or not call.args:
                continue
            kind = seen.index.kind(call.node)
            fresh = kind in ("batch", "ids") and (seen.index.kind(call.func) == "tokenizer" or (isinstance(call.func, ast.Attribute) and call.func.attr in ("encode", "encode_plus") and seen.index.kind(call.func.value) == "tokenizer"))  # fmt: skip
            if fresh and not (isinstance(call.args[0], ast.Constant) and len(str(call.args[0].value)) < 24 and len(local) > 1):
                yield seen.smell("prompt_without_template", call.node)
                break
        else:
            piped = [
                g
                for g in local
                if g.how == "pipe"
                and g.call.args
                and seen.index.kind(g.call.args[0]) != "messages"
                and not isinstance(g.call.args[0], ast.List)
            ]
            if piped:
                yield seen.smell("prompt_without_template", piped[0].call.node)
    if (
        what.chat is False
        and not seen.frameworks & {"peft", "trl", "unsloth"}
        and any(isinstance(n, ast.Attribute) and n.attr == "apply_chat_template" for n in seen.index.nodes)
    ):
        at = next(n for n in seen.index.nodes if isinstance(n, ast.Attribute) and n.attr == "apply_chat_template")
        if not any(isinstance(n, ast.keyword) and n.arg == "chat_template" for n in seen.index.nodes) and not any(
            isinstance(n, ast.Attribute) and n.attr == "chat_template" for n in seen.index.nodes
        ):
            yield seen.smell("base_model_templated", at)


def _marked(seen: Seen) -> ast.AST | None:
    """The marks of a chat template written by hand, in a program that asks vLLM or transformers to continue them."""
    if seen.frameworks & {"peft", "trl", "unsloth"} or seen.trains():
        return None
    asks = any(g.how != "foreign" for g in seen.generations) or any(
        isinstance(c.func, ast.Attribute) and c.func.attr == "generate" and seen.index.kind(c.func.value) == "llm"
        for c in seen.index.calls()
    )
    marks = (c for c in seen.constants() if _USER_MARKS.search(str(c.value)))
    return next(marks, None) if asks else None


def _decoded(seen: Seen) -> Iterator[Fact]:
    chatty = (seen.what.chat if seen.what else None) is not False
    for call in seen.index.calls():
        last = call.name.rsplit(".", 1)[-1]
        if last in ("TextIteratorStreamer", "TextStreamer", "AsyncTextIteratorStreamer") and not call.via:
            if (
                "skip_special_tokens" not in call.keywords
                and not call.open_
                and not _cuts_somewhere(seen)
                and not _parsed(seen)
                and not (last == "TextStreamer" and seen.trains())  # a look at what was trained
            ):
                yield seen.smell("special_tokens_kept", call.node)
            if (
                last != "TextStreamer"
                and "skip_prompt" not in call.keywords
                and len(call.args) < 2
                and not call.open_
                and chatty
            ):
                yield seen.smell("prompt_echoed", call.node)
            continue
        if (
            call.via
            or not isinstance(call.func, ast.Attribute)
            or call.func.attr not in ("decode", "batch_decode")
            or not call.args
        ):
            continue
        if seen.index.kind(call.func.value) != "tokenizer":
            continue
        arg = call.args[0]
        kind = seen.index.kind(arg)
        if _token(seen, arg, call.node):
            yield seen.smell("decode_token_by_token", call.node)
            continue
        if kind not in ("output", "new", "seq2seq_output"):
            continue
        if _handled(seen, call.node):
            continue
        skip = seen.value(call.keywords, "skip_special_tokens")
        if (skip is None or skip is False) and len(call.args) < 2 and not call.open_ and not _labels(seen):
            yield seen.smell("special_tokens_kept", call.node)
        if kind == "output" and chatty and not _embeds(seen):
            yield seen.smell("prompt_echoed", call.node)
    for g in seen.generations:
        if (
            g.how == "pipe"
            and chatty
            and not g.open_
            and "return_full_text" not in g.keywords
            and g.call.args
            and not g.call.via
        ):
            kind = seen.index.kind(g.call.args[0])
            if (
                kind in ("messages", "piped")
                or isinstance(g.call.args[0], ast.List)
                or (kind != "prompt" and any(c.value == "role" for c in seen.constants()))
            ):
                continue
            if _handled(seen, g.call.node) or _cuts_somewhere(seen, "generated_text"):
                continue
            if any(c.value == "generated_text" for c in seen.constants()):
                yield seen.smell("prompt_echoed", g.call.node)


def _parsed(seen: Seen) -> bool:
    """Whether what a streamer gives is handed to a function that looks into it."""
    loops = [n for n in seen.index.nodes if isinstance(n, ast.For) and seen.index.kind(n.iter) == "streamer"]
    called = (seen.index.dotted(n.func) for loop in loops for n in ast.walk(loop) if isinstance(n, ast.Call))
    return any(re.search(r"(?i)process|parse|clean|handle|format_|strip_|filter", name.rsplit(".", 1)[-1]) for name in called)


def _labels(seen: Seen) -> bool:
    """Whether answers are a few tokens, read by a program (a price, a class) rather than by people."""
    limits = [v for g in seen.generations if isinstance(v := seen.value(g.keywords, "max_new_tokens"), int)]
    return bool(limits) and max(limits) <= 16


def _embeds(seen: Seen) -> bool:
    return any(isinstance(n, ast.keyword) and n.arg == "inputs_embeds" for n in seen.index.nodes)


def _handled(seen: Seen, node: ast.AST, depth: int = 3) -> bool:
    """Whether the text is cut or cleaned afterwards, or only printed by a script."""
    above = seen.index.parent.get(node)
    if isinstance(above, ast.Expr):  # the text is thrown away
        return True
    while above is not None and not isinstance(above, ast.stmt):
        if isinstance(above, ast.Attribute) and above.attr in _CUTS:
            return True
        if isinstance(above, ast.Subscript) and isinstance(above.slice, ast.Slice) and above.value is not node:
            return True
        if isinstance(above, ast.Subscript) and isinstance(above.slice, ast.Slice):
            return True
        if isinstance(above, ast.Call) and above is not node:
            name = seen.index.dotted(above.func)
            if name == "print" and not seen.handlers and not seen.snippet:
                return True
            if name.startswith("re.") or (
                seen.function_of(above.func) is not None and node in [*above.args, *(k.value for k in above.keywords)]
            ):
                return True
        if isinstance(above, ast.ListComp | ast.GeneratorExp) and depth > 0:
            pass
        node, above = above, seen.index.parent.get(above)
    if isinstance(above, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        targets = above.targets if isinstance(above, ast.Assign) else [above.target]
        for target in targets:
            if isinstance(target, ast.Name) and _uses_cut(seen, target.id, above):
                return True
    if isinstance(above, ast.Return) and depth > 0:
        home = seen.index.scope(above)
        callers = [
            n for n in seen.index.nodes if isinstance(n, ast.Call) and home is not None and seen.function_of(n.func) is home
        ]
        served = any(h.function is home for h in seen.handlers)  # a trial call beside it says nothing of the page
        if callers and not served and all(_handled(seen, c, depth - 1) for c in callers):
            return True
    return False


def _uses_cut(seen: Seen, name: str, at: ast.AST, depth: int = 3) -> bool:
    """Whether a text with this name is cut, matched or handed to a function of the file later; or only printed by a script."""
    scope = seen.index.scope(at)
    uses = [
        n
        for n in (seen.index.own(scope) if scope else seen.index.nodes)
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and n.lineno >= getattr(at, "lineno", 0)
    ]
    printed = 0
    for use in uses:
        part = _text_of(seen, use)
        above = seen.index.parent.get(part)
        if isinstance(above, ast.Attribute) and above.attr in _CUTS:
            return True
        if isinstance(above, ast.Subscript) and above.value is part:
            return True
        if isinstance(above, ast.Assign) and depth > 0:
            names = [t.id for t in above.targets if isinstance(t, ast.Name) and t.id != name]
            if any(_uses_cut(seen, n, above, depth - 1) for n in names):
                return True
        if isinstance(above, ast.Compare):
            return True
        if isinstance(above, ast.For | ast.comprehension) and above.iter is use:
            return True
        if isinstance(above, ast.Call):
            called = seen.index.dotted(above.func)
            if called.startswith("re.") or seen.function_of(above.func) is not None:
                return True
            if called == "print":
                printed += 1
        if isinstance(above, ast.FormattedValue) and any(
            isinstance(a, ast.Call) and seen.index.dotted(a.func) == "print" for a in seen.index.chain(use)
        ):
            printed += 1
    return bool(uses) and printed == len(uses) and not seen.handlers and not seen.snippet


def _text_of(seen: Seen, use: ast.Name) -> ast.AST:
    """`x[0]["generated_text"].strip()` of what a pipeline gave, else the name itself."""
    part: ast.AST = use
    found = False
    while True:
        match above := seen.index.parent.get(part):
            case ast.Subscript(value=value, slice=key) if value is part and not isinstance(key, ast.Slice):
                found = found or seen.index.const(key) == "generated_text"
                part = above
            case ast.Attribute(value=value, attr="strip" | "lstrip" | "rstrip") if value is part and found:
                part = seen.index.parent.get(above, above)
            case _:
                return part if found else use


def _cuts_somewhere(seen: Seen, word: str = "") -> bool:
    """Whether the program cleans texts of marks or prompts anywhere (coarse; it only excuses)."""
    for node in seen.index.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("replace", "removeprefix", "split", "partition")
        ):
            texts = [str(c.value) for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)]
            if any(re.search(r"<[|｜/]?\w|\[/?INST|\bassistant\b|Assistant|</s>|eos", t) for t in texts) or re.search(
                r"eos_token|prompt|special", ast.unparse(node)
            ):
                return True
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and "len(" in ast.unparse(node.slice):
            return True
    return False


def _token(seen: Seen, arg: ast.expr, call: ast.AST) -> bool:
    """Whether what is decoded is one token of a running or finished sequence."""
    if seen.index.inside(call, ast.For, ast.While, ast.AsyncFor) is None:
        return False
    inner = arg.elts[0] if isinstance(arg, ast.List) and len(arg.elts) == 1 else arg
    if (
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Attribute)
        and inner.func.attr in ("item", "squeeze", "tolist")
    ):
        inner = inner.func.value
    if isinstance(inner, ast.Subscript) and isinstance(inner.value, ast.Name):
        inner = inner.value
    if not isinstance(inner, ast.Name):
        return False
    for row in seen.index.find(inner.id, inner)[:1]:
        if row.how == "iter":
            rows = row.value
            return seen.index.kind(rows) in ("output", "new") and (
                isinstance(rows, ast.Subscript)
                or (
                    isinstance(rows, ast.Name)
                    and any(isinstance(r.value, ast.Subscript) for r in seen.index.find(rows.id, rows)[:1])
                )
            )
        text = ast.unparse(row.value)
        if (
            re.search(r"argmax|multinomial|sample_next|topk", text)
            and seen.index.inside(row.node, ast.For, ast.While) is not None
        ):
            return True
        if (
            isinstance(row.value, ast.Call)
            and isinstance(row.value.func, ast.Attribute)
            and row.value.func.attr == "item"
            and isinstance(row.value.func.value, ast.Name)
        ):
            return any(
                re.search(r"argmax|multinomial|topk", ast.unparse(r.value))
                for r in seen.index.find(row.value.func.value.id, row.value)[:1]
            )
    return False
