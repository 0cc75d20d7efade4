"""A saved load test as facts: `run.*` for what clients saw, `server.*` and `gpu.*` for what was read beside it. Pure."""

from __future__ import annotations

from typing import Any

from dstune.model import Fact

_LATENCIES = (("ttft_ms", ("mean", "p50", "p95", "max")), ("itl_ms", ("p50", "p95")), ("e2e_ms", ("p50",)))
HELD = 20.0
"""Per cent of the samples from which a clock event reason counts as what the card was in."""

COUNTED = ("requests", "prompt_tokens", "generation_tokens", "preemptions", "prefix_hit_pct", "length_finish_pct", "kv_tokens")
"""What a trial keeps of the server's own counters, and doctor reads back out of it."""


LOOPS = ("line-loop", "phrase-loop", "ngram-loop")
LOOPS_LEAST = 0.25
"""Lower end of the interval of such loops from which they are the server's: a small model repeats itself on a well server too, greedily above
all (SmolLM2-135M under vLLM: 4 of 24 answers, 7 to 36 %)."""


def _counts(row: dict[str, Any]) -> bool:
    """Whether a behaviour is more than chance."""
    return bool(row["hits"] >= 2 and (row["probe"] not in LOOPS or row.get("low", 1.0) >= LOOPS_LEAST))


def facts(report: dict[str, Any], source: str) -> list[Fact]:
    """Facts of a report of `dstune bench`: of its last trial (the heaviest of a sweep), and of its behaviour probes."""
    trials = report.get("trials") or ([report["trial"]] if "trial" in report else [])
    out: list[Fact] = []
    if trials:
        out += _run(trials[-1], source)
        out += _server(trials[-1], source)
        for card in trials[-1].get("gpu") or ():
            out += _gpu(card, source)
    rows = report.get("behaviours") or ()
    if rows:
        out.append(Fact("run", "behaviours", [str(r["probe"]) for r in rows if _counts(r)], f"{source}: behaviours"))
    return out


def _run(t: dict[str, Any], source: str) -> list[Fact]:
    ok, failed = t["requests"]["ok"], t["requests"]["failed"]
    settings, work, once = t.get("settings") or {}, t.get("workload") or {}, t.get("at_once") or {}
    values: dict[str, Any] = {
        "server": settings.get("server"), "streamed": settings.get("stream"), "answered": ok, "failed_pct": _share(failed, ok + failed),
        "concurrency": None if work.get("rate") is not None else work.get("concurrency"), "rate": work.get("rate"),
        "errors": sorted(t.get("errors") or {}, key=lambda k: -t["errors"][k]),
        "streamed_pct": _percent(t.get("streamed_share")), "burst_pct": _percent(t.get("burst_share")), "none_chunks": t.get("none_chunks"),
        "length_finish_pct": _share((t.get("finish") or {}).get("length", 0), ok), "in_flight": once.get("in_flight"),
        "streaming": once.get("streaming"), "streaming_peak": once.get("streaming_peak"), "stairs": t.get("stairs"), "output_tok_s": t.get("output_tok_s"),
        "client_share_pct": _percent(t.get("client_share")), "client_bottleneck": t.get("client_bottleneck"),
    }  # fmt: skip
    for key, names in _LATENCIES:
        for name in names:
            values[f"{key[:-3]}_{name}_ms"] = (t.get(key) or {}).get(name)
    cards = t.get("gpu") or ()
    busy = [c["utilization_pct"]["mean"] for c in cards if "utilization_pct" in c]
    idle = [c["idle_pct"] for c in cards if "idle_pct" in c]
    values["gpu_busy_pct"] = round(sum(busy) / len(busy), 1) if busy else None
    values["gpu_idle_pct"] = round(sum(idle) / len(idle), 1) if idle else None
    return [Fact("run", name, value, f"{source}: {name}") for name, value in values.items() if value is not None]


def _server(t: dict[str, Any], source: str) -> list[Fact]:
    """The names of the endpoint probe, so that its rules hold here: running, waiting and KV use are the highest during the load."""
    said, settings = t.get("server"), t.get("settings") or {}
    if not isinstance(said, dict):
        return []
    values: dict[str, Any] = {
        "engine": settings.get("server"), "version": settings.get("server_version") or None, "window_s": t.get("duration_s"),
        "running": said.get("running_max"), "waiting": said.get("waiting_max"), "kv_usage_pct": said.get("kv_usage_max_pct"),
    }  # fmt: skip
    for name in COUNTED:
        values[name] = said.get(name)
    for name in ("ttft", "itl", "e2e", "queue", "prefill", "decode"):
        row = said.get(f"{name}_ms")
        for p in ("p50", "p95", "p99"):
            values[f"{name}_{p}_ms"] = row.get(p) if isinstance(row, dict) else None
    return [Fact("server", name, value, f"{source}: server.{name}") for name, value in values.items() if value is not None]


def _gpu(card: dict[str, Any], source: str) -> list[Fact]:
    values: dict[str, Any] = {"name": card.get("name"), "idle": False}
    values["clock_event_reasons"] = [n for n, p in (card.get("reasons_pct") or {}).items() if p >= HELD and n != "gpu_idle"]
    for name, which in (("utilization_pct", "mean"), ("memory_used_mib", "max"), ("power_draw_w", "mean"), ("clock_sm_mhz", "mean"), ("temperature_c", "max")):  # fmt: skip
        values[name] = (card.get(name) or {}).get(which)
    return [
        Fact(card["gpu"], name, value, f"{source}: {card['gpu']}.{name}") for name, value in values.items() if value is not None
    ]


def words(report: dict[str, Any]) -> str:
    """What the server said about errors and the excerpts of odd texts, a line each: log signatures are looked for in it."""
    trials = report.get("trials") or ([report["trial"]] if "trial" in report else [])
    lines = [f"{kind}: {text}" for t in trials for kind, text in (t.get("error_words") or {}).items()]
    lines += [f"answer ({r['probe']}): {r['excerpt']}" for r in report.get("behaviours") or () if _counts(r)]
    return "\n".join(dict.fromkeys(lines))


def _share(part: float, whole: float) -> float | None:
    return round(100 * part / whole, 1) if whole else None


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)
