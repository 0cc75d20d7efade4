"""A Capacity → text of 80 columns, and the `capacity` object of a plan."""

from __future__ import annotations

from typing import Any

from dstune.lang import pick, say
from dstune.model.plan import Capacity
from dstune.report.text import cells, paint, wrap

_LENGTHS = {
    "lognormal": ("lognormal", "对数正态"),
    "fixed": ("fixed", "固定"),
    "recorded": ("of the recorded run", "取自录制的压测"),
}
_COLUMNS = (
    ("rate", ("req/s", "请求/s")), ("kept", ("within", "达标")), ("ttft_p50_ms", ("TTFT p50", "TTFT p50")), ("ttft_p95_ms", ("p95 ms", "p95 ms")),
    ("itl_p50_ms", ("ITL p50", "ITL p50")), ("itl_p95_ms", ("p95 ms", "p95 ms")), ("running", ("at once", "并发")), ("utilisation", ("used", "利用率")),
)  # fmt: skip

IDLE = 0.25
"""Part of its throughput below which a replica at its knee is said to stand idle."""


def capacity_json(c: Capacity) -> dict[str, Any]:
    """The `capacity` object: what one replica holds with its band, replicas for the rate, figures of loads."""
    return {
        "rate": c.rate,
        "holds_request_s": {"value": _short(c.holds.value), "low": _short(c.holds.low), "high": _short(c.holds.high)},
        "replicas": c.replicas,
        "replicas_band": list(c.replicas_band),
        "limits": {"ttft_ms": c.slo_ttft_ms, "itl_ms": c.slo_itl_ms, "share": c.share, "assumed": list(c.assumed)},
        "alone_share": _short(c.alone),
        "out_of_reach": [pick(t) for t in c.reach],
        "lengths": {"kind": c.lengths, "prompt_tokens": round(c.prompt_tokens, 1), "output_tokens": round(c.output_tokens, 1)},
        "simulated": {"requests": c.requests, "seed": c.seed, "max_num_seqs": c.at_once},
        "at_rate": {k: _short(v) for k, v in c.at_rate.items()},
        "loads": [{k: _short(v) for k, v in row.items()} for row in c.loads],
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def capacity_text(c: Capacity, gpus: int) -> str:
    """What a person asks: how much one holds, how many it takes, what users then see."""
    kind = say(*_LENGTHS[c.lengths])
    mlperf = say(" (not given: MLPerf's server scenario)", "（未给出，取 MLPerf server 场景）")
    ttft, itl = (mlperf if name in c.assumed else "" for name in ("ttft", "itl"))
    lines = [
        paint(say(f"Load: {c.rate:g} requests/s, simulated", f"负载：每秒 {c.rate:g} 个请求（模拟）"), "bold"),
        wrap(
            say(
                f"{c.requests:,} requests with Poisson arrivals; lengths {kind}, on average {c.prompt_tokens:,.0f} tokens in and {c.output_tokens:,.0f} out; "
                f"limits: first token {c.slo_ttft_ms:g} ms{ttft}, {c.slo_itl_ms:g} ms a token{itl}, for {100 * c.share:.0f} % of the requests",
                f"{c.requests:,} 个泊松到达的请求；长度{kind}，平均输入 {c.prompt_tokens:,.0f}、输出 {c.output_tokens:,.0f} token；"
                f"要求 {100 * c.share:.0f}% 的请求首 token 不超过 {c.slo_ttft_ms:g} ms{ttft}、每 token 不超过 {c.slo_itl_ms:g} ms{itl}",
            ),
            "  ",
        ),
    ]  # fmt: skip
    if c.reach:
        reason, *ways = (pick(t) for t in c.reach)
        lines += [
            _row(say("one replica holds", "单副本可承受"), say("out of reach at any rate", "任何请求率都达不到")),
            _enough(),
        ]
        lines.append(wrap(reason, "  "))
        if ways:
            lines += [say("  What would be within them:", "  可以达标的做法："), *(wrap(f"- {w}", "    ") for w in ways)]
        return "\n".join(lines)
    lines.append(
        _row(say("one replica holds", "单副本可承受"), f"{_n(c.holds.value)} {say('requests/s', '请求/s')}", f"  ({_n(c.holds.low)} … {_n(c.holds.high)})")
    )  # fmt: skip
    if c.replicas:
        low, high = c.replicas_band
        cards = say(f" of {gpus} cards", f"（每个 {gpus} 张卡）") if gpus > 1 else ""
        up = str(high) if high else say("no number", "再多也不够")
        lines.append(
            _row(say("replicas needed", "需要副本数"), f"{c.replicas}{cards}", f"  ({low} … {up})" if low != high else "")
        )
        a = c.at_rate
        lines.append(
            wrap(
                say(
                    f"each then takes {_n(a['rate'])}/s: goodput {_n(a['goodput'])}/s, first token {_n(a['ttft_p50_ms'])} ms (p95 {_n(a['ttft_p95_ms'])}), "
                    f"between tokens {_n(a['itl_p50_ms'])} ms (p95 {_n(a['itl_p95_ms'])}), {_n(a['running'])} at once, {100 * a['utilisation']:.0f} % of its throughput used",
                    f"此时每个副本 {_n(a['rate'])}/s：有效吞吐 {_n(a['goodput'])}/s，首 token {_n(a['ttft_p50_ms'])} ms（p95 {_n(a['ttft_p95_ms'])}），"
                    f"token 间隔 {_n(a['itl_p50_ms'])} ms（p95 {_n(a['itl_p95_ms'])}），并发 {_n(a['running'])}，吞吐利用率 {100 * a['utilisation']:.0f}%",
                ),
                "  ",
            )
        )
        if any(row["rate"] == c.holds.value and row["utilisation"] < IDLE for row in c.loads):
            lines.append(
                wrap(
                    say(
                        f"Most of a replica stands idle to keep the limits: with {c.at_once} at once, a request that finds it busy is too late.",
                        f"为守住时延，副本大部分时间只能空闲：并发上限 {c.at_once}，请求到达时若正忙就会超时。",
                    ),
                    "  ",
                )
            )
    else:
        lines.append(_enough())
    if c.loads:
        heads = [say(*h) for _, h in _COLUMNS]
        lines.append("  " + "".join(_right(h, 9) for h in heads))
        for row in c.loads:
            mark = say("  ← knee", "  ← 拐点") if row["rate"] == c.holds.value else ""
            lines.append("  " + "".join(_right(_cell(key, row[key]), 9) for key, _ in _COLUMNS) + mark)
    return "\n".join(lines)


def _enough() -> str:
    return _row(say("replicas needed", "需要副本数"), say("no number is enough", "再多也不够"))


def _cell(key: str, value: float) -> str:
    return f"{100 * value:.0f} %" if key in ("kept", "utilisation") else _n(value)


def _n(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _right(text: str, width: int) -> str:
    return " " * max(1, width - cells(text)) + text


def _row(label: str, value: str, after: str = "", width: int = 46) -> str:
    return f"  {label}{' ' * max(1, width - 2 - cells(label) - cells(value))}{value}{after}"
