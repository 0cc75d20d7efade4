"""Prometheus text of a server → facts, for vLLM (0.6 to now), SGLang, llama.cpp, TGI and the program of `generate app`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from dstune.model import Fact, Value

Emit = Callable[[str, Value, str], Fact]

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+([^\s]+)(?:\s+\d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the exposition format."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    value: float = 0.0


def parse(text: str) -> list[Sample]:
    """Samples of a text; lines that are none are skipped."""
    found = []
    for line in text.splitlines():
        match = _SAMPLE.match(line.strip())
        if match and not line.startswith("#"):
            try:
                value = float(match[3])
            except ValueError:
                continue
            found.append(
                Sample(
                    match[1].replace("sglang:", "sglang_").replace("llamacpp:", "llamacpp_"),
                    dict(_LABEL.findall(match[2] or "")),
                    value,
                )
            )
    return found


ENGINES = {
    "vllm": "vllm:", "sglang": "sglang", "llama.cpp": "llamacpp:", "tgi": "tgi_", "dstune-app": "chat_requests_running",
}  # fmt: skip
"""Server by the beginning of its metrics' names; `dstune-app` is the program of `dstune generate app`."""
_SUMS = {
    "running": (
        "vllm:num_requests_running",
        "sglang_num_running_reqs",
        "llamacpp_requests_processing",
        "tgi_batch_current_size",
        "chat_requests_running",
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang_num_queue_reqs",
        "llamacpp_requests_deferred",
        "tgi_queue_size",
        "chat_requests_waiting",
    ),
    "swapped": ("vllm:num_requests_swapped",),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "prompt_tokens": (
        "vllm:prompt_tokens_total",
        "sglang_prompt_tokens_total",
        "llamacpp_prompt_tokens_total",
        "tgi_request_input_length_sum",
        "chat_prompt_tokens_total",
    ),
    "generation_tokens": (
        "vllm:generation_tokens_total",
        "sglang_generation_tokens_total",
        "llamacpp_tokens_predicted_total",
        "tgi_request_generated_tokens_sum",
        "chat_output_tokens_total",
    ),
    "used_tokens": ("sglang_num_used_tokens",),
    "kv_tokens": ("sglang_max_total_num_tokens",),
}
_PERCENT = {
    "kv_usage_pct": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang_token_usage",
        "llamacpp_kv_cache_usage_ratio",
        "chat_cache_usage",
    ),
    "cpu_kv_usage_pct": ("vllm:cpu_cache_usage_perc",),
}
"""These count 0 to 1 in spite of vLLM's `perc`."""
_RATES = {
    "generation_tok_s": (
        "sglang_gen_throughput",
        "llamacpp_predicted_tokens_seconds",
        "vllm:avg_generation_throughput_toks_per_s",
    ),
    "prompt_tok_s": ("llamacpp_prompt_tokens_seconds", "vllm:avg_prompt_throughput_toks_per_s"),
}
_HISTOGRAMS = {
    "ttft": ("vllm:time_to_first_token_seconds", "sglang_time_to_first_token_seconds", "chat_time_to_first_token_seconds"),
    "itl": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang_inter_token_latency_seconds",
        "sglang_time_per_output_token_seconds",
        "tgi_request_mean_time_per_token_duration",
    ),
    "e2e": (
        "vllm:e2e_request_latency_seconds",
        "sglang_e2e_request_latency_seconds",
        "tgi_request_duration",
        "chat_request_duration_seconds",
    ),
    "queue": (
        "vllm:request_queue_time_seconds",
        "sglang_queue_time_seconds",
        "tgi_request_queue_duration",
        "chat_time_in_queue_seconds",
    ),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
}
_COUNTS = {
    "prompt_tokens_mean": ("vllm:request_prompt_tokens", "tgi_request_input_length"),
    "generation_tokens_mean": ("vllm:request_generation_tokens", "tgi_request_generated_tokens"),
    "max_tokens_mean": ("vllm:request_params_max_tokens", "tgi_request_max_new_tokens"),
    "batch_tokens_mean": ("vllm:iteration_tokens_total",),
}
_PREFIX = (
    ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
    ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits"),
    ("vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total"),
    ("vllm:gpu_prefix_cache_queries", "vllm:gpu_prefix_cache_hits"),
    ("sglang_prompt_tokens_total", "sglang_cached_tokens_total"),
    ("chat_prompt_tokens_total", "chat_prompt_tokens_reused_total"),
)
_CONFIG = {
    "block_size": "kv_block_size",
    "num_gpu_blocks": "kv_blocks",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "enable_prefix_caching": "prefix_caching",
    "cache_dtype": "kv_cache_dtype",
    "swap_space_bytes": "swap_space_bytes",
}


class Metrics:
    """Samples by name; sums run over engines and models, `before` is subtracted from counters for a window."""

    def __init__(self, text: str, before: str = "") -> None:
        self.by_name: dict[str, list[Sample]] = {}
        for sample in parse(text):
            self.by_name.setdefault(sample.name, []).append(sample)
        self.before = Metrics(before) if before else None

    def total(self, names: tuple[str, ...], **labels: str) -> float | None:
        """Sum over the first of `names` that is there."""
        for name in names:
            found = [s.value for s in self.by_name.get(name, ()) if all(s.labels.get(k) == v for k, v in labels.items())]
            if found:
                return sum(found)
        return None

    def first(self, names: tuple[str, ...], tail: str = "") -> str:
        """The first of `names` that is there."""
        return next((n for n in names if n + tail in self.by_name), names[0])

    def grown(self, names: tuple[str, ...], **labels: str) -> float | None:
        """A counter's growth in the window (its whole value without one)."""
        now = self.total(names, **labels)
        if now is None or self.before is None:
            return now
        return max(0.0, now - (self.before.total(names, **labels) or 0.0))

    def buckets(self, names: tuple[str, ...]) -> list[tuple[float, float]]:
        """(upper bound, cumulative count) of a histogram in the window, summed over labels."""
        for name in names:
            found: dict[float, float] = {}
            for sign, metrics in ((1, self), (-1, self.before)):
                for sample in metrics.by_name.get(f"{name}_bucket", ()) if metrics else ():
                    bound = float(sample.labels.get("le", "inf"))
                    found[bound] = found.get(bound, 0.0) + sign * sample.value
            if found:
                return sorted(found.items())
        return []


def quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """Quantile by linear interpolation inside its bucket, as Prometheus' `histogram_quantile`; None for an empty histogram.

    In the last, open bucket the answer is that bucket's lower bound.
    """
    if not buckets or buckets[-1][1] <= 0:
        return None
    wanted = share * buckets[-1][1]
    low, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted and count > below:
            return low if bound == float("inf") else low + (bound - low) * (wanted - below) / (count - below)
        low, below = (bound if bound != float("inf") else low), count
    return low


def means(text: str, before: str = "") -> dict[str, float]:
    """Exact means in ms of the latency histograms (sum over count) of the window: ttft, itl, e2e, queue, prefill, decode."""
    metrics = Metrics(text, before)
    out = {}
    for name, keys in _HISTOGRAMS.items():
        for key in keys:
            count = metrics.grown((f"{key}_count",))
            if count:
                out[name] = round(1000 * (metrics.grown((f"{key}_sum",)) or 0.0) / count, 3)
                break
    return out


def read_metrics(
    text: str, source: str = "metrics", subject: str = "server", before: str = "", seconds: float = 0.0
) -> list[Fact]:
    """Facts of `server` out of a Prometheus text. With `before` (the same text `seconds` earlier) counters, latencies and
    rates are those of the window, else those since the server started."""
    return list(_read(Metrics(text, before), source, subject, seconds))


def _read(metrics: Metrics, source: str, subject: str, seconds: float) -> Iterator[Fact]:
    def fact(name: str, value: Value, key: str) -> Fact:
        return Fact(subject, name, value, f"{source}: {key}")

    engine = next(
        (e for e, p in ENGINES.items() if _has(metrics, p.replace("sglang", "sglang_").replace("llamacpp:", "llamacpp_"))), None
    )
    if engine is None:
        return
    yield fact("engine", engine, "metric names")
    for name, keys in _SUMS.items():
        counter = name in ("preemptions", "prompt_tokens", "generation_tokens")
        value = metrics.grown(keys) if counter else metrics.total(keys)
        if value is not None:
            yield fact(name, int(value), metrics.first(keys))
            if counter and seconds > 0:
                yield fact(
                    {"preemptions": "preemptions_s", "prompt_tokens": "prompt_tok_s", "generation_tokens": "generation_tok_s"}[
                        name
                    ],
                    round(value / seconds, 3),
                    metrics.first(keys),
                )
    for name, keys in _PERCENT.items():
        found = [s.value for k in keys for s in metrics.by_name.get(k, ())]
        if found:
            yield fact(name, round(100 * max(found), 2), metrics.first(keys))
    for name, keys in _RATES.items():
        value = metrics.total(keys)
        if value is not None and not (seconds > 0 and engine != "sglang"):
            yield fact(name, round(value, 2), metrics.first(keys))
    yield from _latencies(metrics, fact)
    yield from _finished(metrics, fact)
    for queries, hits in _PREFIX:
        asked, found_there = metrics.grown((queries,)), metrics.grown((hits,))
        if asked is not None and found_there is not None:
            if asked > 0:
                yield fact("prefix_hit_pct", round(100 * found_there / asked, 1), hits)
            break
    else:
        rate = metrics.total(("vllm:gpu_prefix_cache_hit_rate", "sglang_cache_hit_rate"))
        if rate is not None and rate >= 0:
            yield fact("prefix_hit_pct", round(100 * rate, 1), "cache_hit_rate")
    yield from _configuration(metrics, fact)


def _has(metrics: Metrics, prefix: str) -> bool:
    return any(n.startswith(prefix) for n in metrics.by_name)


def _latencies(metrics: Metrics, fact: Emit) -> Iterator[Fact]:
    for name, keys in _HISTOGRAMS.items():
        buckets = metrics.buckets(keys)
        for share in (50, 95, 99):
            value = quantile(buckets, share / 100)
            if value is not None:
                yield fact(f"{name}_p{share}_ms", round(1000 * value, 1), f"{metrics.first(keys, '_bucket')} (histogram)")
    for name, keys in _COUNTS.items():
        for key in keys:
            count, total = metrics.grown((f"{key}_count",)), metrics.grown((f"{key}_sum",))
            if count and total is not None:
                yield fact(name, round(total / count, 1), key)
                break


_REASONS = {
    "stop": "stop",
    "length": "length",
    "runaway": "repetition",
    "cancelled": "abort",
    "timeout": "timeout",
    "error": "error",
}
"""How the program of `generate app` names what vLLM calls so."""


def _finished(metrics: Metrics, fact: Emit) -> Iterator[Fact]:
    """Shares of requests by the reason they ended."""
    name = "vllm:request_success_total" if "vllm:request_success_total" in metrics.by_name else "vllm:request_success"
    samples = metrics.by_name.get(name, [])
    reasons = sorted({s.labels.get("finished_reason", "") for s in samples})
    counts = {r: metrics.grown((name,), finished_reason=r) or 0.0 for r in reasons}
    if "chat_requests_running" in metrics.by_name:
        name = "chat_requests_<reason>_total"
        own = {theirs: metrics.grown((f"chat_requests_{ours}_total",)) for ours, theirs in _REASONS.items()}
        counts = {reason: count for reason, count in own.items() if count is not None}
    total = sum(counts.values()) if counts else metrics.grown(("sglang_num_requests_total", "tgi_request_success"))
    if total is None:
        return
    yield fact("requests", int(total), name)
    if counts and total > 0:
        for reason in ("length", "abort", "error", "repetition"):
            if reason in counts:
                yield fact(f"{reason}_finish_pct", round(100 * counts[reason] / total, 1), name)


def _configuration(metrics: Metrics, fact: Emit) -> Iterator[Fact]:
    labels: Mapping[str, str] = next((s.labels for s in metrics.by_name.get("vllm:cache_config_info", ())), {})
    for key, name in _CONFIG.items():
        text = labels.get(key)
        if text is None or text in ("None", ""):
            continue
        value: Value = text
        if text in ("True", "False"):
            value = text == "True"
        elif re.fullmatch(r"-?\d+", text):
            value = int(text)
        elif re.fullmatch(r"-?\d+\.\d*(?:e-?\d+)?", text):
            value = round(float(text), 4)
        yield fact(name, value, f"vllm:cache_config_info {key}")
    blocks, size, tokens = (labels.get(k, "") for k in ("num_gpu_blocks", "block_size", "kv_cache_size_tokens"))
    if tokens.isdigit():
        yield fact("kv_tokens", int(tokens), "vllm:cache_config_info kv_cache_size_tokens")
    elif blocks.isdigit() and size.isdigit():
        yield fact("kv_tokens", int(blocks) * int(size), "vllm:cache_config_info num_gpu_blocks × block_size")
    sleeping = [s for s in metrics.by_name.get("vllm:engine_sleep_state", ()) if s.labels.get("sleep_state") == "awake"]
    if sleeping:
        yield fact("sleeping", any(s.value == 0 for s in sleeping), "vllm:engine_sleep_state")
    models = sorted({s.labels["model_name"] for m in metrics.by_name.values() for s in m if s.labels.get("model_name")})
    if models:
        yield fact("models", models, "label model_name")
