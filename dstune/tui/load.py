"""The Load screen: a load that runs beside the GPU curve, its live histogram and timeline, the comparison with the run before. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from dstune.lang import say
from dstune.model import Evidence, Finding, family_of
from dstune.tui.draw import Lines, bar, beside, click, fit, graph, left, num, right, wrapped
from dstune.tui.state import State

SECONDS = 30.0
"""Length of a load, as of `dstune bench`."""
BINS = 8


@dataclass(slots=True)
class LoadState:
    """What the load says of itself while it runs. `first_bytes` in seconds; `done`: requests that ended, failed ones
    among them; `marks`: (seconds, answers so far) at each tick."""

    url: str = ""
    running: bool = False
    warming: bool = False
    """The first question is out, and the load has not begun; `elapsed` counts from there."""
    elapsed: float = 0.0
    done: int = 0
    failed: int = 0
    concurrency: int = 8
    first_bytes: list[float] = field(default_factory=list)
    marks: list[tuple[float, int]] = field(default_factory=list)
    gpu: list[float | None] = field(default_factory=list)
    outcome: dict[str, Any] | None = None
    before: dict[str, Any] | None = None
    ran: str = ""
    clients: int = 0
    """The server and the clients of `outcome`."""
    other: bool = False
    """There was a run before, of another server or client count."""
    error: str = ""
    seen: dict[str, tuple[Finding, Evidence]] = field(default_factory=dict)
    """What was found while the load ran, with the evidence of that moment: a queue is gone seconds after the last client."""

    calm: frozenset[str] = frozenset()
    """Causes that were found before the load began."""

    def note(self, findings: Iterable[Finding], evidence: Evidence) -> tuple[Finding, ...]:
        """While a load runs, keeps what is found of servers; afterwards, what was kept and is no longer found."""
        found = {f.cause: f for f in findings}
        if self.running:
            self.seen |= {
                c: (f, evidence)
                for c, f in found.items()
                if family_of(f.subject) == "server" and not f.because and c not in self.calm
            }
            return ()
        return tuple(f for cause, (f, _) in self.seen.items() if cause not in found)


def base(url: str) -> str:
    """The address as the server's facts have it: with a scheme, without /v1. "" stays."""
    full = url if "://" in url or not url else f"http://{url}"
    return full.rstrip("/").removesuffix("/v1").rstrip("/")


def load_screen(load: LoadState, state: State, width: int, height: int, plain: bool = False, servers: int = 1) -> Lines:
    """Keys, progress, histogram, timeline over the GPU curve, figures, comparison. `servers`: how many `e` walks through."""
    head = (
        Text(no_wrap=True)
        .append(" s ", click("app.load", "reverse"))
        .append(say(" stop  ", " 停止  ") if load.running else say(" start  ", " 开始  "))
    )
    head.append(" c/C ", click("app.turn('concurrency',1)", "reverse")).append(
        say(f" {load.concurrency} client{'s' * (load.concurrency != 1)}  ", f" {load.concurrency} 个客户端  ")
    )
    if servers > 1 and not load.running:
        head.append(" e ", click("app.turn('engine',1)", "reverse")).append(say(" server ", " 服务 "))
    head.append(
        fit(load.url or say("no server: dstune monitor URL", "没有服务：dstune monitor URL"), width - head.cell_len), "dim"
    )
    out = [head, Text()]
    if load.error:
        out += [*wrapped(load.error, width, "red"), Text()]
    if not load.running and not load.marks and load.outcome is None:
        return out + wrapped(
            say(
                f"A load of {SECONDS:.0f} s with {load.concurrency} client{'s' * (load.concurrency != 1)}: chat requests of 128 tokens each, one after the other. What comes out is compared "
                "with the run before, and goes to the Doctor as evidence. s starts it.",
                f"{SECONDS:.0f} 秒压测，{load.concurrency} 个客户端依次发送 128 token 的对话请求。结果与上一次对比，并作为证据交给诊断。按 s 开始。",
            ), width, "dim",
        )  # fmt: skip
    if load.running and load.warming:
        words = say(
            f"warm-up: one question, no answer for {load.elapsed:.0f} s. The load begins with the answer, or after 60 s.",
            f"预热：先发一个问题，已等待 {load.elapsed:.0f} 秒。收到回答或等满 60 秒后开始压测。",
        )
        out += [*wrapped(words, width, "yellow"), Text()]
    elif load.running:
        ok = load.done - load.failed
        line = Text(no_wrap=True).append_text(bar(load.elapsed / SECONDS, min(30, width // 3), plain, "cyan"))
        line.append(say(f" {load.elapsed:.0f} s  {ok} answers  ", f" {load.elapsed:.0f} 秒  {ok} 个回答  "))
        line.append(say(f"{load.failed} failed", f"{load.failed} 个失败"), "bold red" if load.failed else "")
        out += [line, Text()]
    if load.outcome and not load.running:
        out += [*_ended(load, width), *_figures(load.outcome, load.before, width), Text()]
    if width >= 90 and load.first_bytes:
        half = (width - 3) // 2
        out += beside(_histogram(load.first_bytes, half, plain), _charts(load, state, width - half - 3, plain), half, 3)
    else:
        out += [*(_histogram(load.first_bytes, width, plain) if load.first_bytes else []), *_charts(load, state, width, plain)]
    return out


def _charts(load: LoadState, state: State, width: int, plain: bool) -> Lines:
    """Answers a second above the GPU's utilisation, over the same seconds."""
    if len(load.marks) < 2:
        return []
    rate = rates(load.marks, width)
    top = max([r for r in rate if r is not None], default=1.0) or 1.0
    out = [
        Text(say(f"answers/s (top {top:.1f})", f"每秒回答数（最高 {top:.1f}）"), "dim"),
        *graph(rate, len(rate), 3, top, plain, "cyan"),
    ]
    if any(v is not None for v in load.gpu):
        out.append(Text(say("GPU utilisation over the same time, %", "同一时段的 GPU 利用率，%"), "dim"))
        out += graph(stretched(load.gpu, len(rate)), len(rate), 3, 100, plain, "green")
    return out


def rates(marks: Sequence[tuple[float, int]], width: int) -> list[float | None]:
    """Answers a second in columns of one second (more where there is no room)."""
    last = marks[-1][0]
    step = max(1.0, last / max(1, width))
    counts: list[float] = [0.0] * max(1, int(last / step + 0.999))
    before = 0
    for at, done in marks:
        counts[min(len(counts) - 1, int(at / step))] += done - before
        before = done
    return [c / step for c in counts]


def stretched(values: Sequence[float | None], width: int) -> list[float | None]:
    """The values over `width` columns, nearest one each."""
    return [values[min(len(values) - 1, i * len(values) // width)] for i in range(width)] if values else []


def _histogram(values: Sequence[float], width: int, plain: bool) -> Lines:
    """First-byte times in eight bins up to the 99th percentile."""
    top = sorted(values)[min(len(values) - 1, int(0.99 * len(values)))] or 1e-3
    counts = Counter(min(BINS - 1, int(BINS * v / top)) for v in values)
    most = max(counts.values())
    out = [Text(say(f"first byte, ms ({len(values)} answers)", f"首字节，毫秒（{len(values)} 个回答）"), "dim")]
    for i in range(BINS):
        line = Text(right(f"{1e3 * top * i / BINS:.0f}", 7) + " ", no_wrap=True)
        out.append(line.append_text(bar(counts[i] / most, width - 16, plain, "cyan")).append(right(str(counts[i]), 6)))
    return out


def _ended(load: LoadState, width: int) -> Lines:
    """How the load ended, what failed and why, and why it is not compared with the run before."""
    from dstune.report.trial import early, failures

    o: dict[str, Any] = load.outcome or {}
    ok, failed = o["requests"]["ok"], o["requests"]["failed"]
    words = say(
        f"ended: {ok} answered, {failed} failed in {o['duration_s']:.1f} s",
        f"已结束：{o['duration_s']:.1f} 秒内回答 {ok} 个，失败 {failed} 个",
    )
    if o.get("interrupted"):
        words += say("; stopped by s", "；由 s 停止")
    out = [Text(fit(words, width), "bold red" if failed and not ok else "bold", no_wrap=True)]
    if why := early(o):
        out = [Text(fit(why[0].removeprefix("! "), width), "bold red", no_wrap=True)]
    for line in failures(o) if o.get("errors") else ():
        out += wrapped(line, width, "red")[:2]
    if load.before is None and load.other:
        words = say(
            "not compared: the run before was of another server or client count", "不作对比：上一次是别的服务或客户端数"
        )
        out.append(Text(fit(words, width), "dim", no_wrap=True))
    return out


def _figures(now: dict[str, Any], before: dict[str, Any] | None, width: int) -> Lines:
    from dstune.report.verify import label as named
    from dstune.verify import compare, word

    out: Lines = []
    for key, label in (
        ("ttft_ms", say("first token", "首 token")),
        ("itl_ms", say("between tokens", "token 间隔")),
        ("e2e_ms", say("whole answer", "完整回答")),
    ):
        row = now.get(key)
        if row:
            figures = "  ".join(f"{p} {num(row[p], digits=1)}" for p in ("p50", "p95", "p99"))
            out.append(Text(left(label, 16) + figures + " ms", no_wrap=True))
    if not now["requests"]["ok"]:
        return out
    words = f"{now['output_tok_s']:.1f} {say('tok/s', 'token/秒')}   {now['request_s']:.2f} {say('requests/s', '请求/秒')}   {now['requests']['failed']} {say('failed', '失败')}"
    out.append(Text(fit(words, width), "bold", no_wrap=True))
    if before and not before["requests"]["ok"]:
        out.append(Text(say("not compared: the run before had no answer", "不作对比：上一次没有得到任何回答"), "dim"))
    elif before:
        tone = {"better": "green", "worse": "red", "noise": "dim"}
        said = {"better": say("better", "变好"), "worse": say("worse", "变差"), "noise": say("within noise", "噪声范围内")}
        out.append(Text(say("compared with the run before:", "与上一次对比："), "dim"))
        for verdict in compare([before], [now]):
            found = word(verdict)
            out.append(
                Text(
                    f"  {left(named(verdict.claim), 24)} {verdict.before:>10,.1f} → {verdict.after:>10,.1f}  {said[found]}",
                    tone[found],
                    no_wrap=True,
                )
            )
    return out
