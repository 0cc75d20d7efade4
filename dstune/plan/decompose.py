"""Where a serving process's memory goes: NVML's number for it against the estimate of its configuration, and the rest by name.

Pure: evidence in (`process.*` facts of `dstune.serving`, the card's, a server's /metrics, an engine's log), parts out. MiB of one card.
What an engine says of itself replaces the estimate of that part; what is left over is never spread over the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dstune.catalog import gpus
from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import Evidence, Value, family_of
from dstune.model.plan import MemoryLine
from dstune.plan.ask import Ask
from dstune.plan.estimate import band
from dstune.plan.memory import Memory, kv_per_token, memory
from dstune.plan.process_ask import Own, ask_of, number, served, settings_of, spec_of

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
    most, first = max(mates, key=lambda m: number(m[1].get("memory_mib")) or 0.0)
    return None if most == subject else first.get("pid")


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
    base = replace(base, version=shown, model=base.model or served(answers))
    if base.mib is None:
        return replace(base, why=say("the driver does not say how much it holds", "驱动不提供该进程的显存占用"))
    try:
        spec = spec_of(base.model, engine, facts, answers)
        board = gpus.find(str(own.get(card, {}).get("name") or ""), number(own.get(card, {}).get("memory_total_mib")))
    except DstuneError as error:
        return replace(base, why=" ".join(filter(None, (error.what, error.next))))
    share, total = _cards(facts, own), number(own.get(card, {}).get("memory_total_mib"))
    reserved = number(own.get(card, {}).get("memory_reserved_mib"))
    visible = slice_of(facts, own.get(card, {})) or (total - reserved if total and reserved else 0.0)
    try:
        ask, assumed = ask_of(
            engine, "" if said in _WRAPPING else version, spec, board, share, visible, settings, facts, answers
        )
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


def _parts(holder: Holder, ask: Ask, facts: Own, server: str, own: Mapping[str, Own]) -> Holder:
    """The parts of the process, read figures in place of estimates."""
    mem = memory(ask)
    low, high = band(ask, "peak_vram_gib")
    cards = _cards(facts, own) if ask.engine == "transformers" else 1
    parts = [_part(line, ask, cards) for line in mem.lines if line.part != "other processes"]
    parts = _from_files(parts, ask, mem, facts)
    answers = own.get(server, {})
    tokens = number(answers.get("kv_tokens"))
    parts = _from_log(parts, ask, holder, own)
    if tokens and mem.kv_tokens is not None and not any(p.read for p in parts if p.kind == "kv"):
        each = _pool(mem) / mem.kv_tokens if mem.kv_tokens else kv_per_token(ask.model) / MIB
        parts = _replaced(parts, "kv", tokens * each, f"{tokens:,.0f} tokens", f"{server}: /metrics")
    else:
        tokens = mem.kv_tokens
    total = sum(p.mib for p in parts)
    used = number(answers.get("kv_usage_pct"))
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
    size = number(facts.get("model_files_mib"))
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
        value = number(own.get(family, {}).get(name))
        if value is not None and (value or kind == "graphs"):
            parts = _replaced(parts, kind, value, "", say("the engine's log", "引擎日志"))
    return parts


def _replaced(parts: Iterable[Part], kind: str, mib: float, formula: str, read: str) -> list[Part]:
    """The parts of a kind as one that was read."""
    parts = list(parts)
    first = next((p for p in parts if p.kind == kind), None)
    name = {"weights": "weights", "graphs": "CUDA graphs"}.get(kind, first.name if first else "KV cache")
    return [p for p in parts if p.kind != kind] + [Part(kind, name, mib, mib, mib, formula, read, read)]
