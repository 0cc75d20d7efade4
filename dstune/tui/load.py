"""The Load screen: a load that runs beside the GPU curve, its live histogram, and the comparison with the run before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from dstune.lang import say
from dstune.tui.draw import bar, graph, num
from dstune.tui.state import State


@dataclass(slots=True)
class LoadState:
    """What the load worker says of itself. `first_bytes` in seconds."""

    url: str = ""
    running: bool = False
    done: int = 0
    failed: int = 0
    concurrency: int = 8
    first_bytes: list[float] = field(default_factory=list)
    outcome: dict[str, Any] | None = None
    before: dict[str, Any] | None = None
    error: str = ""


def load_screen(load: LoadState, state: State, width: int, height: int, plain: bool = False) -> Text:
    """Keys, progress, histogram, GPU curve, figures, comparison."""
    out = Text(" s ", "reverse").append(say(" start/stop  ", " 开始/停止  "))
    out.append(" c/C ", "reverse").append(say(f" clients: {load.concurrency}  ", f" 客户端：{load.concurrency}  "))
    out.append(load.url or say("no server: dstune monitor URL", "没有服务：dstune monitor URL"), "dim").append("\n\n")
    if load.error:
        out.append(load.error + "\n", "red")
    if load.running:
        out.append(
            say(f"running: {load.done} answers, {load.failed} failed\n", f"运行中：{load.done} 个回答，{load.failed} 个失败\n"),
            "bold",
        )
    if load.first_bytes:
        out.append_text(_histogram(load.first_bytes, min(width, 76), plain)).append("\n")
    cards = state.evidence.subjects("gpu")
    if cards:
        out.append(say("GPU utilisation\n", "GPU 利用率\n"), "dim")
        out.append_text(graph(state.series(cards[0], "utilization_pct"), width - 2, 4, 100, plain, "green")).append("\n")
    if load.outcome:
        out.append_text(_figures(load.outcome, load.before))
    return out


def _histogram(values: list[float], width: int, plain: bool) -> Text:
    """First-byte times in eight bins."""
    top = sorted(values)[min(len(values) - 1, int(0.99 * len(values)))] or 1e-3
    counts = Counter(min(7, int(8 * v / top)) for v in values)
    most = max(counts.values())
    out = Text(say("first byte, ms\n", "首字节，毫秒\n"), "dim")
    for i in range(8):
        out.append(f"{1e3 * top * i / 8:>8.0f} ").append_text(bar(counts[i] / most, width - 20, plain, "cyan")).append(
            f" {counts[i]}\n"
        )
    return out


def _figures(now: dict[str, Any], before: dict[str, Any] | None) -> Text:
    from dstune.verify import compare, word

    out = Text("\n")
    for key, label in (
        ("ttft_ms", say("first token", "首 token")),
        ("itl_ms", say("between tokens", "token 间隔")),
        ("e2e_ms", say("whole answer", "完整回答")),
    ):
        row = now.get(key)
        if row:
            out.append(
                f"{label:18} p50 {num(row['p50'], digits=1)}  p95 {num(row['p95'], digits=1)}  p99 {num(row['p99'], digits=1)} ms\n"
            )
    out.append(
        f"{now['output_tok_s']:.1f} tok/s, {now['request_s']:.2f} {say('requests/s', '请求/秒')}, {now['requests']['failed']} {say('failed', '失败')}\n",
        "bold",
    )
    if before:
        tone = {"better": "green", "worse": "red", "noise": "dim"}
        for verdict in compare([before], [now]):
            verdict_word = word(verdict)
            out.append(
                f"  {verdict.claim:14} {verdict.before:>10.1f} → {verdict.after:>10.1f}  {verdict_word}\n", tone[verdict_word]
            )
    return out
