"""A trial for a person: a table of latencies, rates, errors, and a histogram of the first token."""

from __future__ import annotations

from typing import Any

from dstune.lang import say
from dstune.load.paths import FIRST_VALUE, PATHS, told
from dstune.model.plan import Trial
from dstune.report.text import cells, wrap

_ROWS = (
    ("ttft_ms", "first token", "首 token"), ("itl_ms", "between tokens", "token 间隔"), ("tpot_ms", "per output token", "每输出 token"),
    ("e2e_ms", "whole answer", "完整回答"),
)  # fmt: skip
_WHY = {
    "errors": ("errors appeared", "出现错误"), "objective": ("the objective broke", "目标未达成"), "throughput": ("throughput stopped growing", "吞吐不再增长"),
    "limit": ("the client's limit was reached", "达到客户端上限"), "interrupted": ("interrupted", "被中断"),
}  # fmt: skip


def pad(text: str, width: int) -> str:
    """The text and blanks to `width` columns."""
    return text + " " * max(0, width - cells(text))


BLOCKS = "▁▂▃▄▅▆▇█"


def spark(values: list[float]) -> str:
    """Values as a line of blocks from 0 to the highest; a blank where there is nothing."""
    top = max(values, default=0)
    return "".join(" " if v <= 0 else BLOCKS[min(7, int(8 * v / top))] for v in values) if top > 0 else ""


def pictures(o: dict[str, Any]) -> list[str]:
    """The distributions of first token and gaps, and tokens per second and requests in flight over time, a line each."""
    out = []
    for key, en, zh in _ROWS[:2]:
        rows = (o.get("histogram") or {}).get(key)
        if rows and len(rows) > 1:
            top = rows[-1][0] + rows[1][0]
            out.append(f"{pad(say(en, zh), 18)}0 {spark([c for _, c in rows])} {top:.0f} ms")
    line = o.get("timeline")
    if line and len(line["tok_s"]) > 3:
        seconds = line["step_s"] * len(line["tok_s"])
        for key, en, zh, unit in (
            ("tok_s", "tokens/s", "token/秒", ""),
            ("in_flight", "in flight", "在途请求", ""),
            ("ttft_max_ms", "worst first token", "最慢首 token", " ms"),
        ):
            out.append(
                f"{pad(say(en, zh), 18)}│{pad(spark(line[key]), len(line[key]))}│ {say('max', '最大')} {max(line[key]):.0f}{unit}, {seconds:.0f} s"
            )
    return out


def beside(o: dict[str, Any]) -> list[str]:
    """What the server and the GPU said meanwhile."""
    out = []
    server = o.get("server") or {}
    parts = []
    for key, en, zh in (("queue_ms", "queue", "排队"), ("prefill_ms", "prefill", "预填充"), ("decode_ms", "decode", "解码")):
        value = server.get(key)
        if value is not None:
            parts.append(f"{say(en, zh)} {value['mean'] if isinstance(value, dict) else value:.0f} ms")
    if server.get("waiting_max") is not None:
        parts.append(
            say(
                f"at most {server.get('running_max')} running, {server['waiting_max']} waiting",
                f"最多 {server.get('running_max')} 个运行、{server['waiting_max']} 个等待",
            )
        )
    if server.get("kv_usage_max_pct") is not None:
        parts.append(
            say(f"KV cache up to {server['kv_usage_max_pct']:.0f} %", f"KV 缓存最高 {server['kv_usage_max_pct']:.0f} %")
        )
    if server.get("preemptions"):
        parts.append(say(f"{server['preemptions']} preemptions", f"{server['preemptions']} 次抢占"))
    if memory := _mib(o):
        out.append(say(f"memory: {memory} MiB at the peak", f"内存峰值：{memory} MiB"))
    if parts:
        out.append(say("the server says: ", "服务端数据：") + ", ".join(parts))
    for card in o.get("gpu") or ():
        parts = [f"{card['gpu']} {card['name']}"]
        for key, en, zh, unit in (
            ("utilization_pct", "busy", "利用率", "%"),
            ("power_draw_w", "power", "功率", "W"),
            ("clock_sm_mhz", "clock", "频率", "MHz"),
        ):
            if key in card:
                parts.append(f"{say(en, zh)} {card[key]['mean']:.0f} {unit}")
        if "memory_used_mib" in card:
            parts.append(
                say(f"memory up to {card['memory_used_mib']['max']} MiB", f"显存最高 {card['memory_used_mib']['max']} MiB")
            )
        if card.get("idle_pct"):
            parts.append(say(f"idle {card['idle_pct']:.0f} % of the time", f"{card['idle_pct']:.0f} % 的时间空闲"))
        held = {n: p for n, p in card.get("reasons_pct", {}).items() if n != "gpu_idle"}
        parts += [f"{n} {p:.0f} %" for n, p in held.items()]
        out.append(", ".join(parts))
    return out


def _mib(o: dict[str, Any]) -> int | None:
    """What a model that was loaded bare took at the most, in MiB: of the card, else of the process."""
    memory = o.get("memory")
    if not isinstance(memory, dict):
        return None
    taken = memory.get("peak", memory.get("rss"))
    return round(taken / (1 << 20)) if isinstance(taken, int | float) else None


_COUNTED = {
    "usage": ("the server's usage", "服务端 usage"), "chunks": ("chunks: no usage was sent, a chunk may hold several tokens", "chunk 数：服务端未发送 usage，一个 chunk 可能含多个 token"),
    "events": ("events with new text: Gradio counts no tokens", "带新文本的事件数：Gradio 不统计 token"), "tokenizer": ("the tokenizer of --model-dir", "--model-dir 的分词器"),
    "steps": ("decode steps", "解码步数"),
}  # fmt: skip


def counted_by(how: str) -> str:
    """How tokens were counted, in words."""
    return " + ".join(say(*_COUNTED[h]) if h in _COUNTED else h for h in (how or "-").split("+"))


def trial_text(trial: Trial) -> str:
    """One trial."""
    o, s = trial.outcome, trial.settings
    load = _load(trial)
    out = [
        f"{_server(s)} · {s.get('model')} · {load} · {s.get('profile')}",
        *map(wrap, _path(s)),
        say(
            f"{o['requests']['ok']} answered, {o['requests']['failed']} failed in {o['duration_s']:.1f} s; "
            f"{o['output_tokens']} tokens (counted by {counted_by(o['tokens_counted_by'])})",
            f"{o['duration_s']:.1f} 秒内回答 {o['requests']['ok']} 个，失败 {o['requests']['failed']} 个；{o['output_tokens']} 个 token（来源：{counted_by(o['tokens_counted_by'])}）",
        ),
        "",
    ]
    if any(o.get(key) for key, _, _ in _ROWS):
        out.append(f"{pad('ms', 18)}{_right(say('mean', '均值'), 9)}{'p50':>9}{'p90':>9}{'p95':>9}{'p99':>9}")
    for key, en, zh in _ROWS:
        row = o.get(key)
        if row:
            out.append(pad(say(en, zh), 18) + "".join(f"{row[k]:>9.1f}" for k in ("mean", "p50", "p90", "p95", "p99")))
    rate = say(
        f"{o['output_tok_s']:.1f} tokens/s, {o['request_s']:.2f} requests/s",
        f"{o['output_tok_s']:.1f} token/秒，{o['request_s']:.2f} 请求/秒",
    )
    if o.get("steady"):
        rate += say(
            f"; {o['steady']['output_tok_s']:.1f} tokens/s in the steady {o['steady']['seconds']:.0f} s",
            f"；稳态 {o['steady']['seconds']:.0f} 秒内 {o['steady']['output_tok_s']:.1f} token/秒",
        )
    drawn = pictures(o) if o["requests"]["ok"] else []
    out += ["", *drawn, "", rate] if drawn else ["", rate] if o["requests"]["ok"] else []
    out += beside(o)
    if o.get("goodput"):
        g = o["goodput"]
        out.append(
            say(
                f"goodput: {g['request_s']:.2f} requests/s, {g['share']:.0%} within the objective",
                f"goodput：{g['request_s']:.2f} 请求/秒，{g['share']:.0%} 达成目标",
            )
        )
    out += failures(o)
    out += map(wrap, doubts(o))
    if o.get("interrupted"):
        out.append(say("interrupted: the figures so far", "已中断：以上为目前的数字"))
    return "\n".join(out)


def _server(settings: dict[str, Any]) -> str:
    kind = settings.get("server") or "unknown"
    name = say("unknown server", "未识别的服务") if kind == "unknown" else str(kind)
    return f"{name} {settings.get('server_version') or ''}".strip()


def _path(settings: dict[str, Any]) -> list[str]:
    """Which way a Gradio app was asked: they measure different things."""
    return [told(str(settings.get("gradio_path") or PATHS[0]))] if settings.get("dialect") == "gradio" else []


def doubts(o: dict[str, Any]) -> list[str]:
    """What makes the figures less than they seem."""
    out = []
    if o.get("client_bottleneck"):
        out.append(
            say("! the client was the bottleneck: these figures are not the server's", "! 瓶颈在客户端：这些数字不代表服务端")
        )
    out += early(o)
    if cut := (o.get("finish") or {}).get(FIRST_VALUE):
        out.append(
            say(
                f"! {cut} answers are the first value of a function that yields: only the queue continues it, so nothing here is a whole answer (--gradio-path queue)",
                f"! {cut} 个回答只是逐步返回（yield）的函数的第一个值：只有队列会让它继续执行，因此这些都不是完整回答（--gradio-path queue）",
            )
        )
    if late := o.get("unfinished"):
        n, longest = late["requests"], late["longest_s"]
        out.append(
            say(
                f"! {n} request{'s were' if n != 1 else ' was'} not answered when their time was over (the longest had run {longest:.0f} s): the tail is longer than shown",
                f"! 到时仍有 {n} 个请求没有答完（最长已运行 {longest:.0f} 秒）：真实的尾部延迟比所示更长",
            )
        )
    return out


def early(o: dict[str, Any]) -> list[str]:
    """That a load did not last as long as was asked for, and why."""
    if not o.get("hopeless"):
        return []
    n = o["requests"]["failed"]
    return [
        say(
            f"! ended after {o['duration_s']:.1f} s: {n} requests, none answered",
            f"! {o['duration_s']:.1f} 秒后提前结束：{n} 个请求没有一个得到回答",
        )
    ]


def failures(o: dict[str, Any]) -> list[str]:
    """A line per kind of error: how many, and the server's words for one of them."""
    words = o.get("error_words") or {}
    return [
        f"! {n} × {kind}" + (f": {' '.join(words[kind].split())[:120]}" if words.get(kind) else "")
        for kind, n in o["errors"].items()
    ]


def trials_text(trials: tuple[Trial, ...]) -> str:
    """One trial in full, or a table of several with the knee of a sweep or the spread of repeated runs."""
    if len(trials) == 1:
        return trial_text(trials[0])
    settings = trials[0].settings
    titles = (say("clients", "客户端"), say("tok/s", "token/秒"), "ttft p50", "ttft p95", "itl p50", say("failed", "失败"))
    head = "".join(_right(t, w) for t, w in zip(titles, (8, 10, 10, 10, 10, 8), strict=True))
    out = [f"{_server(settings)} · {settings.get('model')} · {settings.get('profile')}", *map(wrap, _path(settings)), "", head]
    if any(_mib(t.outcome) for t in trials):
        out[-1] += _right(say("memory MiB", "内存 MiB"), 12)
    out += [_row(t.outcome, t) + ("  !" if doubts(t.outcome) else "") for t in trials]
    last = trials[-1].outcome
    if "knee" in last:
        why = say(*_WHY[last["stopped"]])
        out += [
            "",
            say(f"knee: {last['knee']} client{'s' * (last['knee'] != 1)} ({why})", f"拐点：{last['knee']} 个客户端（{why}）")
            if last["knee"]
            else say(f"no load held ({why})", f"任何并发都未能维持（{why}）"),
        ]
    elif len({(t.workload.concurrency, t.workload.rate, t.workload.output_tokens) for t in trials}) == 1:
        out += [
            "",
            _spread([t.outcome["output_tok_s"] for t in trials], [(t.outcome.get("ttft_ms") or {}).get("p50") for t in trials]),
        ]
    told: dict[str, str] = {}
    for t in trials:
        told |= dict.fromkeys((*failures(t.outcome), *doubts(t.outcome)), _load(t))
    out += [wrap(f"{line} ({load})" if "knee" in last else line) for line, load in told.items()]
    if last.get("interrupted"):
        out.append(say("interrupted: the figures so far", "已中断：以上为目前的数字"))
    return "\n".join(out)


def _load(trial: Trial) -> str:
    w = trial.workload
    if w.rate is not None:
        return say(f"{w.rate:g} requests/s", f"{w.rate:g} 请求/秒")
    return say(f"{w.concurrency} client{'s' * (w.concurrency != 1)}", f"{w.concurrency} 个客户端")


def _spread(rates: list[float], first: list[float | None]) -> str:
    """Of repeated runs: mean, and how far the runs lie apart."""

    def words(values: list[float]) -> str:
        mean = sum(values) / len(values)
        return f"{mean:.1f} ({min(values):.1f}–{max(values):.1f})"

    waits = [v for v in first if v is not None]
    out = [f"{say('tokens/s', 'token/秒')} {words(rates)}"]
    if waits:
        out.append(f"{say('first token p50', '首 token p50')} {words(waits)} ms")
    return "\n".join(
        [say(f"mean of {len(rates)} runs (least–most):", f"{len(rates)} 次的均值（最小–最大）："), *(f"  {o}" for o in out)]
    )


def _right(text: str, width: int) -> str:
    return " " * max(0, width - cells(text)) + text


def _row(o: dict[str, Any], t: Trial) -> str:
    ttft, itl = o.get("ttft_ms") or {}, o.get("itl_ms") or {}
    cell = [f"{v:>10.1f}" if v is not None else f"{'-':>10}" for v in (ttft.get("p50"), ttft.get("p95"), itl.get("p50"))]
    load = t.workload.concurrency if t.workload.rate is None else f"{t.workload.rate:g}/s"
    return f"{load:>8}{o['output_tok_s']:>10.1f}{''.join(cell)}{o['requests']['failed']:>8}" + (
        f"{mib:>12}" if (mib := _mib(o)) else ""
    )


_PROBES = {
    "endless-newlines": ("endless newlines", "无尽换行"), "line-loop": ("repeats a line", "重复同一行"), "phrase-loop": ("repeats a phrase", "重复短语"),
    "ngram-loop": ("goes in circles", "循环表述"), "exclamation-marks": ("!!!!!!!!", "!!!!!!!!"), "broken-characters": ("broken characters", "残缺字符"), "mojibake": ("UTF-8 read as Latin-1", "编码错乱"),
    "byte-level-tokens": ("bytes of the vocabulary", "词表字节外露"), "lost-spaces": ("lost spaces", "空格丢失"),
    "special-tokens": ("control tokens shown", "控制 token 外露"), "never-stops": ("never stops", "不会停止"), "empty-answer": ("empty answer", "空回答"),
    "none-content": ("content: null", "content: null"), "unclosed-think": ("<think> not closed", "<think> 未闭合"), "no-think": ("no <think>", "缺少 <think>"),
    "language-drift": ("another language", "语言漂移"),
}  # fmt: skip
"""Names of the probes (`load/behaviour.py`) for people."""


def behaviours_text(rows: tuple[dict[str, Any], ...], samples: int = 0) -> str:
    """What the texts did wrong: how often, how sure, and an excerpt; of `samples` that did nothing wrong, that they did not."""
    if not rows:
        high = 3.84 / (samples + 3.84) if samples else 1.0  # Wilson's 95 % for none of n
        return (
            say(
                f"\nbehaviour: none of {samples} texts misbehaves (95 % interval 0–{high:.0%})",
                f"\n文本行为：{samples} 个回答均无异常（95% 区间 0–{high:.0%}）",
            )
            if samples
            else ""
        )
    out = ["", say("behaviour (95 % interval):", "文本行为（95% 区间）：")]
    for r in rows:
        name = say(*_PROBES[r["probe"]]) if r["probe"] in _PROBES else r["probe"]
        out.append(
            f"  {pad(name, 24)} {r['hits']:>3}/{r['samples']}  {r['low']:.0%}–{r['high']:.0%}"
            + (f"  → {r['cause']}" if r["cause"] else "")
        )
        out.append(f"      {str(r['excerpt'])[:70]!r}")
    return "\n".join(out)
