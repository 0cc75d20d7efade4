"""The model servers on the Overview: three lines for one, a row each for several, blocks where there is room. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from rich.text import Text

from dstune.lang import say
from dstune.tui.draw import Lines, bar, beside, fit, graph, left, num, right, spark
from dstune.tui.state import State

BLOCK = 4
"""Lines of one server with all its figures, and a free one."""


def known(state: State) -> list[str]:
    """Subjects of the servers that were found or asked for."""
    return [s for s in state.subjects("server") if state.value(s, "engine") is not None or state.value(s, "url") is not None]


def servers(state: State, width: int, plain: bool, room: int = 0) -> Lines:
    """Every model server: whole blocks for one, and for several in `room` lines that hold them; else a row each."""
    found = known(state)
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
    if len(found) * BLOCK <= room:
        blocks = [[*_server(state, s, width, plain), Text()] for s in found]
        return [line for block in blocks for line in block][:-1]
    return [_head(width), *(_row(state, s, width, plain) for s in found)]


def curves(state: State, width: int, rows: int, plain: bool) -> Lines:
    """Minutes of token rate, of requests that run and wait, and of the KV cache, for as many servers as the rows hold."""
    out: Lines = []
    half = (width - 2) // 2
    asked = [s for s in known(state) if any(v is not None for v in state.series(s, "running"))]
    high = min(8, rows // (2 * max(1, len(asked))) - 2)
    for server in asked if high >= 3 else ():
        drawn = [
            _curve(state, server, name, half, high, plain)
            for name in ("generation_tok_s", "kv_usage_pct", "running", "waiting")
        ]
        out += [Text(), *beside(drawn[0], drawn[1], half), *beside(drawn[2], drawn[3], half)]
    return out


def _curve(state: State, server: str, name: str, width: int, high: int, plain: bool) -> Lines:
    words, style = {
        "generation_tok_s": ("tok/s", "cyan"), "kv_usage_pct": ("KV %", "blue"), "running": (say("running", "运行"), "green"),
        "waiting": (say("waiting", "排队"), "yellow"),
    }[name]  # fmt: skip
    most = max([v for v in state.series(server, name) if v is not None], default=0.0)
    top = 100.0 if name == "kv_usage_pct" else most or 1.0
    title = say(
        f"{address(state, server)} {words}, of {num(top)}, last {state.span()}",
        f"{address(state, server)} {words}，满格 {num(top)}，最近 {state.span()}",
    )
    return [
        Text(fit(title, width), "dim", no_wrap=True),
        *graph(state.curve(server, name, width), width, high, top, plain, style),
    ]


def _head(width: int) -> Text:
    names = say("SERVER", "服务"), say("RUN", "运行"), say("WAIT", "排队"), "KV", "tok/s", "TTFT ms"
    line = (
        left(names[0], width - _FIGURES)
        + right(names[1], 5)
        + right(names[2], 6)
        + "  "
        + left(names[3], 13)
        + right(names[4], 9)
        + right(names[5], 9)
    )
    return Text(fit(line, width), "dim", no_wrap=True)


_FIGURES = 5 + 6 + 2 + 13 + 9 + 9


def _row(state: State, server: str, width: int, plain: bool) -> Text:
    """One of several: what tells it apart first (address, model), then its figures in columns."""
    line = Text(no_wrap=True)
    room = width - _FIGURES
    name = " ".join(
        filter(
            None, (str(state.value(server, "engine") or ""), address(state, server), _model(state, server).rpartition("/")[2])
        )
    )
    if state.value(server, "reachable") is False:
        words = say("does not answer", "无响应")
        return Text(fit(f"✖ {address(state, server)} {words}", width), "bold red", no_wrap=True)
    line.append(left(name, room - 1) + " ", "bold")
    waiting, kv = state.number(server, "waiting"), state.number(server, "kv_usage_pct")
    line.append(right(num(state.value(server, "running")), 5)).append(
        right(num(waiting), 6), "bold yellow" if waiting else ""
    ).append("  ")
    line.append_text(bar(kv / 100, 6, plain) if kv is not None else Text(" " * 6)).append(left(right(num(kv, "%"), 5), 7))
    line.append(right(num(state.value(server, "generation_tok_s")), 9))
    return line.append(right(num(state.value(server, "ttft_p50_ms")), 9))


def place(state: State, subject: str) -> str:
    """Which of several servers or cards a finding is about: `:8001`, `GPU 3`; "" where there is one."""
    family = subject.rstrip("0123456789")
    if family == "server" and len(known(state)) > 1:
        return address(state, subject)
    return f"GPU {subject[3:]}" if family == "gpu" and len(state.subjects("gpu")) > 1 else ""


def address(state: State, server: str) -> str:
    """`:8000` of a server of this machine, `host:port` of another."""
    url = str(state.value(server, "url") or "")
    if not url:
        port = state.value(server, "port")
        return f":{port}" if port else ""
    place = urlsplit(url if "://" in url else f"http://{url}")
    host = place.netloc.rpartition("@")[2]
    return f":{host.rpartition(':')[2]}" if (place.hostname or "").startswith(("127.", "localhost")) and ":" in host else host


def _model(state: State, server: str) -> str:
    models = state.value(server, "models")
    return str(models[0]) if isinstance(models, list) and models else ""


def _title(state: State, server: str) -> str:
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
            _model(state, server),
        )
        if w
    )


def _down(state: State, server: str, width: int) -> Text | None:
    if state.value(server, "reachable") is not False:
        return None
    words = say("does not answer (restarting, or stopped)", "无响应（正在重启或已停止）")
    place = str(state.value(server, "url") or address(state, server))
    return Text(fit(f"✖ {place} {words}  {_model(state, server)}", width), "bold red", no_wrap=True)


def _queue(state: State, server: str, plain: bool) -> Text:
    waiting, kv = state.number(server, "waiting"), state.number(server, "kv_usage_pct")
    out = Text(say("running ", "运行 ") + num(state.value(server, "running")), no_wrap=True)
    out.append(say("  waiting ", "  排队 ") + num(waiting), "bold yellow" if waiting else "")
    if kv is not None:
        out.append("  KV ").append_text(bar(kv / 100, 8, plain)).append(f" {num(kv)}%")
    return out.append(f"  {num(state.value(server, 'generation_tok_s'))} tok/s")


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
