"""The parts of a program that rules ask about: models that are loaded, generations, handlers, clients."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dstune.model import Fact, Value
from dstune.readers.app_index import FUNCTIONS, MISSING, Called, Function, Index
from dstune.readers.app_models import Known, known_at
from dstune.readers.app_source import Source
from dstune.readers.scan import shown


@dataclass(frozen=True, slots=True)
class Load:
    """A model that is loaded: `how` is from_pretrained or pipeline; `model` its id or path, "" where it is not constant."""

    call: Called
    how: str
    model: str
    keywords: dict[str, ast.expr]
    open_: bool

    @property
    def native(self) -> bool:
        """Loaded by transformers itself (not by OpenVINO, ONNX, IPEX or another runtime with rules of its own)."""
        return "." not in self.call.name.removesuffix(".from_pretrained").removesuffix(
            ".from_quantized"
        ) or self.call.name.startswith(("transformers.", "modelscope.", "unsloth.", "tf."))


@dataclass(frozen=True, slots=True)
class Generation:
    """A call that generates. `keywords`: those of the call over those of its configuration; `how`: generate | pipe."""

    call: Called
    how: str
    base: ast.expr
    keywords: dict[str, ast.expr]
    open_: bool
    model: str
    configured: bool


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that a framework calls for each request: `kind` is gradio | chat | http | streamlit | message."""

    function: Function | ast.Lambda
    kind: str
    event: ast.AST
    keywords: dict[str, ast.expr] = field(default_factory=dict)
    args: tuple[ast.expr, ...] = ()


EVENTS = frozenset(
    ("click", "submit", "change", "select", "then", "success", "input", "release", "upload", "tick", "like", "failure")
)
_ROUTES = re.compile(r"\.(?:get|post|put|patch|route|websocket|api_route)$")
_MESSAGES = re.compile(r"(?:^|\.)(?:on_message|message|command|event|on_event_message|step)$")
_SERVERS = frozenset(("fastapi", "flask", "starlette", "sanic", "aiohttp", "quart", "litserve", "bottle", "django"))


class Seen:
    """One program, with what it loads, generates and serves."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.index = Index(source)
        tops = {m.split(".")[0] for m in self.index.modules}
        self.frameworks = tops | self.index.guessed
        self.snippet = not tops
        """A fragment without any import: names are guessed, and what is not there may stand elsewhere."""
        self.complete = not self.snippet

    # -- facts ---------------------------------------------------------------------------------------------------------------

    def fact(self, subject: str, name: str, value: Value, at: ast.AST | int) -> Fact:
        """A fact with the line of a node."""
        number = at if isinstance(at, int) else getattr(at, "lineno", 0)
        return Fact(subject, name, value, self.source.path, number or None, shown(self.index.line(number)))

    def smell(self, name: str, at: ast.AST | int, value: Value = True) -> Fact:
        """An `app` fact."""
        return self.fact("app", name, value, at)

    # -- models --------------------------------------------------------------------------------------------------------------

    @cached_property
    def loads(self) -> list[Load]:
        """Language models that are loaded, in order."""
        found = []
        for call in self.index.calls():
            if call.via:
                continue
            kind = self.index.kind(call.node)
            last = call.name.rsplit(".", 1)[-1]
            if last in ("from_pretrained", "from_quantized") and kind in ("model", "seq2seq") and "Peft" not in call.name:
                first = (
                    call.args[0]
                    if call.args
                    else call.keywords.get("pretrained_model_name_or_path") or call.keywords.get("model_name")
                )
                found.append(Load(call, "from_pretrained", self._text(first), call.keywords, call.open_))
            elif last in ("from_pretrained",) and kind == "encoder" and self._chats(call.node):
                found.append(
                    Load(call, "from_pretrained", self._text(call.args[0] if call.args else None), call.keywords, call.open_)
                )
            elif last == "from_config" and kind in ("model", "seq2seq"):
                continue
            elif last == "pipeline" and kind == "pipeline":
                first = call.keywords.get("model") or (call.args[1] if len(call.args) > 1 else None)
                known_object = isinstance(first, ast.Call) or (
                    isinstance(first, ast.Name) and bool(self.index.find(first.id, first))
                )
                if first is not None and known_object and self.index.kind(first) in ("model", "seq2seq"):
                    continue
                inner, unsure = (
                    self.index.dict_of(call.keywords["model_kwargs"]) if "model_kwargs" in call.keywords else ({}, False)
                )
                found.append(Load(call, "pipeline", self._text(first), {**inner, **call.keywords}, call.open_ or unsure))
        return found

    def _chats(self, node: ast.AST) -> bool:
        """Whether an `AutoModel` is one with a chat method of its own (ChatGLM and its like)."""
        return any(isinstance(n, ast.Attribute) and n.attr in ("chat", "stream_chat", "generate") for n in self.index.nodes)

    def _text(self, node: ast.expr | None) -> str:
        value = self.index.const(node)
        return value if isinstance(value, str) else ""

    @cached_property
    def model(self) -> str:
        """The id of the model that the program is about: loaded, or asked of a server."""
        ids = [load.model for load in self.loads if load.model]
        if ids:
            return ids[0]
        for call in self.index.calls():
            if call.name.endswith("LLM") and self.index.kind(call.node) == "llm":
                return self._text(call.args[0] if call.args else call.keywords.get("model"))
        named = [self._text(c.keywords.get("model")) for c in self.completions]
        return next((n for n in named if n), "")

    @cached_property
    def what(self) -> Known | None:
        """What is known of that model by its name and folder."""
        return known_at(self.model, os.path.dirname(self.source.path)) if self.model else None

    # -- generations ---------------------------------------------------------------------------------------------------------

    @cached_property
    def generations(self) -> list[Generation]:
        """Calls of generate and of text pipelines, with keywords of their configuration merged in."""
        found = []
        for call in self.index.calls():
            how, base = self._generates(call)
            if not how:
                continue
            if call.via == "partial":
                call = self.index.completed(call)
            keywords, open_, configured = self._configured(call, how, base)
            found.append(Generation(call, how, base, keywords, open_, self.model, configured))
        return found

    def _generates(self, call: Called) -> tuple[str, ast.expr]:
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in ("generate", "chat", "stream_chat"):
            kind = self.index.kind(func.value)
            if kind == "llm" and "vllm" not in self.frameworks and self.loads:
                kind = "model"
            if kind in ("model", "seq2seq", "encoder") and (func.attr == "generate" or kind == "encoder"):
                return "generate", func.value
            if kind == "pipeline" and func.attr == "generate":
                return "foreign", func.value
        elif self.index.kind(func) == "pipeline" and not (isinstance(func, ast.Name) and func.id == "pipeline"):
            return "pipe", func
        return "", func

    def _configured(self, call: Called, how: str, base: ast.expr) -> tuple[dict[str, ast.expr], bool, bool]:
        keywords, open_, configured = dict(call.keywords), call.open_, False
        config = keywords.get("generation_config") or keywords.get("generate_kwargs")
        layers = []
        if config is not None:
            made = config
            if isinstance(config, ast.Name | ast.Attribute):
                name = config.id if isinstance(config, ast.Name) else f".{config.attr}"
                rows = (
                    self.index.find(name, config) if isinstance(config, ast.Name) else self.index.assigned.get((None, name), [])
                )
                made = rows[0].value if rows else config
            if isinstance(made, ast.Call) and self.index.dotted(made.func).endswith("GenerationConfig"):
                layers.append(self.index.keywords(made)[0])
                configured = True
            elif isinstance(made, ast.Dict):
                layers.append(self.index.dict_of(made)[0])
            else:
                open_ = configured = True
        attributes = {
            t.attr: n.value
            for n in self.index.nodes
            if isinstance(n, ast.Assign)
            for t in n.targets
            if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Attribute) and t.value.attr == "generation_config"
        }
        if attributes:
            layers.append(attributes)
        if any(
            isinstance(t, ast.Attribute) and t.attr == "generation_config"
            for n in self.index.nodes
            if isinstance(n, ast.Assign)
            for t in n.targets
        ):
            open_ = configured = True
        if how == "pipe":
            for load in self.index.calls():
                if not load.via and load.name.rsplit(".", 1)[-1] == "pipeline" and self.index.kind(load.node) == "pipeline":
                    layers.append(load.keywords)
                    open_ = open_ or load.open_
        for layer in layers:
            keywords = {**layer, **keywords}
        return keywords, open_, configured

    # -- handlers ------------------------------------------------------------------------------------------------------------

    def function_of(self, node: ast.expr | None, depth: int = 4) -> Function | ast.Lambda | None:
        """The function of this file that an expression names."""
        if node is None or depth < 0:
            return None
        match node:
            case ast.Lambda():
                return node
            case ast.Name(id=name):
                if name in self.index.functions:
                    return self.index.functions[name][0]
                rows = self.index.find(name, node)
                return self.function_of(rows[0].value, depth - 1) if rows and not rows[0].how else None
            case ast.Attribute(attr=attr):
                return self.index.functions.get(attr, [None])[0]
            case ast.Call(func=func, args=[first, *_]) if self.index.dotted(func).endswith(("partial", "wraps", "GPU")):
                return self.function_of(first, depth - 1)
        return None

    @cached_property
    def handlers(self) -> list[Handler]:
        """What frameworks call for each request."""
        found = [h for call in self.index.calls() if not call.via and (h := self._gradio_handler(call)) is not None]
        for functions in self.index.functions.values():
            for function in functions:
                for decorator in function.decorator_list:
                    target = decorator.func if isinstance(decorator, ast.Call) else decorator
                    name = self.index.dotted(target)
                    last = name.rsplit(".", 1)[-1]
                    keywords = self.index.keywords(decorator)[0] if isinstance(decorator, ast.Call) else {}
                    if (
                        "gradio" in self.frameworks
                        and isinstance(target, ast.Attribute)
                        and (last in EVENTS or name == "gradio.on")
                    ):
                        args = tuple(decorator.args) if isinstance(decorator, ast.Call) else ()
                        found.append(Handler(function, "gradio", decorator, keywords, (ast.Constant(value=None), *args)))
                    elif _ROUTES.search(name) and (self.frameworks & _SERVERS or self.snippet):
                        found.append(Handler(function, "http", decorator, keywords))
                    elif _MESSAGES.search(name) and self.frameworks & {"chainlit", "discord", "aiogram", "nonebot", "telegram"}:
                        found.append(Handler(function, "message", decorator, keywords))
        return found

    def _gradio_handler(self, call: Called) -> Handler | None:
        last = call.name.rsplit(".", 1)[-1]
        if last in ("Interface", "ChatInterface") and (call.name.startswith("gradio.") or self.snippet):
            function = self.function_of(call.keywords.get("fn") or (call.args[0] if call.args else None))
            kind = "chat" if last == "ChatInterface" else "gradio"
            args = tuple(call.args)
        elif (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in EVENTS
            and ("gradio" in self.frameworks or (self.snippet and bool({"fn", "inputs", "outputs"} & set(call.keywords))))
        ):
            function = self.function_of(call.keywords.get("fn") or (call.args[0] if call.args else None))
            kind, args = "gradio", tuple(call.args)
        elif call.name == "gradio.on":
            function = self.function_of(call.keywords.get("fn") or (call.args[1] if len(call.args) > 1 else None))
            kind, args = "gradio", tuple(call.args[1:])
        else:
            return None
        return Handler(function, kind, call.node, call.keywords, args) if function is not None else None

    def output(self, handler: Handler) -> ast.expr | None:
        """The outputs of a Gradio event."""
        if "outputs" in handler.keywords:
            return handler.keywords["outputs"]
        return handler.args[2] if len(handler.args) > 2 else None

    def component(self, node: ast.expr | None) -> str:
        """The Gradio class of a component expression ("Chatbot"), "" where it is not known."""
        if isinstance(node, ast.List | ast.Tuple):
            return self.component(node.elts[0]) if len(node.elts) == 1 else ""
        if isinstance(node, ast.Name):
            rows = self.index.find(node.id, node)
            return self.component(rows[0].value) if rows and rows[0].how in ("", "with") else ""
        if isinstance(node, ast.Call):
            name = self.index.dotted(node.func)
            return name.rsplit(".", 1)[-1] if name.startswith("gradio.") else ""
        return ""

    def reach(self, function: ast.AST, depth: int = 4) -> list[ast.AST]:
        """A function and those of this file that it calls, nearest first."""
        found, pending = [function], [(function, depth)]
        while pending:
            at, left = pending.pop(0)
            if left <= 0:
                continue
            body = ast.walk(at) if isinstance(at, ast.Lambda) else self.index.own(at)
            for node in body:
                target: Any = None
                if isinstance(node, ast.Call):
                    target = self.function_of(node.func)
                    for arg in [*node.args, *(k.value for k in node.keywords)]:
                        inner = self.function_of(arg) if isinstance(arg, ast.Name | ast.Attribute | ast.Lambda) else None
                        if inner is not None and inner not in found:
                            found.append(inner)
                            pending.append((inner, left - 1))
                elif isinstance(node, FUNCTIONS):
                    target = node
                if target is not None and target not in found:
                    found.append(target)
                    pending.append((target, left - 1))
        return found

    def within(self, node: ast.AST, function: ast.AST) -> bool:
        """Whether a node is in this function (functions inside it count)."""
        return any(above is function for above in self.index.chain(node))

    def yields(self, function: ast.AST) -> list[ast.Yield | ast.YieldFrom]:
        """The yields of a function itself."""
        return [n for n in self.index.own(function) if isinstance(n, ast.Yield | ast.YieldFrom)]

    # -- clients -------------------------------------------------------------------------------------------------------------

    @cached_property
    def clients(self) -> list[Called]:
        """Constructors of OpenAI-compatible clients."""
        names = ("OpenAI", "AsyncOpenAI", "ChatOpenAI", "OpenAILike", "VLLMOpenAI")
        return [
            c
            for c in self.index.calls()
            if not c.via and c.name.rsplit(".", 1)[-1] in names and not isinstance(c.func, ast.Call)
        ]

    @cached_property
    def completions(self) -> list[Called]:
        """Requests for a completion through a client library."""
        found = []
        for call in self.index.calls():
            if call.name.endswith(
                (
                    ".completions.create",
                    "ChatCompletion.create",
                    "litellm.completion",
                    "litellm.acompletion",
                    ".responses.create",
                )
            ) or (
                isinstance(call.func, ast.Attribute) and call.func.attr in ("create", "parse") and "completions." in call.name
            ):
                found.append(call)
        return found

    @cached_property
    def client_only(self) -> bool:
        """Whether the program talks to a server and loads no model itself."""
        talks = bool(self.clients or self.completions) or bool(
            self.frameworks & {"openai", "ollama", "langchain_openai", "litellm"}
        )
        posts = any(c.name in ("requests.post", "httpx.post", "httpx.stream") for c in self.index.calls())
        local = (
            bool(self.loads)
            or bool(self.frameworks & {"vllm", "llama_cpp", "ctransformers"})
            or any(g.how != "foreign" for g in self.generations)
        )
        return (talks or posts) and not local

    def trains(self) -> bool:
        """Whether the program trains: then what is wrong for inference is right."""
        for node in self.index.nodes:
            if isinstance(node, ast.Attribute) and node.attr in ("backward", "gradient_checkpointing_enable"):
                return True
            if isinstance(node, ast.Name | ast.Attribute):
                name = self.index.dotted(node)
                if name.rsplit(".", 1)[-1] in (
                    "Trainer",
                    "TrainingArguments",
                    "SFTTrainer",
                    "LoraConfig",
                    "AdamW",
                    "Seq2SeqTrainer",
                ):
                    return True
        return False

    def names(self) -> Iterator[str]:
        """Names, attributes, keywords and texts of the program."""
        for node in self.index.nodes:
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)) | ast.Constant(value=str(name)):
                    yield name

    def constants(self) -> Iterator[ast.Constant]:
        """Text constants that are no docstrings."""
        for node in self.index.nodes:
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and not isinstance(self.index.parent.get(node), ast.Expr)
            ):
                yield node

    def value(self, keywords: dict[str, ast.expr], *names: str) -> Any:
        """Constant of the first of these keywords that is there, `MISSING` where it is no constant, None where none is there."""
        for name in names:
            if name in keywords:
                return self.index.const(keywords[name])
        return None


__all__ = ["MISSING", "Generation", "Handler", "Load", "Seen"]
