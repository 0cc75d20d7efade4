"""What a server says of itself when it starts and runs: read out of its log, endpoint or launch line, one table per engine.

People look for these lines to see whether a flag took effect; the engine's own words count, not the command's.
"""

from __future__ import annotations

from typing import Any

from dstune.lang import say
from dstune.model import Evidence, Fact, family_of
from dstune.redact import redact

FAMILIES = ("vllm", "sglang", "llamacpp", "server", "run")
_FIRST = (
    "version", "model", "served_model_name", "device", "dtype", "quantization_used", "quantization", "attention", "weights_mib", "activation_mib", "graph_mib",
    "enforce_eager", "kv_available_mib", "kv_tokens", "kv_blocks", "kv_block_size", "kv_cache_dtype", "max_concurrency", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "enable_prefix_caching", "enable_chunked_prefill", "gpu_memory_utilization", "layers_on_gpu", "layers", "context", "running",
    "waiting", "slots", "kv_usage_pct", "generation_tok_s", "prompt_tok_s", "prefix_hit_pct", "preemptions", "requests", "length_finish_pct", "prompt_tokens", "generation_tokens",
    *(f"{time}_p{at}_ms" for time in ("ttft", "itl", "e2e", "queue", "prefill", "decode") for at in (50, 95, 99)),
)  # fmt: skip
_NAMES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
    "server": ("server", "服务"),
    "run": ("load test", "压测"),
}
_HIDDEN = frozenset(
    ("pid", "interpreter", "working_directory", "command", "uptime_s", "ports", "url", "reachable", "health_status",
     "count", "ours", "owned_by", "workers", "rss_mib")
)  # fmt: skip
"""Known anyway; the last five are of the processes on this machine: `dstune probe` lists them."""


def health(evidence: Evidence) -> dict[str, list[Fact]]:
    """Facts by engine, in the order a person reads them; the last word on each name counts. Nothing where only a host was probed."""
    found: dict[str, dict[str, Fact]] = {}
    for fact in evidence.facts:
        family = family_of(fact.subject)
        if family in FAMILIES and fact.name not in _HIDDEN and fact.value not in ("", None):
            found.setdefault(family, {})[fact.name] = fact
    order = {name: i for i, name in enumerate(_FIRST)}
    return {
        family: sorted(facts.values(), key=lambda f: (order.get(f.name, len(order)), f.name))
        for family, facts in sorted(found.items(), key=lambda item: FAMILIES.index(item[0]))
        if any(f.line is not None or f.source.startswith(("http", "GET http")) for f in facts.values())
    }


def health_json(evidence: Evidence) -> list[dict[str, Any]]:
    """The same for `--json`."""
    return [
        {"subject": family, "name": f.name, "value": f.value, "source": redact(f.source), "line": f.line}
        for family, facts in health(evidence).items()
        for f in facts
    ]


def health_text(evidence: Evidence, width: int = 80) -> str:
    """One paragraph per engine: `name value`, joined; where it was read last."""
    out: list[str] = []
    for family, facts in (item for part in _servers(evidence) for item in health(part).items()):
        name = _NAMES[family]
        title = name if isinstance(name, str) else say(*name)
        source = next(f.source for f in facts if f.source != "--endpoint").removeprefix("GET ")
        source = redact("/".join(source.split("/")[:3]) if source.startswith("http") else source)
        out.append(say(f"{title}, as read in {source}:", f"{title}（读自 {source}）："))
        line = "  "
        for fact in facts:
            item = f"{fact.name} {_value(fact)}"
            if len(line) + len(item) > width - 3 and line.strip():
                out.append(line.rstrip(" ·"))
                line = "  "
            line += item + " · "
        out.append(line.rstrip(" ·"))
    return "\n".join(out)


def _servers(evidence: Evidence) -> list[Evidence]:
    """The evidence in parts: files that are about different servers each for itself."""
    from dstune.derive import disagreements

    files = dict.fromkeys(f.source for pair in disagreements(evidence) for f in pair)
    rest = Evidence(tuple(f for f in evidence.facts if f.source not in files))
    return [*(Evidence(tuple(f for f in evidence.facts if f.source == s)) for s in files), rest]


def _value(fact: Fact) -> str:
    if isinstance(fact.value, bool):
        return say("on", "开") if fact.value else say("off", "关")
    if isinstance(fact.value, list):
        return ", ".join(map(str, fact.value))
    if isinstance(fact.value, int | float) and fact.name != "port":
        return f"{fact.value:,.4g}" if isinstance(fact.value, float) and fact.value < 1e4 else f"{fact.value:,.0f}"
    return redact(str(fact.value))
