"""What the expressions of a program hold, on top of its names.

A *kind* is a word for what an expression holds: model, seq2seq, tokenizer, pipeline, streamer, textstreamer, batch (what a
tokenizer returns), ids, prompt (a templated text), messages, output (what generate returns), new (its part after the prompt), text,
client, llm, llama, stream, delta, fragment, executor… or "" where nothing is known.
"""

from __future__ import annotations

import ast
import re

from dstune.readers.app_calls import Called, Calls
from dstune.readers.app_names import FUNCTIONS, MISSING, Assigned, Function

_MODEL = re.compile(
    r"ForCausalLM|LMHeadModel|ForConditionalGeneration|ImageTextToText|Vision2Seq|FastLanguageModel|FastModel|PeftModel|AutoGPTQ|GPTQModel|AutoAWQ|CTransformers"
)
_SEQ2SEQ = re.compile(r"Seq2Seq|\bT5|MT5|Bart|Marian|Pegasus|Whisper|M2M100|Blenderbot")
_BY_NAME = (
    (re.compile(r"^(?:tokenizer|tok|tokeniser|tkn|.*_tokenizer|processor)$"), "tokenizer"),
    (re.compile(r"^(?:model|lm|(?:llm|lm|hf|base|chat|causal|my|qwen|llama|r1|deepseek|text)_?model|model_?\d\w*)$"), "model"),
    (re.compile(r"^(?:pipe|pipeline|generator|text_generator|chat_pipe|.*_pipeline|.*_pipe)$"), "pipeline"),
    (re.compile(r"^(?:streamer|text_streamer)$"), "streamer"),
    (re.compile(r"^(?:client|openai_client|oai|.*_client)$"), "client"),
    (re.compile(r"^(?:llm|engine)$"), "llm"),
)
MODEL_LIBRARIES = frozenset(
    (
        "transformers",
        "torch",
        "vllm",
        "openai",
        "llama_cpp",
        "modelscope",
        "unsloth",
        "litellm",
        "langchain_openai",
        "peft",
        "accelerate",
        "tensorrt_llm",
    )
)
_STRING = frozenset(
    ("strip", "lstrip", "rstrip", "replace", "removeprefix", "removesuffix", "lower", "title", "format", "join")
)
_PLACES = frozenset(
    (
        "to",
        "cuda",
        "half",
        "eval",
        "bfloat16",
        "float",
        "cpu",
        "train",
        "requires_grad_",
        "compile",
        "to_bettertransformer",
        "merge_and_unload",
    )
)


class Index(Calls):
    """Names with kinds."""

    # -- kinds ---------------------------------------------------------------------------------------------------------------

    def kind(self, node: ast.AST | None, index: int | None = None, depth: int = 12) -> str:
        """What an expression holds (see the module's head)."""
        if node is None or depth < 0:
            return ""
        key = (id(node), index)
        if key in self._kinds:
            return self._kinds[key]
        self._kinds[key] = ""  # a name that leads to itself is unknown
        found = self._kind(node, index, depth - 1)
        self._kinds[key] = found
        return found

    def _kind(self, node: ast.AST, index: int | None, depth: int) -> str:
        match node:
            case ast.Await(value=value) | ast.Starred(value=value):
                return self.kind(value, index, depth)
            case ast.IfExp(body=body, orelse=orelse):
                return self.kind(body, index, depth) or self.kind(orelse, index, depth)
            case ast.BoolOp(values=values):
                return next((k for v in values if (k := self.kind(v, index, depth))), "")
            case ast.Tuple(elts=elts) if index is not None and index < len(elts):
                return self.kind(elts[index], None, depth)
            case ast.Call():
                return self._kind_of_call(node, index, depth)
            case ast.Name(id=name):
                return self._kind_of_name(node, name, depth)
            case ast.Attribute(value=value, attr=attr):
                return self._kind_of_attribute(node, value, attr, depth)
            case ast.Subscript(value=value, slice=key):
                return self._kind_of_item(value, key, depth)
            case ast.DictComp(generators=[ast.comprehension(iter=ast.Call(func=ast.Attribute(value=value, attr="items")))]):
                return self.kind(value, None, depth)
            case ast.ListComp(elt=elt) | ast.GeneratorExp(elt=elt):
                inner = self.kind(elt, None, depth)
                return inner if inner in ("new", "output", "prompt", "text", "fragment") else ""
            case ast.JoinedStr(values=values):
                kinds = [self.kind(v.value, None, depth) for v in values if isinstance(v, ast.FormattedValue)]
                return next((k for k in kinds if k), "string")
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.kind(left, None, depth) or self.kind(right, None, depth)
            case ast.List(elts=elts) if (
                elts and isinstance(elts[0], ast.Dict) and any(self.const(k) == "role" for k in elts[0].keys)
            ):
                return "messages"
            case ast.Constant(value=str()):
                return "string"
        return ""

    def _kind_of_name(self, node: ast.Name, name: str, depth: int) -> str:
        rows = self.find(name, node)
        for row in rows:
            if row.how == "aug":
                continue
            if row.how == "iter":
                found = self._kind_of_element(row, depth)
            else:
                found = self.kind(row.value, row.index, depth)
            if found:
                return found
            if not (isinstance(row.value, ast.Constant) and row.value.value is None):
                break
        if name in self.functions or name in self.imports:
            return ""
        if not rows or (isinstance(rows[0].value, ast.Constant) and rows[0].value.value is None):
            return self._guessed(name)
        return ""

    def _guessed(self, name: str) -> str:
        """A kind by a usual name, where the program is a fragment or has to do with models at all."""
        if self.modules and not {m.split(".")[0] for m in self.modules} & MODEL_LIBRARIES:
            return ""
        return next((kind for pattern, kind in _BY_NAME if pattern.match(name)), "")

    def _kind_of_element(self, row: Assigned, depth: int) -> str:
        """Kind of what a loop over an expression gives."""
        it, index = row.value, row.index
        match it:
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
                it, index = inner, None
            case ast.Call(func=ast.Name(id="zip"), args=args) if index is not None and index < len(args):
                it = args[index]
        kind = self.kind(it, None, depth)
        return {"streamer": "fragment", "asyncstreamer": "fragment", "stream": "chunk", "fragments": "fragment"}.get(
            kind, kind if kind in ("output", "new", "ids", "prompt") else ""
        )

    def _kind_of_attribute(self, node: ast.Attribute, value: ast.expr, attr: str, depth: int) -> str:
        base = self.kind(value, None, depth)
        if base == "batch" and attr in ("input_ids", "attention_mask", "data"):
            return "ids"
        if base == "output" and attr == "sequences":
            return "output"
        if base == "chunk" and attr == "choices":
            return "chunk_choices"
        if base == "chunk_choice" and attr == "delta":
            return "delta"
        if base == "delta" and attr == "content":
            return "content"
        if base == "completion":
            return "completion"
        if base == "model" and attr in ("model", "module", "base_model", "transformer"):
            return "model"
        rows = self.assigned.get((None, f".{attr}"), [])
        kinds = {k for row in rows if (k := self.kind(row.value, row.index, depth))}
        if kinds:
            return kinds.pop() if len(kinds) == 1 else ""
        if attr in self.functions:
            return ""
        if not rows or all(isinstance(r.value, ast.Constant) and r.value.value is None for r in rows):
            if isinstance(value, ast.Name) and value.id in self.imports:
                return ""
            return self._guessed(attr)
        return ""

    def _kind_of_item(self, value: ast.expr, key: ast.expr, depth: int) -> str:
        base = self.kind(value, None, depth)
        if base == "batch":
            return "ids"
        if base == "output":
            parts = key.elts if isinstance(key, ast.Tuple) else [key]
            cut = any(isinstance(p, ast.Slice) and p.lower is not None for p in parts)
            return "new" if cut else "output"
        if base == "chunk_choices":
            return "chunk_choice"
        if base in ("piped", "text", "new", "messages", "completion"):
            return base
        if isinstance(value, ast.Name | ast.Attribute) and not base:
            table = self.const(value)
            if isinstance(table, dict) and any(v is not MISSING for v in table.values()):
                return ""
            name = value.id if isinstance(value, ast.Name) else value.attr
            written = (
                self.find(name, value)[:1] if isinstance(value, ast.Name) else self.assigned.get((None, f".{name}"), [])[:1]
            )
            literal = [v for row in written if isinstance(row.value, ast.Dict) for v in row.value.values]
            kinds = {self.kind(v, None, depth) for v in literal or self._entries(name, self.const(key))}
            if len(kinds) == 1 and (kind := kinds.pop()):
                return kind
            return {"models": "model", "tokenizers": "tokenizer", "pipelines": "pipeline", "pipes": "pipeline"}.get(
                name.lower(), ""
            )
        return ""

    def _entries(self, name: str, key: object) -> list[ast.expr]:
        """What `name["key"] = …` gives the entries of a variable, wherever in the program."""
        if not isinstance(key, str):
            return []
        return [
            node.value
            for node in self.nodes
            if isinstance(node, ast.Assign)
            and isinstance(target := node.targets[0], ast.Subscript)
            and self.dotted(target.value).rpartition(".")[2] == name
            and self.const(target.slice) == key
        ]

    def _kind_of_call(self, node: ast.Call, index: int | None, depth: int) -> str:
        func, full = node.func, self.dotted(node.func)
        last = full.rsplit(".", 1)[-1]
        if isinstance(func, ast.Attribute):
            if func.attr == "from_pretrained" or func.attr == "from_quantized" or func.attr == "from_config":
                return self._loaded(full.rsplit(".", 2)[-2] if full.count(".") else "", index)
            base = self.kind(func.value, None, depth)
            if (
                base
                in ("model", "seq2seq", "encoder", "batch", "ids", "templated_ids", "tokenizer", "output", "new", "pipeline")
                and func.attr in _PLACES
            ):
                return base
            if base == "tokenizer":
                return self._tokenized(node, func.attr)
            if base in ("model", "seq2seq") and func.attr == "generate":
                return "output" if base == "model" else "seq2seq_output"
            if base == "model" and func.attr in ("parameters", "named_parameters", "state_dict", "named_modules"):
                return "parameters"
            if base in ("output", "ids", "new") and func.attr in (
                "cpu",
                "detach",
                "numpy",
                "tolist",
                "clone",
                "squeeze",
                "unsqueeze",
                "long",
                "view",
                "reshape",
            ):
                return base
            if base == "batch" and func.attr in ("pop", "get"):
                return "ids"
            if base == "llm" and func.attr in ("generate", "chat"):
                return "llm_output"
            if func.attr == "create" and (".completions." in f".{full}." or ".responses." in f".{full}."):
                keywords, _ = self.keywords(node)
                return "stream" if self.const(keywords.get("stream")) is True else "completion"
            if base in ("text", "string", "prompt", "content", "fragment", "messages") and func.attr in _STRING:
                return base
            if base in ("text",) and func.attr in ("split", "partition", "rpartition", "rsplit"):
                return "cut"
        if last in ("TextIteratorStreamer", "AsyncTextIteratorStreamer", "TextStreamer"):
            return {"TextIteratorStreamer": "streamer", "AsyncTextIteratorStreamer": "asyncstreamer"}.get(last, "textstreamer")
        if full in ("transformers.pipeline", "transformers.pipelines.pipeline") or (
            last == "pipeline"
            and isinstance(func, ast.Name)
            and "pipeline" not in self.functions
            and not self.find("pipeline", node)
        ):
            return "pipeline" if self._generates_text(node) else "other_pipeline"
        simple = {
            "vllm.LLM": "llm", "llama_cpp.Llama": "llama", "openai.OpenAI": "client", "openai.AsyncOpenAI": "async_client", "OpenAI": "client",
            "AsyncOpenAI": "async_client", "ThreadPoolExecutor": "executor", "ollama.Client": "ollama",
        }  # fmt: skip
        if full in simple or last in ("OpenAI", "AsyncOpenAI", "ThreadPoolExecutor"):
            return simple.get(full) or simple[last]
        if last == "Llama" and full.startswith("llama_cpp"):
            return "llama"
        if (
            full
            in (
                "torch.compile",
                "copy.deepcopy",
                "torch.nn.DataParallel",
                "nn.DataParallel",
                "DataParallel",
                "accelerate.dispatch_model",
                "dispatch_model",
            )
            and node.args
        ):
            return self.kind(node.args[0], index, depth)
        if last == "prepare" and node.args:
            return self.kind(node.args[index or 0] if (index or 0) < len(node.args) else node.args[0], None, depth)
        if full in ("torch.tensor", "torch.LongTensor", "torch.as_tensor") and node.args:
            return (
                "ids"
                if any(self.kind(n, None, depth) in ("ids", "batch") for n in ast.walk(node.args[0]) if isinstance(n, ast.expr))
                else ""
            )
        if full in ("torch.cat", "torch.concat") and node.args:
            return "ids"
        if full in ("next", "iter", "list", "reversed", "tuple", "sorted") and node.args:
            return self.kind(node.args[0], index, depth)
        if full == "str" and node.args:
            return self.kind(node.args[0], None, depth)
        called = self.kind(func, None, depth) if not isinstance(func, ast.Call) or True else ""
        if called == "tokenizer":
            return "batch"
        if called == "pipeline":
            return "piped"
        if called in ("model", "seq2seq"):
            return "forward"
        return self._returned(func, index, depth)

    def _loaded(self, cls: str, index: int | None) -> str:
        if cls.startswith(("FastLanguageModel", "FastModel")):
            return "model" if index in (None, 0) else "tokenizer"
        if "Tokenizer" in cls or "Processor" in cls:
            return "tokenizer"
        if cls.endswith("Config"):
            return "config"
        if _SEQ2SEQ.search(cls):
            return "seq2seq"
        if _MODEL.search(cls):
            return "model"
        if (
            cls
            and cls not in self.imports.values()
            and re.search(r"(?i)model|llm", cls)
            and not re.match(r"(?:transformers\.)?Auto", cls)
        ):
            return "encoder" if re.search(r"(?i)embed|encoder|classif|sentence", cls) else "model"  # a class in a variable
        return "encoder" if "Model" in cls or cls.endswith("Pipeline") else ""

    def _tokenized(self, node: ast.Call, method: str) -> str:
        keywords, _ = self.keywords(node)
        if method == "apply_chat_template":
            if self.const(keywords.get("return_dict")) is True:
                return "batch"
            tokenize = self.const(keywords.get("tokenize"))
            positional = self.const(node.args[2]) if len(node.args) > 2 else MISSING
            if tokenize is False or positional is False:
                return "prompt"
            return "templated_ids"
        if method in ("encode", "convert_tokens_to_ids"):
            return "ids"
        if method in ("encode_plus", "batch_encode_plus", "build_chat_input", "__call__"):
            return "batch"
        if method in ("decode", "batch_decode"):
            return "text"
        return ""

    def _generates_text(self, node: ast.Call) -> bool:
        keywords, _ = self.keywords(node)
        task = self.const(node.args[0] if node.args else keywords.get("task"))
        return task is MISSING or task in ("text-generation", "image-text-to-text", "conversational", None)

    def _returned(self, func: ast.expr, index: int | None, depth: int) -> str:
        """Kind of what a function of this file returns."""
        name = func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
        for function in self.functions.get(name, [])[:1]:
            own = list(self.own(function))
            if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in own):
                for n in own:
                    if (
                        isinstance(n, ast.Yield)
                        and n.value is not None
                        and self.kind(n.value, None, depth) in ("fragment", "content")
                    ):
                        return "fragments"
                return ""
            for n in own:
                if isinstance(n, ast.Return) and n.value is not None:
                    found = self.kind(n.value, index, depth)
                    if found:
                        return found
        return ""


__all__ = ["FUNCTIONS", "MISSING", "Called", "Function", "Index"]
