"""The Overview: cards, host, servers, findings, processes, in what room the terminal gives. Pure: state and size in, lines out."""

from __future__ import annotations

from rich.text import Text

from dstune.lang import say
from dstune.tui.card import HEIGHTS, card, narrow
from dstune.tui.draw import MARK, TONE, Lines, bar, beside, click, fit, gib, left, num, right, spark
from dstune.tui.state import State

WIDE = 150
"""Cells from which the cards stand on the left and everything else beside them."""
CURVES = 32
"""Lines of curves that one card takes at most."""


def overview(state: State, width: int, height: int, plain: bool = False) -> Lines:
    """The whole screen."""
    if width >= WIDE and state.subjects("gpu"):
        first = (width - 3) * 11 // 20
        second = width - 3 - first
        side = [host(state, second, plain), Text(), *servers(state, second, plain), Text(), *findings(state, second, 6), Text()]
        return beside(_cards(state, first, height, plain), side + processes(state, second, height - len(side)), first, 3)
    below = [host(state, width, plain), *servers(state, width, plain), *findings(state, width, 3)]
    top = _cards(state, width, height - len(below) - _wanted(state), plain)
    roomy = len(top) + len(below) + _wanted(state) < height - 2
    gap = [Text()] if roomy else []
    out = [*top, *gap, *below, *gap]
    return out + processes(state, width, height - len(out))


def _wanted(state: State) -> int:
    """Lines that the processes should have at least."""
    return min(4, 1 + len(state.processes())) if state.processes() else 0


def _cards(state: State, width: int, room: int, plain: bool) -> Lines:
    subjects = state.subjects("gpu")
    if not subjects or all(state.value(s, "name") is None and not state.value(s, "lost") for s in subjects):
        return _no_gpu(state, width)
    each = room // len(subjects)
    depth = 2 if each >= HEIGHTS[2] + 1 else 1 if each >= HEIGHTS[1] else 0
    curves = min(CURVES, each - HEIGHTS[2]) if depth == 2 else 0
    out: Lines = []
    trouble = state.gap("gpu") if state.evidence.facts else None
    if trouble is not None and trouble.name == "*":
        out.append(Text(fit(f"✖ {trouble.reason}", width), "bold red", no_wrap=True))
    if depth == 0:
        names = say("GPU", "显卡"), say("busy", "利用率"), say("memory", "显存"), say("power", "功耗")
        wide = narrow(width)
        head = left(names[0], max(10, width - 2 * wide - 58)) + " " + left(names[1], wide + 6) + left(names[2], wide + 13)
        out.append(Text(fit(head + right("T", 6) + right(names[3], 10) + right("MHz", 6), width), "dim", no_wrap=True))
    for subject in subjects:
        out += card(state, subject, width, depth, curves if curves >= 3 else 0, plain)
    return out


def _no_gpu(state: State, width: int) -> Lines:
    """Why there is none: the gap's own words."""
    if not state.samples:
        return [Text(say("reading…", "读取中…"), "dim", no_wrap=True)]
    gap = state.gap("driver") or state.gap("gpu")
    out = [
        Text(
            say("No GPU is visible here; host and server are shown.", "这里看不到 GPU；以下为主机和服务。"),
            "yellow",
            no_wrap=True,
        )
    ]
    if gap is not None:
        out.append(Text(fit(gap.reason + (f"  → {gap.hint}" if gap.hint else ""), width), "dim", no_wrap=True))
    return out


def host(state: State, width: int, plain: bool) -> Text:
    """Processor and memory of the host."""
    total, free = state.number("host", "ram_total_mib"), state.number("host", "ram_available_mib")
    used = total - free if total and free is not None else None
    room = max(6, (width - 52) // 2)
    busy = state.number("host", "cpu_pct")
    out = Text("CPU  ", no_wrap=True).append_text(bar((busy or 0) / 100, room, plain)).append(right(num(busy, "%"), 5) + "  ")
    out.append(say("RAM  ", "内存 ")).append_text(bar((used or 0) / total if total else 0, room, plain)).append(
        f" {gib(used)}/{gib(total)}"
    )
    out.append(say("  load ", "  负载 ") + num(state.value("host", "load_1m"), digits=1))
    swap = state.number("host", "swap_used_mib")
    if swap and width >= 100:
        out.append(say("  swap ", "  交换 ") + gib(swap), "yellow")
    out.truncate(width)
    return out


def servers(state: State, width: int, plain: bool) -> Lines:
    """Every model server: three lines for one, one line each for several."""
    found = [s for s in state.subjects("server") if state.value(s, "engine") is not None or state.value(s, "url") is not None]
    if not found:
        return [
            Text(
                say("no model server found here (dstune monitor URL)", "未发现模型服务（dstune monitor URL）"),
                "dim",
                no_wrap=True,
            )
        ]
    if len(found) == 1:
        return _server(state, found[0], width, plain)
    return [_server_line(state, s, width, plain) for s in found]


def _title(state: State, server: str) -> str:
    models = state.value(server, "models")
    version = state.value(server, "version") or ""
    where = state.value(server, "url") or (
        f":{num(state.value(server, 'port')).replace(',', '')}" if state.value(server, "port") else ""
    )
    return " ".join(
        str(w)
        for w in (
            state.value(server, "engine") or say("server", "服务"),
            version,
            where,
            models[0] if isinstance(models, list) and models else "",
        )
        if w
    )


def _down(state: State, server: str, width: int) -> Text | None:
    if state.value(server, "reachable") is not False:
        return None
    words = say("does not answer (restarting, or stopped)", "无响应（正在重启或已停止）")
    return Text(fit(f"✖ {_title(state, server)}  {words}", width), "bold red", no_wrap=True)


def _queue(state: State, server: str, plain: bool) -> Text:
    waiting, kv = state.number(server, "waiting"), state.number(server, "kv_usage_pct")
    out = Text(say("running ", "运行 ") + num(state.value(server, "running")), no_wrap=True)
    out.append(say("  waiting ", "  排队 ") + num(waiting), "bold yellow" if waiting else "")
    if kv is not None:
        out.append("  KV ").append_text(bar(kv / 100, 8, plain)).append(f" {num(kv)}%")
    return out.append(f"  {num(state.value(server, 'generation_tok_s'))} tok/s")


def _server_line(state: State, server: str, width: int, plain: bool) -> Text:
    down = _down(state, server, width)
    if down is not None:
        return down
    tail = _queue(state, server, plain).append(f"  TTFT {num(state.value(server, 'ttft_p50_ms'))} ms")
    head = Text(no_wrap=True).append(left(_title(state, server), width - tail.cell_len - 1), "bold")
    return head.append(" ").append_text(tail)


def _server(state: State, server: str, width: int, plain: bool) -> Lines:
    down = _down(state, server, width)
    if down is not None:
        return [down]
    row = _queue(state, server, plain)
    row.append(say("  prefix hits ", "  前缀命中 ") + num(state.value(server, "prefix_hit_pct"), "%"))
    if (taken := state.number(server, "preemptions_s")) or (taken := state.number(server, "preemptions")):
        row.append(say("  preempted ", "  抢占 ") + num(taken), "yellow")
    row.truncate(width)
    times = Text(no_wrap=True)
    for label, key in (("TTFT", "ttft"), ("ITL", "itl")):
        p50, p95 = (state.value(server, f"{key}_{p}_ms") for p in ("p50", "p95"))
        times.append(f"{label} p50 {num(p50)} p95 {num(p95)} ms   ")
    if state.value(server, "running") is None and (gap := state.gap(server)) is not None:
        times = Text(fit(gap.reason, width), "dim", no_wrap=True)
    known = [v for v in state.series(server, "generation_tok_s") if v is not None]
    room = min(60, width - times.cell_len - 8)
    if known and room >= 10:
        times.append("tok/s ", "dim").append_text(
            spark(state.curve(server, "generation_tok_s", room), room, max(known) or 1, plain)
        )
    return [Text(fit(_title(state, server), width), "bold", no_wrap=True), row, times]


def findings(state: State, width: int, rows: int) -> Lines:
    """The first root causes, a line each; a click opens them."""
    roots = [f for f in state.diagnosis.findings if not f.because]
    if not roots:
        words = say("no findings", "没有发现问题") if state.diagnosed else say("not diagnosed yet", "尚未诊断")
        return [Text(words, "green" if state.diagnosed else "dim", no_wrap=True)]
    shown = roots if len(roots) <= rows else roots[: rows - 1]
    out = [
        Text(
            fit(f"{MARK[f.severity]} {f.cause}: {f.message}".replace("\n", " "), width),
            click(f"app.open('{f.cause}')", TONE[f.severity]),
            no_wrap=True,
        )
        for f in shown
    ]
    if len(roots) > len(shown):
        more = len(roots) - len(shown)
        out.append(
            Text(say(f"  … {more} more: key 2", f"  … 另有 {more} 项：按 2"), click("app.show('doctor')", "dim"), no_wrap=True)
        )
    return out


def processes(state: State, width: int, rows: int) -> Lines:
    """Processes on the cards, the largest first."""
    found = state.processes()
    if rows < 2 or not found:
        return []
    boxed = any(state.value(p, "container") for p in found)
    head = right("PID", 8) + right("GPU", 4) + right(say("MEM", "显存"), 8) + "  "
    head += left(say("CONTAINER", "容器"), 16) + " " if boxed else ""
    out = [Text(fit(head + say("COMMAND", "命令"), width), "dim", no_wrap=True)]
    shown = found if len(found) <= rows - 1 else found[: rows - 2]
    for p in shown:
        words = (
            right(str(state.value(p, "pid") or "-"), 8)
            + right(str(state.value(p, "gpu")), 4)
            + right(gib(state.number(p, "memory_mib")), 8)
            + "  "
        )
        words += left(str(state.value(p, "container") or "-"), 16) + " " if boxed else ""
        line = Text(words, no_wrap=True)
        engine = state.value(p, "engine")
        if engine:
            line.append(f"[{engine}] ", "cyan")
        line.append(str(state.value(p, "command") or state.value(p, "name") or "?"))
        line.truncate(width, overflow="ellipsis")
        out.append(line)
    if len(found) > len(shown):
        out.append(
            Text(say(f"{len(found) - len(shown):>8} more", f"{len(found) - len(shown):>8} 个未显示"), "dim", no_wrap=True)
        )
    return out
