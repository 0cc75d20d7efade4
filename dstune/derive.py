"""Facts computed from facts: ratios, headroom, what a card's name implies. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from dstune.model import Evidence, Fact, Value, family_of


def derive(evidence: Evidence) -> Evidence:
    """The evidence and what follows from it. A fact that was read is never overwritten."""
    for rule in DERIVED:
        known = {(f.subject, f.name) for f in evidence.facts}
        evidence = evidence.plus(f for f in rule(evidence) if (f.subject, f.name) not in known)
    return evidence


def _card(evidence: Evidence) -> Iterator[Fact]:
    """What the catalogue knows of a named card where nothing was read: compute capability, memory, unified memory."""
    from dstune.catalog import gpus
    from dstune.errors import DstuneError

    for name in list(evidence.find("gpu", "name")):
        total = next((f.value for f in evidence.facts if f.subject == name.subject and f.name == "memory_total_mib"), None)
        try:
            card = gpus.find(str(name.value), float(total) if isinstance(total, int | float) else None)
        except DstuneError:
            continue
        source = f"catalogue: {card.id}"
        if card.compute_capability:
            yield Fact(name.subject, "compute_capability", card.compute_capability, source)
        yield Fact(name.subject, "unified_memory", card.unified, source)
        if card.memory_mib:
            yield Fact(name.subject, "memory_total_mib", card.memory_mib, source)


def _headroom(evidence: Evidence) -> Iterator[Fact]:
    """Share of a card's memory in use."""
    for subject in evidence.subjects("gpu"):
        own = {f.name: f.value for f in evidence.facts if f.subject == subject}
        used, total = own.get("memory_used_mib"), own.get("memory_total_mib")
        if isinstance(used, int | float) and isinstance(total, int | float) and total > 0:
            yield Fact(subject, "memory_used_pct", round(100 * used / total, 1), "derived: used / total")


CONTEXT_MIB = 600
"""What a process holds beside torch's allocator: context and workspaces (recipes/measurements/h200.json: 518 bare, 680 with them)."""


def _others(evidence: Evidence) -> Iterator[Fact]:
    """Memory that others hold when torch ran out: capacity − free − this process (message of torch's caching allocator)."""
    names = ("oom_total_mib", "oom_free_mib", "oom_process_mib", "oom_allocated_mib", "oom_reserved_free_mib")
    first = {n: next(evidence.find("log", n), None) for n in names}
    total, free, own, allocated, slack = (f.value if f else None for f in first.values())
    if own is None and isinstance(allocated, int | float) and isinstance(slack, int | float):
        own = allocated + slack + CONTEXT_MIB  # in a container torch cannot tell which of the processes it is
    if isinstance(total, int | float) and isinstance(free, int | float) and isinstance(own, int | float):
        read = first["oom_total_mib"]
        assert read is not None
        yield Fact("log", "oom_other_mib", round(max(0.0, total - free - own), 1), read.source, read.line, read.text)


def _capacity(evidence: Evidence) -> Iterator[Fact]:
    """What the process that ran out could use at most."""
    for name in ("oom_allowed_mib", "oom_total_mib"):
        if read := next(evidence.find("log", name), None):
            yield Fact("log", "oom_capacity_mib", read.value, read.source, read.line, read.text)
            return


def _wheel_cuda(evidence: Evidence) -> Iterator[Fact]:
    """CUDA of the wheels that a pinned vLLM brings from PyPI, where no index or local version says another."""
    pin = next(evidence.find("requirements", "vllm"), None)
    if pin is None or "+" in str(pin.value) or next(evidence.find("requirements", "torch_cuda"), None) is not None:
        return
    from dstune.catalog import load

    row = next((r for r in load("compat.toml")["compat"].get("vllm", ()) if r["vllm"] == pin.value), None)
    if row is not None and row.get("wheel_cuda"):
        yield Fact(pin.subject, "torch_cuda", row["wheel_cuda"], pin.source, pin.line, pin.text)


def _torch_build(evidence: Evidence) -> Iterator[Fact]:
    """What the local version of a torch build says: its CUDA, or that it is for the CPU."""
    for read in list(evidence.find("torch", "build")):
        if tag := re.search(r"\+(?:cu(\d{1,2})(\d)|cpu)\b", str(read.value)):
            yield Fact(read.subject, "has_cuda", bool(tag[1]), read.source, read.line, read.text)
            if tag[1]:
                yield Fact(read.subject, "cuda", f"{tag[1]}.{tag[2]}", read.source, read.line, read.text)


_BILLIONS = re.compile(r"(?<![\dx.A-Za-z])(\d+(?:\.\d+)?)[bB](?![A-Za-z\d])")
_PACKED = re.compile(
    r"(?i)awq|gptq|int[48]|w[48]a|[48]-?bit|bnb|fp8|nvfp4|mxfp4|fp4|gguf|gpt-oss|quant|exl[23]|-q\d|kimi-k2|deepseek-v3|deepseek-r1(?!-distill)"
)
MIB_PER_BILLION = 1907
"""Two bytes a weight (bfloat16 or float16)."""


def _weights_by_name(evidence: Evidence) -> Iterator[Fact]:
    """What the weights take by the size in the model's name, where neither the name nor a setting says that they are packed."""
    for family, named in (("vllm", "model"), ("sglang", "model_path")):
        for subject in evidence.subjects(family):
            own = {f.name: f for f in evidence.facts if f.subject == subject}
            model = own.get(named)
            if (
                model is None
                or {"quantization", "cpu_offload_gb", "load_format"} & own.keys()
                or _PACKED.search(str(model.value))
            ):
                continue
            if size := _BILLIONS.search(str(model.value).rstrip("/").rsplit("/", 1)[-1]):
                mib = round(float(size[1]) * MIB_PER_BILLION)
                yield Fact(subject, "named_weights_mib", mib, model.source, model.line, model.text)


def _engine_limits(evidence: Evidence) -> Iterator[Fact]:
    """Settings of a vLLM that its own file shows to be too large: the length for the named model, the cards for those it is given."""
    from dstune.catalog import models
    from dstune.errors import DstuneError

    told = any(h.cause == "vllm-max-len-over-model" for h in evidence.hits)  # the engine's own words come first
    for subject in evidence.subjects("vllm"):
        own = [f for f in evidence.facts if f.subject == subject and f.line is not None]
        for length in (f for f in own if f.name == "max_model_len" and not told):
            model = next((f for f in own if f.name == "model" and f.source == length.source), None)
            if any(f.name in ("hf_overrides", "rope_scaling", "rope_theta") for f in own) or model is None:
                continue
            try:
                spec = models.find(str(model.value))
            except DstuneError:
                continue
            if isinstance(length.value, int | float) and length.value > spec.context > 0:
                yield Fact(subject, "model_context", spec.context, length.source, length.line, length.text)
            break
        for size in (f for f in own if f.name == "tensor_parallel_size"):
            docker = "docker" + subject.removeprefix("vllm")
            given = [
                f for f in evidence.facts if f.source == size.source
                and ((f.subject == docker and f.name == "gpu_count") or (f.subject == "env" and f.name == "cuda_visible_devices"))
            ]  # fmt: skip
            known = [(n, f) for f in given if (n := _number_of_cards(f.value)) is not None]
            least = min(known, key=lambda item: item[0], default=None)
            if least and isinstance(size.value, int | float) and size.value > least[0]:
                yield Fact(subject, "cards_given", least[0], size.source, least[1].line, least[1].text)
            break


def _number_of_cards(value: Value) -> int | None:
    """Cards that a count or a CUDA_VISIBLE_DEVICES names."""
    if isinstance(value, int | float):
        return int(value)
    names = [v for v in str(value).strip("'\" ").split(",") if v.strip()]
    return len(names) if names and all(re.fullmatch(r"\s*(?:\d+|GPU-[\w-]+)\s*", v) for v in names) else None


SAME = {
    "vllm": ("model", "max_model_len", "tensor_parallel_size"),
    "sglang": ("model_path", "context_length", "tp_size"),
}
"""Settings by engine that two readings of one server share."""


def disagreements(evidence: Evidence) -> list[tuple[Fact, Fact]]:
    """Pairs of facts of two files that cannot be about the same start of a server: another model, length or number of cards.

    One value in common is enough to agree (a log of several starts, a file of several services). A model is compared by its last
    folder, since a container sees it under another path; a value with a variable in it says nothing.
    """
    read: dict[tuple[str, str], dict[str, dict[Value, Fact]]] = {}
    for fact in evidence.facts:
        family = family_of(fact.subject)
        if fact.line is not None and fact.name in SAME.get(family, ()) and (value := _comparable(fact.value)) is not None:
            read.setdefault((family, fact.name), {}).setdefault(fact.source, {}).setdefault(value, fact)
    found: list[tuple[Fact, Fact]] = []
    for sources in read.values():
        values = list(sources.values())
        for n, one in enumerate(values):
            found += [
                (next(iter(one.values())), next(iter(two.values()))) for two in values[n + 1 :] if not one.keys() & two.keys()
            ]
    return found


def _comparable(value: Value) -> Value:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if value > 0 else None
    if not isinstance(value, str) or not value or any(c in value for c in "${}<>"):
        return None
    parts = [p for p in value.replace("\\", "/").split("/") if p]
    cached = next((p for p in parts if p.startswith("models--")), "")  # …/models--owner--name/snapshots/<revision>
    name = cached.split("--")[-1] if cached else parts[-1] if parts else ""
    return name.replace("___", ".").lower() or None


DERIVED: tuple[Callable[[Evidence], Iterator[Fact]], ...] = (
    _card, _headroom, _others, _capacity, _wheel_cuda, _torch_build, _weights_by_name, _engine_limits,
)  # fmt: skip
