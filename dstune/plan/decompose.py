"""Where a serving process's memory goes: NVML's number for it against the estimate of its configuration, and the rest by name.

Pure: evidence in (`process.*` facts of `dstune.serving`, the card's, a server's /metrics, an engine's log), parts out. MiB of one card.
What an engine says of itself replaces the estimate of that part; what is left over is never spread over the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dstune.catalog import gpus, models
from dstune.catalog.models import ModelSpec
from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import Evidence, MemoryLine, Value, family_of, parse_json
from dstune.plan import quant
from dstune.plan.ask import Ask
from dstune.plan.estimate import band
from dstune.plan.memory import Memory, kv_per_token, memory
from dstune.plan.rows import checkpoint_dtype, with_card_dtype

MIB = 2**20
KINDS = ("weights", "kv", "activations", "graphs", "workspace", "context", "allocator", "other")
_KIND = {
    "weights": "weights", "KV": "kv", "activations": "activations", "attention": "activations", "logits": "activations",
    "decode": "activations", "sampler": "activations", "CUDA graphs": "graphs", "graphs": "graphs", "compiler": "graphs",
    "compute": "activations", "CUDA context": "context", "cuBLAS": "workspace", "outside": "workspace", "allocator": "allocator", "rotary": "workspace",
}  # fmt: skip
"""First words of a line of `plan.memory` → kind; the longest that fits counts."""
_ENGINES = {
    "vllm": "vllm", "sglang": "sglang", "llama.cpp": "llama.cpp", "llama-cpp-python": "llama.cpp", "ollama": "llama.cpp",
    "transformers": "transformers", "gradio": "transformers", "streamlit": "transformers",
}  # fmt: skip
_WRAPPING = ("llama-cpp-python", "ollama")
"""Servers whose version is not that of the engine inside."""
_LONG = 8192
"""Tokens of a prompt that a transformers server may have had to answer: the upper end of what its requests have taken so far."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part in MiB. `read` names where the figure was read, "" for an estimate; `low` and `high` are its band where one is measured."""

    kind: str
    name: str
    mib: float
    low: float
    high: float
    formula: str = ""
    source: str = ""
    read: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a card. Without `parts`, `why` says what is missing. `low` and `high`: the band of the sum of the parts."""

    subject: str
    pid: int | None
    card: str
    mib: float | None
    engine: str = ""
    version: str = ""
    model: str = ""
    command: str = ""
    parts: tuple[Part, ...] = ()
    low: float = 0.0
    high: float = 0.0
    kv_tokens: float | None = None
    kv_used_mib: float | None = None
    assumed: tuple[str, ...] = ()
    guessed: bool = False
    """No setting was readable: the size of a pool is the engine's default."""
    why: str = ""

    @property
    def estimate(self) -> float:
        """Sum of the parts."""
        return sum(p.mib for p in self.parts)

    @property
    def rest(self) -> float | None:
        """What NVML counts beyond the parts; below zero where they say more than it counts."""
        return None if self.mib is None or not self.parts else self.mib - self.estimate

    @property
    def within(self) -> bool:
        """Whether NVML's number lies in the band of the parts."""
        return self.mib is not None and bool(self.parts) and self.low <= self.mib <= self.high

    def of(self, kind: str) -> float:
        """Sum of the parts of a kind."""
        return sum(p.mib for p in self.parts if p.kind == kind)


Own = Mapping[str, Value]


def table(evidence: Evidence) -> dict[str, dict[str, Value]]:
    """Facts by subject; the first of a name counts."""
    found: dict[str, dict[str, Value]] = {}
    for f in evidence.facts:
        found.setdefault(f.subject, {}).setdefault(f.name, f.value)
    return found


def decompose(evidence: Evidence) -> tuple[Holder, ...]:
    """Every process that NVML lists, by card, the largest first."""
    own = table(evidence)
    found = []
    for subject, facts in own.items():
        if family_of(subject) != "process" or not isinstance(facts.get("gpu"), int):
            continue
        card = f"gpu{facts['gpu']}"
        holder = _holder(subject, facts, card, own)
        if (first := _larger(subject, facts, own)) is not None:
            holder = replace(holder, parts=(), why=say(f"helper of pid {first}", f"pid {first} 的辅助进程"))
        found.append(holder)
    return tuple(sorted(found, key=lambda h: (int(h.card[3:]), -(h.mib or 0))))


def _larger(subject: str, facts: Own, own: Mapping[str, Own]) -> Value:
    """The pid of a larger process of the same server on the same card, which holds what the configuration says; None for the largest."""
    if facts.get("launched_by") is None:
        return None
    mates = [
        (s, f) for s, f in own.items()
        if family_of(s) == "process" and (f.get("launched_by"), f.get("gpu")) == (facts["launched_by"], facts.get("gpu"))
    ]  # fmt: skip
    most, first = max(mates, key=lambda m: _number(m[1].get("memory_mib")) or 0.0)
    return None if most == subject else first.get("pid")


def settings_of(facts: Own) -> dict[str, str]:
    """`process.settings` as a table: `vllm.max_model_len` → `8192`."""
    listed = facts.get("settings")
    return {name: value for name, _, value in (str(p).partition("=") for p in (listed if isinstance(listed, list) else []))}


def _holder(subject: str, facts: Own, card: str, own: Mapping[str, Own]) -> Holder:
    pid, size = facts.get("pid"), facts.get("memory_mib")
    settings = settings_of(facts)
    said = str(facts.get("engine") or "")
    engine = "vllm" if "vllm.model" in settings else _ENGINES.get(said, "")
    base = Holder(
        subject, pid if isinstance(pid, int) else None, card, float(size) if isinstance(size, int | float) else None,
        said, str(facts.get("engine_version") or ""), str(facts.get("model") or ""),
        str(facts.get("launch") or facts.get("command") or facts.get("name") or ""),
    )  # fmt: skip
    if not said:
        return replace(base, why=say("no model server that dstune knows", "不是 dstune 认识的模型服务"))
    if not engine:
        return replace(base, why=say(f"no memory model for {said}", f"没有 {said} 的显存模型"))
    server = _server(base, facts, settings, own)
    answers = own.get(server, {})
    version = base.version or (str(answers.get("version") or "") if answers.get("engine") == said == engine else "")
    shown = f"{engine} {version}" if said != engine and version and said not in _WRAPPING else version
    base = replace(base, version=shown, model=base.model or _served(answers))
    if base.mib is None:
        return replace(base, why=say("the driver does not say how much it holds", "驱动不提供该进程的显存占用"))
    try:
        spec = _spec(base.model, engine, facts, answers)
        board = gpus.find(str(own.get(card, {}).get("name") or ""), _number(own.get(card, {}).get("memory_total_mib")))
    except DstuneError as error:
        return replace(base, why=" ".join(filter(None, (error.what, error.next))))
    share, total = _cards(facts, own), _number(own.get(card, {}).get("memory_total_mib"))
    reserved = _number(own.get(card, {}).get("memory_reserved_mib"))
    visible = slice_of(facts, own.get(card, {})) or (total - reserved if total and reserved else 0.0)
    try:
        ask, assumed = _ask(engine, "" if said in _WRAPPING else version, spec, board, share, visible, settings, facts, answers)
        return _parts(replace(base, assumed=assumed, guessed=not settings), ask, facts, server, own)
    except (DstuneError, ValueError, ArithmeticError, KeyError) as error:
        return replace(base, why=getattr(error, "what", "") or f"{type(error).__name__}: {error}")


def slice_of(process: Own, card: Own, what: str = "mig_slice_total_mib") -> Any:
    """Memory (or another list of the card) of the MIG slice that a process runs in; None without MIG."""
    instances, values = card.get("mig_slice_instance"), card.get(what)
    if not isinstance(instances, list) or not isinstance(values, list) or process.get("mig_instance") not in instances:
        return None
    at = instances.index(process["mig_instance"])
    return values[at] if at < len(values) else None


def _served(answers: Own) -> str:
    listed = answers.get("models")
    return str(answers.get("model_root") or (listed[0] if isinstance(listed, list) and listed else ""))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _cards(facts: Own, own: Mapping[str, Own]) -> int:
    """Cards over which one server is spread: those of all processes that one command started."""
    key = "launched_by" if facts.get("launched_by") is not None else "pid"
    same = {f.get("gpu") for s, f in own.items() if family_of(s) == "process" and f.get(key) == facts.get(key)}
    return max(1, len(same))


_PORTS = {"vllm": "8000", "sglang": "30000", "llama.cpp": "8080"}


def _server(holder: Holder, facts: Own, settings: Mapping[str, str], own: Mapping[str, Own]) -> str:
    """The `server` subject that this process belongs to: by pid, by port, or the only one of its engine; one that tells its cache first."""
    servers = {s: f for s, f in own.items() if family_of(s) == "server" and (f.get("engine") or f.get("url"))}
    pids = (facts.get("launched_by"), facts.get("pid"))
    port = next((v for k, v in settings.items() if k.endswith((".port", ".server_port"))), _PORTS.get(holder.engine, ""))
    mine = [s for s, f in servers.items() if f.get("pid") is not None and f.get("pid") in pids]
    mine += [
        s for s, f in servers.items()
        if port and s not in mine and (str(f.get("port") or "") == port or str(f.get("url") or "").rstrip("/").endswith(f":{port}"))
    ]  # fmt: skip
    same = [s for s, f in servers.items() if f.get("engine") == holder.engine]
    mine += same if not mine and len(same) == 1 else []
    return next((s for s in mine if "kv_tokens" in servers[s] or "kv_usage_pct" in servers[s]), mine[0] if mine else "")


def _list(value: Value) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else []


def _spec(name: str, engine: str, facts: Own, answers: Own) -> ModelSpec:
    text = facts.get("model_config")
    if isinstance(text, str):
        return _of_config(name, text)
    blind = engine == "llama.cpp" or "quantization" in str(
        answers.get("command") or ""
    )  # the id does not tell how wide they are
    for known in (name, str(answers.get("model_root") or ""), *_list(answers.get("models"))):
        if known and not blind:
            try:
                return models.find(known)
            except DstuneError:
                continue
    raise DstuneError(
        say(f"model config not found{f' for {name}' if name else ''}:", f"未找到模型配置{f'（{name}）' if name else ''}："), "",
        say("give --model DIR", "请给出 --model 目录"),
    )  # fmt: skip


@lru_cache(maxsize=32)
def _of_config(name: str, text: str) -> ModelSpec:
    """The catalogue's row where its shape is the config's (its counts are exact), else the config's own."""
    try:
        data: Any = parse_json(text)
        spec = models.from_config(data, name=name)
    except (ValueError, TypeError, AttributeError, ArithmeticError, IndexError) as error:
        raise DstuneError(
            say("config.json describes no model", "config.json 描述的不是模型"), str(error), say("give --model DIR", "请给出 --model 目录")
        ) from None  # fmt: skip
    if data.get("gguf"):
        return replace(spec, quant=str(data["gguf"]), dtype="float16")
    for known in models.rows():
        same = (known.hidden, known.layers, known.vocab, known.intermediate, known.kv_heads, known.tied)
        if same == (spec.hidden, spec.layers, spec.vocab, spec.intermediate, spec.kv_heads, spec.tied):
            return replace(known, quant=spec.quant, dtype=spec.dtype, id=known.id if known.short in name else spec.id)
    return spec


def _dtype(text: str, engine: str, version: str, spec: ModelSpec) -> tuple[str, str]:
    """(dtype, scheme) in memory; `text` as a command line or a program gives it."""
    word = text.removeprefix("torch.").strip("'\"")
    if engine == "llama.cpp":
        return quant.parse(spec.quant or "F16", engine)
    scheme = spec.quant
    if word in ("", "auto"):
        own = word and engine == "transformers"  # "auto" there is the checkpoint's, in any version
        return (spec.dtype if own and spec.dtype in quant.BYTES else checkpoint_dtype(spec, engine, version)), scheme
    return quant.parse(word, engine, scheme)[0], scheme


def _ask(
    engine: str, version: str, spec: ModelSpec, board: gpus.Gpu, cards: int, visible: float, settings: Mapping[str, str], facts: Own, answers: Own
) -> tuple[Ask, tuple[str, ...]]:  # fmt: skip
    """The configuration of a process, and what had to be assumed."""
    prefix = {"llama.cpp": "llamacpp", "transformers": "transformers"}.get(engine, engine)

    def given(*names: str) -> str:
        return next((settings[n] for name in names if (n := name if "." in name else f"{prefix}.{name}") in settings), "")

    def whole(*names: str) -> int:
        text = given(*names)
        return int(float(text)) if text.replace(".", "", 1).isdigit() else 0

    def fraction(*names: str) -> float:
        text = given(*names)
        return float(text) if text.replace(".", "", 1).isdigit() else 0.0

    assumed = []
    if not settings:
        assumed.append(say("no settings were readable: the engine's defaults", "读不到设置：按引擎默认值"))
    dtype, scheme = _dtype(given("dtype", "hfserve.dtype"), engine, version, spec)
    asked = given("quantization", "hfserve.quantization").lower()
    if given("load_in_4bit") == "True" or "nf4" in asked or "4bit" in asked or "4-bit" in asked:
        scheme = "bnb-nf4"
    elif given("load_in_8bit") == "True" or asked in ("int8", "8bit", "8-bit"):
        scheme = "bnb-int8"
    elif asked in ("fp8", "bitsandbytes") and not scheme:
        scheme = {"fp8": "fp8", "bitsandbytes": "bnb-nf4"}[asked]
    ask = Ask(engine, board, spec, version=version, dtype=dtype, scheme=scheme, total_mib=visible)
    if engine == "vllm":
        parallel = whole("tensor_parallel_size") * max(1, whole("pipeline_parallel_size"))
        ask = replace(
            ask, gpus=parallel or cards, split="pipeline" if whole("pipeline_parallel_size") > 1 else "",
            utilization=fraction("gpu_memory_utilization") or _number(answers.get("gpu_memory_utilization")) or 0.0,
            max_len=whole("max_model_len") or int(_number(answers.get("max_model_len")) or 0), max_seqs=whole("max_num_seqs"),
            batched_tokens=whole("max_num_batched_tokens"), eager=given("enforce_eager") == "True", lora=given("enable_lora") == "True",
            kv_dtype=_kv(given("kv_cache_dtype")), cpu_offload_mib=1024 * fraction("cpu_offload_gb"),
            chunked={"True": True, "False": False}.get(given("enable_chunked_prefill")),
        )  # fmt: skip
    elif engine == "sglang":
        ask = replace(
            ask, gpus=whole("tp_size") or cards, utilization=fraction("mem_fraction_static") or _number(answers.get("mem_fraction_static")) or 0.0,
            max_len=whole("context_length"), max_seqs=whole("max_running_requests"), kv_dtype=_kv(given("kv_cache_dtype")),
        )  # fmt: skip
    elif engine == "llama.cpp":
        slots, each = _number(answers.get("slots")), _number(answers.get("slot_context"))
        context = whole("ctx_size") or int((slots or 1) * (each or 0)) or spec.context
        layers = given("n_gpu_layers")
        ask = replace(
            ask, gpus=cards, max_len=context, batch=1, parallel=1, micro_batch=whole("ubatch_size"), kv_dtype=given("cache_type_k"),
            gpu_layers=int(layers) if layers.lstrip("-").isdigit() and int(layers) < 999 else -1,
            attention="" if given("flash_attn").lower() in ("off", "0", "false") else "on",
        )  # fmt: skip
        if not layers:
            assumed.append(say("every layer on the card (no -ngl given)", "所有层都在显卡上（未给 -ngl）"))
    else:
        static = given("generate.cache_implementation") == "static"
        attention = given("attn_implementation", "hfserve.attn_implementation")
        output = whole("generate.max_new_tokens") or 512
        ask = replace(
            ask, attention=attention if attention in ("eager", "sdpa", "flash_attention_2") else "", batch=max(1, whole("max_batch_size")),
            prompt=512, output=output, cache="static" if static else "dynamic", max_len=whole("max_cache_len") if static else 0,
        )  # fmt: skip
        if static and ask.batch > 1:
            ask = replace(ask, prompt=max(1, 2048 // ask.batch), output=1)
        else:
            assumed.append(
                say(f"one request of 512 prompt and {output} answer tokens at a time", f"一次一个请求：提示词 512、回答 {output} token")
            )  # fmt: skip
    return with_card_dtype(ask), tuple(assumed)


def _kv(text: str) -> str:
    return "" if text == "auto" else text


def _parts(holder: Holder, ask: Ask, facts: Own, server: str, own: Mapping[str, Own]) -> Holder:
    """The parts of the process, read figures in place of estimates."""
    mem = memory(ask)
    low, high = band(ask, "peak_vram_gib")
    cards = _cards(facts, own) if ask.engine == "transformers" else 1
    parts = [_part(line, ask, cards) for line in mem.lines if line.part != "other processes"]
    parts = _from_files(parts, ask, mem, facts)
    answers = own.get(server, {})
    tokens = _number(answers.get("kv_tokens"))
    parts = _from_log(parts, ask, holder, own)
    if tokens and mem.kv_tokens is not None and not any(p.read for p in parts if p.kind == "kv"):
        each = _pool(mem) / mem.kv_tokens if mem.kv_tokens else kv_per_token(ask.model) / MIB
        parts = _replaced(parts, "kv", tokens * each, f"{tokens:,.0f} tokens", f"{server}: /metrics")
    else:
        tokens = mem.kv_tokens
    total = sum(p.mib for p in parts)
    used = _number(answers.get("kv_usage_pct"))
    pool = sum(p.mib for p in parts if p.kind == "kv")
    done = replace(
        holder, parts=tuple(sorted(parts, key=lambda p: KINDS.index(p.kind))), low=low * total, high=high * total, kv_tokens=tokens,
        kv_used_mib=pool * used / 100 if used is not None and ask.engine != "transformers" else None,
    )  # fmt: skip
    if ask.engine == "transformers" and ask.cache != "static":  # it grows with the longest request so far
        idle, long = (memory(replace(ask, prompt=p, output=o)).total_mib / cards for p, o in ((1, 0), (_LONG, ask.output)))
        done = replace(done, low=low * min(idle, total), high=high * max(long, total))
    return done


def _pool(mem: Memory) -> float:
    return sum(line.mib for line in mem.lines if line.part.startswith("KV"))


def _part(line: MemoryLine, ask: Ask, cards: int) -> Part:
    key = max((k for k in _KIND if line.part.startswith(k)), key=len, default="")
    kind = _KIND.get(key, "other")
    mib = line.mib if kind == "context" else line.mib / cards
    low, high = 1.0, 1.0
    if kind == "weights":
        low, high = band(ask, "weights_gib")
    elif kind == "kv" and ask.engine in ("vllm", "sglang"):
        low, high = band(ask, "kv_cache_tokens")
    return Part(kind, line.part, mib, mib * low, mib * high, line.formula, line.source)


def _from_files(parts: list[Part], ask: Ask, mem: Memory, facts: Own) -> list[Part]:
    """GGUF weights lie in the file as they lie on the card: its size corrects what the file type alone does not tell."""
    size = _number(facts.get("model_files_mib"))
    guess = mem.weights_gib * 1024
    if ask.engine != "llama.cpp" or not size or not guess or not 0.7 < size / guess < 1.4:
        return parts
    factor = size / guess
    return [
        replace(p, mib=p.mib * factor, low=p.mib * factor * 0.98, high=p.mib * factor, formula=f"{size:,.0f} MiB of the file", source="GGUF file")
        if p.kind == "weights" else p
        for p in parts
    ]  # fmt: skip


_LOG = {
    "vllm": (("weights", "vllm", "weights_mib"), ("kv", "vllm", "kv_available_mib"), ("graphs", "vllm", "graph_mib")),
    "llama.cpp": (("weights", "llamacpp", "gpu_weights_mib"), ("kv", "llamacpp", "kv_mib")),
}


def _from_log(parts: list[Part], ask: Ask, holder: Holder, own: Mapping[str, Own]) -> list[Part]:
    """What the engine's log says, where only one server of the engine is on the cards: a log has no pid."""
    heads = {
        f.get("launched_by") or f.get("pid") for s, f in own.items() if family_of(s) == "process" and f.get("engine") == holder.engine
    }  # fmt: skip
    for kind, family, name in _LOG.get(ask.engine, ()) if len(heads) == 1 else ():
        value = _number(own.get(family, {}).get(name))
        if value is not None and (value or kind == "graphs"):
            parts = _replaced(parts, kind, value, "", say("the engine's log", "引擎日志"))
    return parts


def _replaced(parts: Iterable[Part], kind: str, mib: float, formula: str, read: str) -> list[Part]:
    """The parts of a kind as one that was read."""
    parts = list(parts)
    first = next((p for p in parts if p.kind == kind), None)
    name = {"weights": "weights", "graphs": "CUDA graphs"}.get(kind, first.name if first else "KV cache")
    return [p for p in parts if p.kind != kind] + [Part(kind, name, mib, mib, mib, formula, read, read)]
