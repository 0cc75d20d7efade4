"""The Overview as text: cards, processes, server, findings. Pure: state and size in, rich text out."""

from __future__ import annotations

from rich.text import Text

from dstune.lang import say
from dstune.tui.draw import bar, gib, graph, level, num, parts, spark
from dstune.tui.state import State

_SHORT = {
    "sw_power_cap": ("power cap", "功耗上限"), "hw_slowdown": ("HW slowdown", "硬件降频"), "sw_thermal_slowdown": ("thermal", "过热降频"),
    "hw_thermal_slowdown": ("HW thermal", "硬件过热"), "hw_power_brake_slowdown": ("power brake", "功率制动"), "gpu_idle": ("idle", "空闲"),
    "applications_clocks_setting": ("app clocks", "应用频率"), "sync_boost": ("sync boost", "同步加速"), "display_clock_setting": ("display", "显示"),
}  # fmt: skip
_HARMLESS = ("gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting")


def overview(state: State, width: int, height: int, plain: bool = False) -> Text:
    """The whole screen."""
    cards = state.evidence.subjects("gpu")
    out = Text()
    server = server_lines(state, width, plain)
    findings = findings_strip(state, width)
    room = height - len(server) - len(findings) - 4
    if not cards:
        out.append_text(no_gpu(state, width))
    roomy = bool(cards) and room // len(cards) >= 8
    for subject in cards:
        out.append_text(card(state, subject, width, plain, roomy))
    out.append_text(host_line(state, width, plain))
    for line in (*server, *findings):
        out.append_text(line).append("\n")
    left = height - out.plain.count("\n") - 1
    out.append_text(processes(state, width, max(0, left)))
    return out


def card(state: State, subject: str, width: int, plain: bool, roomy: bool) -> Text:
    """One card: two lines, and graphs of minutes where there is room."""
    title = f"{subject.removeprefix('gpu')} {state.value(subject, 'name') or '?'}"
    if state.value(subject, "lost"):
        return Text(f"{title}  {say('GPU IS LOST: reboot or reset needed', 'GPU 已掉线：需要重置或重启')}\n\n", "bold red")
    used, total = state.number(subject, "memory_used_mib"), state.number(subject, "memory_total_mib")
    util = state.number(subject, "utilization_pct")
    head = Text(title[: width - 44].ljust(max(0, width - 44)), "bold")
    head.append(f"{num(state.value(subject, 'temperature_c'), '°C'):>6} ")
    head.append(f"{num(state.value(subject, 'power_draw_w'))}/{num(state.value(subject, 'power_limit_w'))}W".rjust(10) + " ")
    head.append(f"{num(state.value(subject, 'clock_sm_mhz'))}MHz".rjust(10) + " ")
    head.append(f"P{num(state.value(subject, 'performance_state'))}")
    why = reasons(state, subject)
    head.append("\n")
    half = (width - 2) // 2
    body = Text(say("GPU ", "算力") + " ")
    body.append_text(bar((util or 0) / 100, half - 12, plain, "green" if util else "dim")).append(f"{num(util)}%".rjust(5))
    body.append("  " + say("MEM ", "显存") + " ")
    share = used / total if used is not None and total else 0.0
    body.append_text(memory_bar(state, subject, half - 18, plain, share))
    body.append(f" {gib(used)}/{gib(total)}\n", level(share))
    out = head.append_text(body)
    if why:
        out.append(say("  slowed by: ", "  降频原因：") + why + "\n", "yellow")
    if roomy:
        left = graph(state.series(subject, "utilization_pct"), half - 2, 3, 100, plain, "green").plain.split("\n")
        right = graph(state.series(subject, "memory_used_pct"), half - 2, 3, 100, plain, "magenta").plain.split("\n")
        for a, b in zip(left, right, strict=True):
            out.append(a, "green").append("    ").append(b, "magenta").append("\n")
    elif width >= 100:
        out.append_text(spark(state.series(subject, "utilization_pct"), half - 2, 100, plain, "green")).append("    ")
        out.append_text(spark(state.series(subject, "memory_used_pct"), half - 2, 100, plain, "magenta")).append("\n")
    return out


def memory_bar(state: State, subject: str, width: int, plain: bool, share: float) -> Text:
    """Used memory split into the processes on this card, largest first; what none of them accounts for is `other`."""
    total = state.number(subject, "memory_total_mib")
    index = int(subject.removeprefix("gpu") or 0)
    sizes = sorted(
        (
            m
            for p in state.evidence.subjects("process")
            if state.number(p, "gpu") == index and (m := state.number(p, "memory_mib"))
        ),
        reverse=True,
    )
    if not total or not sizes:
        return bar(share, width, plain, "" if share else "dim")
    tones = ("magenta", "blue", "cyan", "yellow", "red")
    shares = [(s / total, tones[i % len(tones)]) for i, s in enumerate(sizes[:5])]
    rest = share - sum(s for s, _ in shares)
    if rest > 0.01:
        shares.append((rest, "white"))
    return parts(shares, width, plain)


def reasons(state: State, subject: str) -> str:
    """Why the clock is lowered, harmless reasons left out."""
    found = state.value(subject, "clock_event_reasons")
    return ", ".join(say(*_SHORT.get(r, (r, r))) for r in found if r not in _HARMLESS) if isinstance(found, list) else ""


def no_gpu(state: State, width: int) -> Text:
    """Why there is none: the gap's own words."""
    gap = next((g for g in state.evidence.gaps if g.subject in ("gpu", "driver")), None)
    text = Text(say("No GPU is visible here.", "这里看不到 GPU。"), "yellow")
    if gap is not None:
        text.append(f" {gap.reason}"[: 2 * width])
        if gap.hint:
            text.append(f" → {gap.hint}", "dim")
    return text.append("\n\n")


def host_line(state: State, width: int, plain: bool) -> Text:
    """CPU and memory of the host."""
    total, free = state.number("host", "ram_total_mib"), state.number("host", "ram_available_mib")
    used = total - free if total and free is not None else None
    third = max(8, (width - 50) // 2)
    text = Text("CPU  ").append_text(bar((state.number("host", "cpu_pct") or 0) / 100, third, plain))
    text.append(f"{num(state.value('host', 'cpu_pct'))}%".rjust(5) + "  RAM ")
    text.append_text(bar((used or 0) / total if total else 0, third, plain)).append(f" {gib(used)}/{gib(total)}")
    text.append(f"  load {num(state.value('host', 'load_1m'), digits=1)}\n")
    return text


def server_lines(state: State, width: int, plain: bool) -> list[Text]:
    """The server: name, queue, KV, rates, latencies, and small curves."""
    engine = state.value("server", "engine")
    if engine is None and state.value("server", "url") is None:
        return [Text(say("no model server found here (dstune monitor URL)", "未发现模型服务（dstune monitor URL）"), "dim")]
    if state.value("server", "reachable") is False:
        return [
            Text(
                say(f"server {state.value('server', 'url')} does not answer", f"服务 {state.value('server', 'url')} 无响应"),
                "bold red",
            )
        ]
    models = state.value("server", "models")
    name = models[0] if isinstance(models, list) and models else ""
    head = Text(f"{engine or '?'} {state.value('server', 'version') or ''} ", "bold").append(f"{name}"[: width - 20])
    waiting = state.number("server", "waiting") or 0
    row = Text(say("running ", "运行 ") + num(state.value("server", "running")) + "  ")
    row.append(say("waiting ", "排队 ") + num(state.value("server", "waiting")), "yellow" if waiting else "")
    kv = state.number("server", "kv_usage_pct")
    row.append("  KV ").append_text(bar((kv or 0) / 100, 10, plain)).append(f" {num(kv)}%")
    row.append(f"  {num(state.value('server', 'generation_tok_s'))} tok/s")
    row.append(say("  prefix ", "  前缀 ") + num(state.value("server", "prefix_hit_pct"), "%"))
    times = Text()
    for label, key in (("TTFT", "ttft"), ("ITL", "itl")):
        times.append(
            f"{label} p50 {num(state.value('server', f'{key}_p50_ms'))} p95 {num(state.value('server', f'{key}_p95_ms'))} ms   "
        )
    curve = [v for v in state.series("server", "generation_tok_s") if v is not None]
    if curve and width >= 60:
        times.append_text(
            spark(state.series("server", "generation_tok_s"), width - len(times.plain) - 2, max(curve) or 1, plain)
        )
    return [head, row, times]


def findings_strip(state: State, width: int) -> list[Text]:
    """The first findings, one line each."""
    tone = {"error": "bold red", "warning": "yellow", "info": "cyan"}
    roots = [f for f in state.diagnosis.findings if not f.because]
    lines = [Text(f"● {f.cause}: {f.message}"[:width], tone[f.severity]) for f in roots[:3]]
    if len(roots) > 3:
        lines.append(Text(say(f"  … {len(roots) - 3} more: key 2", f"  … 另有 {len(roots) - 3} 项：按 2"), "dim"))
    return lines or [Text(say("no findings", "没有发现问题"), "green")]


def processes(state: State, width: int, rows: int) -> Text:
    """Processes on the cards, largest first."""
    found = sorted(state.evidence.subjects("process"), key=lambda p: -(state.number(p, "memory_mib") or 0))
    if rows < 2 or not found:
        return Text()
    out = Text(f"{'PID':>8} {'GPU':>3} {say('MEM', '显存'):>8} {say('CONTAINER', '容器'):12} {say('COMMAND', '命令')}\n", "dim")
    for p in found[: rows - 1]:
        text = str(state.value(p, "command") or state.value(p, "name") or "?")
        line = f"{num(state.value(p, 'pid')).replace(',', ''):>8} {num(state.value(p, 'gpu')):>3} {gib(state.number(p, 'memory_mib')):>8} {state.value(p, 'container') or '-'!s:12} {text}"
        out.append(line[:width] + "\n")
    return out
