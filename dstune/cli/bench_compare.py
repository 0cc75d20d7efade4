"""`dstune bench compare`: two saved reports, load by load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dstune.cli.options import empty
from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import Report, parse_json
from dstune.model.plan import Verdict
from dstune.verify import as_long
from dstune.verify import compare as verdicts_of

Runs = list[dict[str, Any]]
_SAME = (
    ("settings", "server", "server", "服务"), ("settings", "server_version", "version", "版本"), ("settings", "model", "model", "模型"),
    ("settings", "profile", "profile", "提示词"), ("workload", "output_tokens", "--max-tokens", "--max-tokens"),
    ("settings", "device", "device", "设备"), ("settings", "gradio_path", "--gradio-path", "--gradio-path"),
)  # fmt: skip
"""What two loads should have in common, or else the difference may be theirs."""


def compare(paths: tuple[str, ...]) -> Report:
    """The verdicts of two files. Raises `DstuneError`."""
    if len(paths) != 2:
        raise DstuneError(
            say("compare takes two files", "compare 需要两个文件"), "", "dstune bench compare before.json after.json"
        )
    before, after = (outcomes(p) for p in paths)
    verdicts = _verdicts(by_load(before), by_load(after), paths)
    if not verdicts:
        raise DstuneError(
            say("these two reports have no figure in common", "这两份报告没有共同的指标"), "", "dstune bench URL -o run.json"
        )
    return replace(empty("bench"), verdicts=verdicts, notes=tuple(_notes(before, after)))


def _verdicts(a: dict[str, Runs], b: dict[str, Runs], paths: tuple[str, ...]) -> tuple[Verdict, ...]:
    """Runs of the same load against each other: the mean over the steps of a sweep is no figure of any load."""
    try:
        if len(a) == len(b) == 1:
            return tuple(verdicts_of(next(iter(a.values())), next(iter(b.values()))))
        common = [load for load in a if load in b]
        if not common:
            raise DstuneError(
                say("these two reports have no load in common", "这两份报告没有相同的负载"),
                "; ".join(f"{path}: {', '.join(loads)}" for path, loads in zip(paths, (a, b), strict=True)),
                "dstune bench URL -c N -o run.json",
            )
        return tuple(replace(v, load=load) for load in common for v in verdicts_of(a[load], b[load]))
    except OverflowError:
        raise DstuneError(
            say("these two reports have figures that no server has", "这两份报告含有不可能的数值"),
            "",
            "dstune bench URL -o run.json",
        ) from None


def by_load(runs: Runs) -> dict[str, Runs]:
    """Runs by their load, in words."""
    found: dict[str, Runs] = {}
    for run in runs:
        found.setdefault(load_of(run), []).append(run)
    return found


def load_of(run: dict[str, Any]) -> str:
    """How a run loaded its server; "" where it does not say."""
    work = run.get("workload")
    if not isinstance(work, dict):
        return ""
    rate, clients = work.get("rate"), work.get("concurrency")
    if rate is not None:
        return say(f"{rate} requests/s", f"{rate} 请求/秒")
    return say(f"{clients} client{'s' * (clients != 1)}", f"{clients} 个客户端") if clients is not None else ""


def _notes(before: Runs, after: Runs) -> list[str]:
    """What else differs between both sides, and what makes the figures of one worth less."""
    out: list[str] = []
    pairs: list[tuple[str, set[str], set[str]]] = []
    if len(by_load(before)) == len(by_load(after)) == 1:
        pairs.append((say("load", "负载"), {load_of(r) for r in before}, {load_of(r) for r in after}))
    for part, name, en, zh in _SAME:
        pairs.append((say(en, zh), {str(_at(r, part, name)) for r in before}, {str(_at(r, part, name)) for r in after}))
    differ = [f"{name} {_few(a)} / {_few(b)}" for name, a, b in pairs if a != b]
    if differ:
        out.append(say("! not the same on both sides: ", "! 两边不一致：") + say("; ", "；").join(differ))
    if "length" in before[0] and "length" in after[0] and not as_long(before, after):
        a, b = (sum(float(r.get("length", 0)) for r in runs) / len(runs) for runs in (before, after))
        out.append(
            say(
                f"! answers are {a:.0f} / {b:.0f} tokens long: requests/s and whole answers are not compared",
                f"! 回答长度为 {a:.0f} / {b:.0f} 个 token：不比较请求/秒和完整回答",
            )
        )
    for side, runs in ((say("before", "之前"), before), (say("after", "之后"), after)):
        if any(r.get("client_bottleneck") for r in runs):
            out.append(
                say(
                    f"! {side}: the client was the bottleneck, these figures are not the server's",
                    f"! {side}：瓶颈在客户端，这些数字不代表服务端",
                )
            )
        if any(r.get("interrupted") for r in runs):
            out.append(say(f"! {side}: the load was interrupted", f"! {side}：压测被中断"))
    return out


def _at(run: dict[str, Any], part: str, name: str) -> Any:
    found = run.get(part)
    return found.get(name) if isinstance(found, dict) else None


def _few(values: set[str]) -> str:
    return ", ".join(sorted(v[:40] or "-" for v in values)[:3])


def outcomes(path: str) -> Runs:
    """The trials of a saved report. Raises `DstuneError` for what is none."""
    try:
        with open(path, encoding="utf-8") as f:
            data = parse_json(f.read())
        found = data["trials"] if "trials" in data else [data["trial"]]
        kept = [t for t in found if t["requests"] is not None]
        for t in kept:
            if t["requests"]["ok"] and t.get("output_tokens"):
                t.setdefault("length", t["output_tokens"] / t["requests"]["ok"])
        if not kept or any(v.before != v.before for v in verdicts_of(kept, kept)):  # NaN
            raise ValueError
        return kept
    except OSError as error:
        raise DstuneError(f"{path}: {error.strerror}", "", "dstune bench URL -o run.json") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise DstuneError(
            say(f"{path} is no report of dstune bench", f"{path} 不是 dstune bench 的报告"), "", "dstune bench URL -o run.json"
        ) from None
