"""Before and after for a person: a row a figure with the noise below which a difference means nothing, the texts, one line of conclusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dstune.lang import say
from dstune.model.plan import Verdict
from dstune.report.text import cells, paint
from dstune.verify import Answers, Word, word

_VERDICT: dict[Word, tuple[str, str, str]] = {
    "better": ("better", "变好", "add"), "worse": ("worse", "变差", "error"), "noise": ("noise", "噪声", "dim"),
}  # fmt: skip
_LABELS = {
    "serves": ("serves", "能否提供服务"), "answers": ("answers questions", "能否回答问题"),
    "first text, alone": ("alone: first text, ms", "单人：首段文本，ms"), "itl_ms, alone": ("alone: between tokens, ms", "单人：token 间隔，ms"),
    "e2e_ms, alone": ("alone: whole answer, ms", "单人：完整回答，ms"), "tok_s, alone": ("alone: tokens/s", "单人：token/秒"),
    "second's wait": ("second of two waits, ms", "两人中后者等待，ms"), "first text p50": ("first text p50, ms", "首段文本 p50，ms"),
    "first text p95": ("first text p95, ms", "首段文本 p95，ms"), "output_tok_s": ("tokens/s", "token/秒"),
    "output_char_s": ("characters/s", "字符/秒"), "request_s": ("requests/s", "请求/秒"), "ttft_ms p50": ("first token p50, ms", "首 token p50，ms"),
    "ttft_ms p95": ("first token p95, ms", "首 token p95，ms"), "itl_ms p50": ("between tokens p50, ms", "token 间隔 p50，ms"),
    "itl_ms p95": ("between tokens p95, ms", "token 间隔 p95，ms"), "e2e_ms p95": ("whole answer p95, ms", "完整回答 p95，ms"),
    "failed": ("failed requests", "失败请求"), "unseen": ("no text in time", "未及时看到文本"), "faulty texts": ("empty or runaway texts", "空白或失控的文本"),
    "echoed questions": ("question shown again", "复述问题"), "memory RSS MiB": ("memory, MiB", "内存，MiB"),
    "memory RSS MiB, loading": ("memory while loading, MiB", "加载时内存，MiB"), "memory GPU MiB": ("GPU memory, MiB", "显存，MiB"),
}  # fmt: skip
_WIDE = 26


def label(claim: str) -> str:
    """A figure's name for people."""
    return say(*_LABELS[claim]) if claim in _LABELS else claim


def verdicts_text(verdicts: Sequence[Verdict]) -> str:
    """The table. "" without a verdict."""
    if not verdicts:
        return ""
    head = f"{'':{_WIDE}}{_right(say('before', '之前'), 12)}{_right(say('after', '之后'), 12)}{'±':>10}"
    out, load = [head], ""
    for v in verdicts:
        if v.load != load:
            out.append(v.load)
            load = v.load
        out.append(_row(v))
    return "\n".join(out)


def _row(v: Verdict) -> str:
    en, zh, colour = _VERDICT[word(v)]
    name = label(v.claim)
    figures = "".join(
        f"{x:>{w}.{0 if abs(x) >= 10000 else 1 if abs(x) >= 100 else 2}f}"
        for x, w in ((v.before, 12), (v.after, 12), (v.spread, 10))
    )
    return name + " " * max(0, _WIDE - cells(name)) + figures + "  " + paint(say(en, zh), colour)


def _right(text: str, width: int) -> str:
    return " " * max(0, width - cells(text)) + text


def head(before: dict[str, Any], after: dict[str, Any], clients: int, requests: int, passes: int, tokens: int) -> str:
    """What was compared and how it was asked."""
    out = [_side(before), _side(after)]
    if passes:
        held = (
            say(f"{tokens} tokens, greedy", f"{tokens} 个 token，贪心解码")
            if tokens
            else say("as the programs decode", "按程序自身解码")
        )
        out.append(
            say(
                f"one user, two at once, {clients} with {requests} questions; {passes} pass{'es' * (passes != 1)}; {held}",
                f"单人、两人同时、{clients} 人共 {requests} 个问题；{passes} 轮；{held}",
            )
        )
    return "\n".join(out)


_DOORS = {
    "gradio": ("through its queue", "经由队列"),
    "chat": ("OpenAI API", "OpenAI API"),
    "completions": ("completions API", "completions API"),
}


def _side(facts: dict[str, Any]) -> str:
    name = say(*{"before": ("before", "之前"), "after": ("after", "之后")}[facts["side"]])
    parts = [str(facts["given"])]
    if facts["server"]:
        parts.append(" ".join(p for p in (facts["server"], facts["version"], say(*_DOORS[facts["door"]])) if p))
    if facts["up_s"] is not None:
        parts.append(say(f"served after {facts['up_s']:.0f} s", f"{facts['up_s']:.0f} 秒后开始服务"))
    if facts["gpu_busy_pct"] is not None:
        parts.append(say(f"GPU busy {facts['gpu_busy_pct']:.0f} %", f"GPU 利用率 {facts['gpu_busy_pct']:.0f} %"))
    if facts["failed"]:
        parts.append(say("answers nothing", "没有给出任何回答") if facts["silent"] else say("does not serve", "没有开始服务"))
    lines = [f"{name}: " + " · ".join(parts)]
    lines += [f"  ! {e}"[:160] for e in facts["errors"][:4]]
    return "\n".join(lines)


def lines(texts: Answers) -> list[str]:
    """What is said about the texts."""
    out = []
    if texts.compared:
        out.append(
            say(
                f"Texts: {texts.same} of {texts.compared} answers are equal to the letter.",
                f"文本：{texts.compared} 个回答中 {texts.same} 个完全一致。",
            )
        )
        if texts.cut:
            out.append(
                say(
                    f"{texts.cut} of them end early: they are the beginning of the answer before.",
                    f"其中 {texts.cut} 个提前结束：只是之前回答的开头。",
                )
            )
        if texts.example[0]:
            question, before, after = (_short(t) for t in texts.example)
            out.append(
                say(
                    f"The first that differs, to {question!r}: {before!r} became {after!r}.",
                    f"第一个不同的回答（问题 {question!r}）：{before!r} 变为 {after!r}。",
                )
            )
    elif texts.why.startswith("sampled"):
        which = say(*{"before": ("before", "之前"), "after": ("after", "之后")}[texts.why.split()[-1]])
        out.append(
            say(
                f"Texts are not compared: {which} answers one question in different ways.",
                f"未比较文本：{which}的一侧对同一问题给出不同回答。",
            )
        )
    elif texts.why == "as is":
        out.append(
            say("Texts are not compared: one side was not held to greedy decoding.", "未比较文本：有一侧未使用贪心解码。")
        )
    if texts.lost:
        out.append(
            say(f"{texts.lost} questions had an answer before and have none now.", f"{texts.lost} 个问题之前有回答，现在没有。")
        )
    return out


OTHERS = 0.25
"""Cores that other programs may keep busy before it is said: a choice, above what an idle machine does by itself."""


def busy(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """A warning where other programs took processor time while speed was measured."""
    cores = [f["others_cores"] for f in (before, after)]
    if all(c is None or c < OTHERS for c in cores):
        return []
    told = " / ".join("-" if c is None else f"{c:.1f}" for c in cores)
    return [
        say(
            f"Other programs kept {told} cores busy meanwhile (before / after): a difference in speed may be theirs. Repeat on a quiet machine.",
            f"测量期间其他程序占用了 {told} 个核（之前 / 之后）：速度差异可能由它们造成，请在空闲的机器上重测。",
        )
    ]


def _short(text: str) -> str:
    return text if len(text) <= 70 else text[:69] + "…"


def conclusion(verdicts: Sequence[Verdict], texts: Answers) -> str:
    """One line: what got worse, then what got better most."""
    worse = [v for v in verdicts if word(v) == "worse"]
    better = [v for v in verdicts if word(v) == "better"]
    gains = sorted(better, key=_factor, reverse=True)[:3]
    won = ", ".join(_told(v) for v in gains) + (
        say(f" and {len(better) - 3} more", f" 等 {len(better)} 项") if len(better) > 3 else ""
    )
    lost = [_told(v) for v in worse]
    if texts.cut:
        lost.append(say(f"{texts.cut} answers end early", f"{texts.cut} 个回答提前结束"))
    if texts.lost:
        lost.append(say(f"{texts.lost} answers are gone", f"{texts.lost} 个回答消失"))
    if lost and won:
        return say(f"WORSE: {', '.join(lost)}. Better: {won}.", f"变差：{'，'.join(lost)}。变好：{won}。")
    if lost:
        return say(f"WORSE: {', '.join(lost)}.", f"变差：{'，'.join(lost)}。")
    if won:
        return say(f"BETTER, nothing got worse: {won}.", f"变好，没有变差：{won}。")
    return say("No difference beyond the noise.", "没有超出噪声的差别。")


def _factor(v: Verdict) -> float:
    low, high = sorted((abs(v.before), abs(v.after)))
    return high / low if low else float("inf")


def _told(v: Verdict) -> str:
    factor = _factor(v)
    times = f" ({factor:.1f}×)" if 1.05 < factor < 1e6 else ""
    return f"{label(v.claim)} {v.before:.4g} → {v.after:.4g}{times}"
