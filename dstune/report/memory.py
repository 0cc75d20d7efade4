"""Where the memory of each card goes, as text, JSON and Markdown: `plan.decompose` told to a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dstune.lang import say
from dstune.model import Evidence, Value
from dstune.plan.words import part_name
from dstune.redact import redact

if TYPE_CHECKING:
    from dstune.plan.decompose import Holder, Part

_SHORTEST = 1.0
"""MiB below which a part is not worth a line."""
STRANGERS = 3
"""Processes of a card that are no model servers: so many have a line of their own."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card with what holds its memory, MiB."""

    subject: str
    name: str
    total: float
    used: float
    reserved: float | None
    holders: tuple[Holder, ...]

    @property
    def unlisted(self) -> float:
        """In use, and of no process that is listed."""
        return max(0.0, self.used - sum(h.mib or 0 for h in self.holders))


def cards(evidence: Evidence) -> list[Card]:
    """Cards on which NVML lists a process; nothing where it lists none."""
    if not any(evidence.find("process", "gpu")):
        return []
    from dstune.plan.decompose import decompose, table  # the memory's physics take 15 ms to load

    holders = decompose(evidence)
    if not holders:
        return []
    own = table(evidence)
    found = []
    for subject in dict.fromkeys(h.card for h in holders):
        facts = own.get(subject, {})
        total, used, reserved = (_number(facts.get(f"memory_{n}_mib")) for n in ("total", "used", "reserved"))
        mine = tuple(h for h in holders if h.card == subject)
        listed = sum(h.mib or 0 for h in mine)
        found.append(
            Card(subject, str(facts.get("name") or ""), total or 0.0, used if used is not None else listed, reserved, mine)
        )
    return found


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


_OWN = {
    "KV cache pool": ("KV cache (reserved)", "KV 缓存（预留）"),
    "allocator slack": ("allocator reserve", "分配器保留"),
    "weights": ("weights", "权重"),
}


def label(part: Part) -> str:
    """A part's name for a person, in what a process holds."""
    return say(*_OWN[part.name]) if part.name in _OWN else part_name(part.name)


def rest_words(holder: Holder) -> str:
    """What the rest is, said as far as it is known."""
    rest = holder.rest or 0.0
    if holder.within:
        return say("within the band of the estimate", "在估计区间之内")
    if rest < 0:
        return say(
            "NVML counts less: the server is still starting, runs with other settings than were read, or part of the model is not on this card",
            "NVML 的数字更小：服务尚未启动完、并非以读到的设置运行，或模型有一部分不在该卡上",
        )
    if any(p.kind == "allocator" for p in holder.parts):
        return say(
            "not explained by one request at a time: larger batches or prompts, other tensors of the program, or what the allocator keeps of them",
            "超出单个请求的用量：更大的批次或提示词、程序里的其他张量，或分配器为它们保留的显存",
        )
    return say(
        "not explained by these settings: adapters, image towers, NCCL, or settings from a file or the environment",
        "这些设置解释不了：LoRA、视觉塔、NCCL，或来自文件、环境变量的设置",
    )


def memory_text(evidence: Evidence) -> str:
    """A block a card: its processes, each with its parts, what is left, and who holds the rest of the card."""
    from dstune.report.text import cells, paint, wrap

    def row(name: str, mib: float | None, note: str = "", style: str = "") -> str:
        figure = "-" if mib is None else f"{mib:,.0f}"
        line = "     " + name + " " * max(1, 28 - cells(name)) + f"{figure:>9} MiB"
        return paint(line, style) + (f"  {note}" if note else "") if style else line + (f"  {note}" if note else "")

    out: list[str] = []
    for card in cards(evidence):
        of = say(
            f"Where the memory of {card.subject} ({card.name}) goes: {card.used:,.0f} of {card.total:,.0f} MiB in use",
            f"{card.subject}（{card.name}）的显存去向：已用 {card.used:,.0f}，共 {card.total:,.0f} MiB",
        )
        out.append(paint(of, "bold"))
        strangers = [h for h in card.holders if not h.engine]
        for h in card.holders:
            if h in strangers[STRANGERS:]:
                continue
            title = " ".join(filter(None, (h.engine, h.version, redact(h.model))))
            size = "?" if h.mib is None else f"{h.mib:,.0f} MiB"
            out.append(f"   pid {h.pid}  {title or redact(h.command)[:48]}: {size}" + ("" if h.parts else f" — {h.why}"))
            for p in joined(h.parts):
                if p.mib >= _SHORTEST:
                    out.append(row(label(p), p.mib, _note(p, h)))
            if h.rest is not None:
                share = f"{100 * h.rest / (h.mib or 1):+.1f} %"
                out.append(row(say("rest", "其余"), h.rest, share, "" if h.within else "warning"))
                band = say(
                    f"estimate {h.estimate:,.0f} ({h.low:,.0f} … {h.high:,.0f}) MiB",
                    f"估计 {h.estimate:,.0f}（{h.low:,.0f} … {h.high:,.0f}）MiB",
                )
                out.append(wrap(f"{band}: {rest_words(h)}" + "".join(f"; {a}" for a in h.assumed), "     "))
        if more := strangers[STRANGERS:]:
            name = say(f"{len(more)} more processes", f"另有 {len(more)} 个进程")
            out.append(row(name, sum(h.mib or 0 for h in more)))
        if card.unlisted >= _SHORTEST:
            out.append(row(say("of no listed process", "不属于任何已列出的进程"), card.unlisted))
        out.append(row(say("free", "空闲"), max(0.0, card.total - card.used - (card.reserved or 0.0))))
        out += [row(say("the driver's own", "驱动自身"), card.reserved)] if card.reserved else []
    return "\n".join(out)


def joined(parts: Sequence[Part]) -> list[Part]:
    """The parts with the weights as one, its formula naming what it is made of."""
    of = [p for p in parts if p.kind == "weights"]
    if len(of) < 2:
        return list(parts)
    words = " + ".join(f"{p.name.partition(': ')[2]} {p.mib:,.0f}" for p in of)
    mib, low, high = (sum(sizes) for sizes in zip(*((p.mib, p.low, p.high) for p in of), strict=True))
    whole = replace(of[0], kind="weights", name="weights", mib=mib, low=low, high=high, formula=words, read="")
    return [whole, *(p for p in parts if p.kind != "weights")]


def _note(p: Part, h: Holder) -> str:
    words = [say(f"read: {p.read}", f"读自 {p.read}")] if p.read else []
    if p.low != p.high:
        words.append(f"{p.low:,.0f} … {p.high:,.0f}")
    if p.kind == "kv" and h.kv_used_mib is not None:
        words.append(say(f"{h.kv_used_mib:,.0f} in use", f"使用中 {h.kv_used_mib:,.0f}"))
    if p.kind == "kv" and h.kv_tokens:
        words.append(f"{h.kv_tokens:,.0f} token" + say("s", ""))
    return ", ".join(words)


def memory_json(evidence: Evidence) -> list[dict[str, Any]]:
    """The same for `--json`, key `memory`."""
    return [
        {
            "gpu": card.subject,
            "name": card.name,
            "total_mib": card.total,
            "used_mib": card.used,
            "unlisted_mib": round(card.unlisted, 1),
            "processes": [_process(h) for h in card.holders],
        }
        for card in cards(evidence)
    ]


def _process(h: Holder) -> dict[str, Any]:
    out: dict[str, Any] = {
        "pid": h.pid, "engine": h.engine, "version": h.version, "model": redact(h.model), "command": redact(h.command)[:300], "mib": h.mib,
    }  # fmt: skip
    if not h.parts:
        return {**out, "why": h.why}
    return {
        **out,
        "parts": [
            {
                "kind": p.kind, "part": p.name, "mib": round(p.mib, 1), "low": round(p.low, 1), "high": round(p.high, 1), "read": p.read,
                "formula": p.formula, "source": p.source,
            }
            for p in h.parts
        ],
        "kv_tokens": h.kv_tokens,
        "kv_used_mib": None if h.kv_used_mib is None else round(h.kv_used_mib, 1),
        "estimate_mib": round(h.estimate, 1),
        "low_mib": round(h.low, 1),
        "high_mib": round(h.high, 1),
        "rest_mib": None if h.rest is None else round(h.rest, 1),
        "within_band": h.within,
        "assumed": list(h.assumed),
    }  # fmt: skip


def memory_markdown(evidence: Evidence) -> list[str]:
    """A table a card."""
    out: list[str] = []
    for card in cards(evidence):
        out += ["", f"### {card.subject} {card.name}: {card.used:,.0f} / {card.total:,.0f} MiB", ""]
        out += [f"| {say('process', '进程')} | {say('part', '部分')} | MiB |", "|---|---|---|"]
        for h in card.holders:
            name = " ".join(filter(None, (str(h.pid or ""), h.engine, redact(h.model)))).replace("|", "\\|")
            out.append(f"| {name} | {h.why} | {'?' if h.mib is None else f'{h.mib:,.0f}'} |")
            out += [f"| | {label(p)} | {p.mib:,.0f} |" for p in joined(h.parts) if p.mib >= _SHORTEST]
            out += [f"| | {say('rest', '其余')}: {rest_words(h)} | {h.rest:+,.0f} |"] if h.rest is not None else []
        out += (
            [f"| {say('of no listed process', '不属于任何已列出的进程')} | | {card.unlisted:,.0f} |"]
            if card.unlisted >= _SHORTEST
            else []
        )
    return out
