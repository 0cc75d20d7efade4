"""One card in one line, three, or a block with curves. Pure: state and width in, lines out."""

from __future__ import annotations

import re

from rich.text import Text

from dstune.lang import say
from dstune.tui.draw import Lines, bar, beside, fit, gib, graph, left, level, num, parts, right, sign
from dstune.tui.palette import PART_MARKS, PART_STYLES
from dstune.tui.split import split
from dstune.tui.state import State

_SHORT = {
    "sw_power_cap": ("power cap", "功耗墙"), "hw_slowdown": ("HW slowdown", "硬件降频"), "sw_thermal_slowdown": ("hot", "过热"),
    "hw_thermal_slowdown": ("HW hot", "硬件过热"), "hw_power_brake_slowdown": ("power brake", "功率制动"), "gpu_idle": ("idle", "空闲"),
    "applications_clocks_setting": ("app clocks", "应用频率"), "sync_boost": ("sync boost", "同步加速"), "display_clock_setting": ("display", "显示"),
}  # fmt: skip
_HARMLESS = ("gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting")
HEIGHTS = (1, 3, 5)
"""Lines of a card at each level, before its curves; level 2 gets curves with what room is left."""


def name_of(state: State, subject: str) -> str:
    """`RTX 4090` of `NVIDIA GeForce RTX 4090`."""
    name = str(state.value(subject, "name") or "?")
    for word in ("NVIDIA ", "GeForce ", "Tesla "):
        name = name.removeprefix(word)
    return name


def reasons(state: State, subject: str) -> str:
    """Why the clock is lowered, harmless reasons left out."""
    found = state.value(subject, "clock_event_reasons")
    return (
        ", ".join(say(*_SHORT.get(str(r), (str(r), str(r)))) for r in found if r not in _HARMLESS)
        if isinstance(found, list)
        else ""
    )


def narrow(width: int) -> int:
    """Cells of a bar where a card has one line."""
    return max(4, min(24, (width - 65) // 2))


def short_width(width: int) -> int:
    """Cells of its name there; what is left of the line is for the reasons of a low clock."""
    return max(10, min(24, width - 2 * narrow(width) - 54))


def card(state: State, subject: str, width: int, depth: int, curves: int = 0, plain: bool = False) -> Lines:
    """The card at a depth of 0 (a line), 1 (bars and memory by holder), 2 (all readings, and curves in `curves` lines)."""
    number = subject.removeprefix("gpu")
    if state.value(subject, "lost"):
        words = say(
            "GPU LOST: it left the bus or needs a reset (nvidia-smi -r, or reboot)",
            "GPU 掉线：已离开总线或需要复位（nvidia-smi -r 或重启）",
        )
        return [Text(fit(f"{number} {name_of(state, subject)}  ✖ {words}", width), "bold red", no_wrap=True)]
    gap = next((g for g in state.evidence.gaps if g.subject == subject and g.name == "*"), None)
    if gap is not None and state.value(subject, "memory_total_mib") is None:
        return [Text(fit(f"{number} {name_of(state, subject)}  ✖ {gap.reason}", width), "red", no_wrap=True)]
    if depth == 0:
        return [_line(state, subject, number, width, plain)]
    return [
        _head(state, subject, number, width),
        _bars(state, subject, width, plain),
        *_more(state, subject, width, depth, curves, plain),
    ]


def _line(state: State, subject: str, number: str, width: int, plain: bool) -> Text:
    used, total, util = (state.number(subject, n) for n in ("memory_used_mib", "memory_total_mib", "utilization_pct"))
    wide = narrow(width)
    out = Text(no_wrap=True).append(left(f"{number} {_short(state, subject)}", short_width(width)), "bold")
    out.append(" ").append_text(bar((util or 0) / 100, wide, plain, "green")).append(right(num(util, "%"), 5) + " ")
    out.append_text(_memory(state, subject, wide, plain))
    out.append(
        right(f"{gib(used)[:-1] if used is not None else '-'}/{gib(total)}", 13), level((used or 0) / total) if total else ""
    )
    out.append(right(_mig(state, subject) or num(state.value(subject, "temperature_c"), "°C"), 6), _heat(state, subject))
    out.append(right(f"{num(state.value(subject, 'power_draw_w'))}/{num(state.value(subject, 'power_limit_w'))}W", 10))
    out.append(right(num(state.value(subject, "clock_sm_mhz")), 6) + " ")
    return out.append(fit(reasons(state, subject), width - out.cell_len), "yellow")


def _short(state: State, subject: str) -> str:
    """`H100` of `H100 80GB HBM3`: its memory stands in the same line."""
    return re.sub(r"[- ]\d+ ?GB.*", "", name_of(state, subject))


def _mig(state: State, subject: str) -> str:
    slices = state.value(subject, "mig_slices")
    return f"MIG{len(slices)}" if state.value(subject, "mig") and isinstance(slices, list) else ""


def _heat(state: State, subject: str) -> str:
    now, limit = state.number(subject, "temperature_c"), state.number(subject, "temperature_slowdown_c")
    return "" if now is None else level(now / (limit or 95), 0.88, 0.97) if now / (limit or 95) >= 0.88 else ""


def _head(state: State, subject: str, number: str, width: int) -> Text:
    tail = Text(no_wrap=True)
    why = reasons(state, subject)
    if why:
        tail.append(f"▲ {why}  ", "bold yellow")
    tail.append(num(state.value(subject, "temperature_c"), "°C"), _heat(state, subject))
    if (fan := state.value(subject, "fan_pct")) is not None and width >= 90:
        tail.append(say("  fan ", "  风扇 ") + num(fan, "%"))
    tail.append(f"  {num(state.value(subject, 'power_draw_w'))}/{num(state.value(subject, 'power_limit_w'))} W")
    tail.append(f"  {num(state.value(subject, 'clock_sm_mhz'))} MHz  P{num(state.value(subject, 'performance_state'))}")
    head = Text(no_wrap=True).append(left(f"{number} {name_of(state, subject)}", width - tail.cell_len - 1), "bold")
    return head.append(" ").append_text(tail)


def _bars(state: State, subject: str, width: int, plain: bool) -> Text:
    used, total, util = (state.number(subject, n) for n in ("memory_used_mib", "memory_total_mib", "utilization_pct"))
    half = (width - 2) // 2
    out = Text(say("GPU  ", "算力 "), no_wrap=True)
    out.append_text(bar((util or 0) / 100, half - 10, plain, "green")).append(right(num(util, "%"), 5) + "  ")
    figures = f" {gib(used)}/{gib(total)}"
    out.append(say("MEM  ", "显存 ")).append_text(_memory(state, subject, width - out.cell_len - 5 - len(figures), plain))
    return out.append(figures, level(used / total) if used is not None and total else "")


def _memory(state: State, subject: str, width: int, plain: bool) -> Text:
    total = state.number(subject, "memory_total_mib")
    held = split(state, subject) if total else []
    return parts([(p.mib / (total or 1), PART_STYLES[p.kind], PART_MARKS[p.kind]) for p in held], width, plain)


def _more(state: State, subject: str, width: int, depth: int, curves: int, plain: bool) -> Lines:
    legend = Text(" " * 5, no_wrap=True)
    for part in split(state, subject):
        legend.append(sign(PART_MARKS[part.kind], plain) + " ", PART_STYLES[part.kind]).append(
            f"{part.label} {gib(part.mib)}  "
        )
    free = state.number(subject, "memory_free_mib")
    legend.append(say("free ", "空闲 ") + gib(free), "dim")
    slices = state.value(subject, "mig_slices")
    out = (
        [legend]
        if not isinstance(slices, list) or not state.value(subject, "mig")
        else _slices(state, subject, slices, width, plain)
    )
    out[0].truncate(width)
    if depth < 2:
        return out
    out.append(_readings(state, subject, width))
    half = (width - 3) // 2
    pairs = [_PAIRS[0]] if curves < 9 else _PAIRS
    high = curves // len(pairs) - 1
    for pair in pairs if high >= 2 else ():
        drawn = [_curve(state, subject, name, half, high, plain) for name in pair]
        out += beside(drawn[0], drawn[1], half)
    return out


_PAIRS = (("utilization_pct", "memory_used_pct"), ("power_draw_w", "temperature_c"))


def _curve(state: State, subject: str, name: str, width: int, height: int, plain: bool) -> Lines:
    """One curve under its title; the limit of the card is its top."""
    words, style, limit = {
        "utilization_pct": (say("utilisation %", "利用率 %"), "green", 100.0),
        "memory_used_pct": (say("memory %", "显存 %"), "magenta", 100.0),
        "power_draw_w": (say("power W", "功耗 W"), "yellow", state.number(subject, "power_limit_w")),
        "temperature_c": (say("temperature °C", "温度 °C"), "red", state.number(subject, "temperature_slowdown_c") or 100.0),
    }[name]
    top = limit or max([v for v in state.series(subject, name) if v is not None], default=100.0) or 100.0
    title = Text(
        fit(say(f"{words}, of {top:.0f}, last {state.span()}", f"{words}，满格 {top:.0f}，最近 {state.span()}"), width),
        "dim",
        no_wrap=True,
    )
    return [title, *graph(state.curve(subject, name, width), width, height, top, plain, style)]


def _readings(state: State, subject: str, width: int) -> Text:
    words = []
    if (traffic := state.value(subject, "memory_utilization_pct")) is not None:
        words.append(say("memory bus ", "显存带宽占用 ") + num(traffic, "%"))
    if (rx := state.value(subject, "pcie_rx_mib_s")) is not None:
        words.append(f"PCIe ↓{num(rx)} ↑{num(state.value(subject, 'pcie_tx_mib_s'))} MiB/s")
    if (generation := state.value(subject, "pcie_gen")) is not None:
        words.append(f"gen{num(generation)} x{num(state.value(subject, 'pcie_width'))}")
    if (hot := state.value(subject, "temperature_memory_c")) is not None:
        words.append(say("memory temp ", "显存温度 ") + num(hot, "°C"))
    words.append(say("memory clock ", "显存频率 ") + num(state.value(subject, "clock_memory_mhz"), " MHz"))
    if errors := state.number(subject, "ecc_uncorrected"):
        words.append(say("ECC errors ", "ECC 错误 ") + num(errors))
    if xid := state.number(subject, "xid"):
        words.append(f"Xid {xid:.0f}")
    return Text("     " + fit("  ".join(words), width - 5), "dim", no_wrap=True)


def _slices(state: State, subject: str, names: list[object], width: int, plain: bool) -> Lines:
    totals, free = state.value(subject, "mig_slice_total_mib"), state.value(subject, "mig_slice_free_mib")
    out = []
    for i, name in enumerate(names):
        total = totals[i] if isinstance(totals, list) and i < len(totals) else None
        rest = free[i] if isinstance(free, list) and i < len(free) else None
        line = Text("     " + left(str(name).rpartition("MIG ")[2], 12), no_wrap=True)
        share = (total - rest) / total if total and rest is not None else 0.0
        line.append_text(bar(share, max(8, width // 2 - 20), plain)).append(
            f" {gib(total - rest if total and rest is not None else None)}/{gib(total)}"
        )
        out.append(line)
    return out or [Text(say("     no MIG slice is made yet", "     尚未创建 MIG 切片"), "yellow", no_wrap=True)]
