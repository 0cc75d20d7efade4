"""The Overview: cards, host, servers, findings, processes, in what room the terminal gives. Pure: state and size in, lines out."""

from __future__ import annotations

from rich.text import Text

from dstune.lang import say
from dstune.report.memory import joined, label
from dstune.tui.card import HEIGHTS, card, narrow, short_width
from dstune.tui.draw import MARK, TONE, Lines, bar, beside, click, fit, flow, gib, left, num, right
from dstune.tui.servers import curves, place, servers
from dstune.tui.state import State

WIDE = 150
"""Cells from which the cards stand on the left and everything else beside them."""
TALL, HELD = 26, 5
"""Lines of the screen from which some are kept for where the servers' memory goes, and how many."""
CURVES = 32
"""Lines of curves that one card takes at most."""


def overview(state: State, width: int, height: int, plain: bool = False) -> Lines:
    """The whole screen."""
    if width >= WIDE and state.subjects("gpu"):
        first = (width - 3) * 11 // 20
        second = width - 3 - first
        side = [
            host(state, second, plain),
            Text(),
            *servers(state, second, plain, height // 2),
            Text(),
            *findings(state, second, 6),
            Text(),
        ]
        side += processes(state, second, height - len(side))
        side += held(state, second, height - len(side))
        side += curves(state, second, height - len(side) - 1, plain)
        return beside(_cards(state, first, height, plain), side, first, 3)
    below = [host(state, width, plain), *servers(state, width, plain), *findings(state, width, 3)]
    made = held(state, width, HELD) if height >= TALL else []
    top = _cards(state, width, height - len(below) - len(made) - _wanted(state), plain)
    roomy = len(top) + len(below) + len(made) + _wanted(state) < height - 2
    gap = [Text()] if roomy else []
    out = [*top, *gap, *below, *gap]
    out += processes(state, width, height - len(made) - len(out))
    out += held(state, width, height - len(out))
    return out + curves(state, width, height - len(out) - 1, plain)


def _wanted(state: State) -> int:
    """Lines that the processes should have at least."""
    return min(4, 1 + len(state.processes())) if state.processes() else 0


def _cards(state: State, width: int, room: int, plain: bool) -> Lines:
    subjects = state.subjects("gpu")
    if not subjects or all(state.value(s, "name") is None and not state.value(s, "lost") for s in subjects):
        return _no_gpu(state, width)
    each = room // len(subjects)
    depth = 2 if each >= HEIGHTS[2] + 1 else 1 if each >= HEIGHTS[1] else 0
    deep = min(CURVES, each - HEIGHTS[2]) if depth == 2 else 0
    out: Lines = []
    trouble = state.gap("gpu") if state.evidence.facts else None
    if trouble is not None and trouble.name == "*":
        out.append(Text(fit(f"✖ {trouble.reason}", width), "bold red", no_wrap=True))
    if depth == 0:
        names = say("GPU", "显卡"), say("busy", "利用率"), say("memory", "显存"), say("power", "功耗")
        wide = narrow(width)
        head = left(names[0], short_width(width)) + " " + left(names[1], wide + 6) + left(names[2], wide + 13)
        out.append(Text(fit(head + right("T", 6) + right(names[3], 10) + right("MHz", 6), width), "dim", no_wrap=True))
    for subject in subjects:
        out += card(state, subject, width, depth, deep if deep >= 3 else 0, plain)
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


def spaced(word: str) -> str:
    """The word and a blank, where there is one."""
    return f"{word} " if word else ""


def findings(state: State, width: int, rows: int) -> Lines:
    """The first root causes, a line each; a click opens them."""
    roots = [f for f in state.diagnosis.findings if not f.because]
    if not roots:
        words = say("no findings", "没有发现问题") if state.diagnosed else say("not diagnosed yet", "尚未诊断")
        return [Text(words, "green" if state.diagnosed else "dim", no_wrap=True)]
    shown = roots if len(roots) <= rows else roots[: rows - 1]
    out = [
        Text(
            fit(f"{MARK[f.severity]} {spaced(place(state, f.subject))}{f.cause}: {f.message}".replace("\n", " "), width),
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


def _slice(state: State, process: str) -> str:
    """`3g.40gb` of a process in that MIG slice."""
    card = f"gpu{state.value(process, 'gpu')}"
    instances, names = state.value(card, "mig_slice_instance"), state.value(card, "mig_slices")
    mine = state.value(process, "mig_instance")
    if mine is None or not isinstance(instances, list) or not isinstance(names, list) or mine not in instances:
        return ""
    return str(names[instances.index(mine)]).rpartition("MIG ")[2]


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
        if piece := _slice(state, p):
            line.append(f"{piece} ", "magenta")
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


def held(state: State, width: int, rows: int) -> Lines:
    """Where the memory of each server goes, part by part, where there is room for it."""
    found = sorted((h for h in state.holders.values() if h.parts), key=lambda h: -(h.mib or 0))
    out: Lines = []
    for h in found:
        words = [f"{label(p)} {gib(p.mib)}" for p in joined(h.parts) if p.mib >= 52]
        if h.kv_used_mib is not None:
            words.append(say(f"(KV in use {gib(h.kv_used_mib)})", f"（KV 已用 {gib(h.kv_used_mib)}）"))
        if h.rest is not None and (h.within or not h.guessed):
            share = f"{h.rest / 1024:+.1f}G ({100 * h.rest / (h.mib or 1):+.0f} %)"
            words.append(say("rest ", "其余 ") + share)
        block = [Text(word, "" if not word.startswith(say("rest", "其余")) or h.within else "bold red") for word in words]
        lines = flow([Text(f"{h.pid} {h.engine}: {gib(h.mib)} =", "bold"), *block], width - 2, 2)
        lines = [lines[0], *(Text("  ").append_text(line) for line in lines[1:])]
        if len(out) + len(lines) + 2 > rows:
            break
        out += lines
    head = Text(say("WHERE THE MEMORY OF THE SERVERS GOES", "各服务的显存去向"), "dim", no_wrap=True)
    return [Text(), head, *out] if out else []
