"""One side of `dstune verify`: the same questions, alone, in a pair and by several users, as figures and texts.

A pass is a dict: the outcome of the load by several users (`load.stats.outcome`), and beside it `alone` (one user), `pair` (two users at
the same moment), `first_text_ms` (when a user first saw text, whether it was streamed or came whole), `unseen` (who saw none within the
patience), `output_char_s`, `faults`, `echoes` (answers that show the question again) and, from who starts it, `memory`. `compare` of dstune.verify reads these names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dstune.load.answers import Reply
from dstune.load.behaviour import DETECTORS
from dstune.load.client import now
from dstune.load.detect import Server, fetch
from dstune.load.run import Live, Options, trial
from dstune.load.stats import spread
from dstune.load.workload import prompts
from dstune.model import Trial, Workload, parse_json


@dataclass(frozen=True, slots=True)
class Bench:
    """What both sides are asked. `held`: sampling is off and answers have at most `tokens` tokens wherever dstune can see to it."""

    clients: int = 4
    requests: int = 8
    tokens: int = 64
    profile: str = "chat"
    repeat: int = 3
    warmup: int = 1
    timeout_s: float = 120.0
    patience_s: float = 10.0
    held: bool = True
    api_name: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    model: str = ""

    @property
    def questions(self) -> list[str]:
        """The questions that one user asks alone, whose answers are compared: each prompt of the profile once, six at most."""
        return list(prompts(self.profile))[:6]


def door(server: Server, headers: dict[str, str]) -> Server:
    """The way in that is measured. A page that has an OpenAI API beside it (what `generate app` writes) is asked there: length and
    temperature can be said there and nowhere else."""
    if server.dialect != "gradio":
        return server
    status, _, body = fetch(f"{server.base}/v1/models", headers)
    try:
        data = parse_json(body) if status == 200 else None
        models = tuple(str(m["id"]) for m in data["data"]) if isinstance(data, dict) else ()
    except (ValueError, TypeError, KeyError):
        models = ()
    return replace(server, dialect="chat", models=models) if models else server


def options_of(server: Server, bench: Bench) -> Options:
    """The options of a trial of this side."""
    extra: dict[str, Any] = {"temperature": 0} if bench.held else {}
    work = Workload(output_tokens=bench.tokens, concurrency=bench.clients)
    model = bench.model or (server.models[0] if server.models else "default")
    return Options(
        work,
        bench.profile,
        model,
        None,
        bench.requests,
        True,
        0,
        bench.timeout_s,
        bench.headers,
        extra,
        api_name=bench.api_name,
    )


Begin = Callable[[], None]


def measured(
    server: Server, bench: Bench, log: str = "", begin: Begin = lambda: None, tick: Callable[[str, Live], None] = lambda phase, live: None,
) -> tuple[Trial, list[str]]:  # fmt: skip
    """One pass: its figures, and the answers to `Bench.questions` ("" for a failed one) without an echo of the question. `log` is the file of the start-up hook (recipes/scripts/verify), `begin` is called when the load by several users begins,
    `tick` draws progress. Ctrl-C ends it: `outcome["interrupted"]`."""
    options = options_of(server, bench)
    asked = bench.questions
    single, alone = _phase(server, replace(options, warm=True, requests=len(asked)), 1, "1", tick, log)
    answers, echoes = [], 0
    for question, reply in zip(asked, single, strict=False):
        text, echoed = bare(reply.reasoning + reply.text, question)
        answers.append(text if reply.ok else "")
        echoes += echoed
    two, pair = _phase(server, replace(options, warm=True, requests=2), 2, "2", tick, log)
    begun = now()
    load, replies = trial(server, options, tick=lambda live: tick(str(bench.clients), live), go=begin)
    found = load.outcome
    waits = [r.ttft for r in replies if r.ok and r.ttft is not None]
    _counted(found, log, begun, now())
    found |= {
        "alone": alone,
        "pair": {**pair, "second_wait_ms": round(1e3 * max(w), 3) if (w := _seen(two)) and len(w) == 2 else None},
        "first_text_ms": spread(waits),
        "unseen": sum(_unseen(r, bench.patience_s) for r in [*single, *two, *replies]),
        "failed_all": sum(not r.ok for r in [*single, *two, *replies]),
        "asked": len(single) + len(two) + len(replies),
        "output_char_s": _char_rate(replies, asked, found["duration_s"]),
        "faults": sum(reply.ok and faulty(text) for reply, text in zip(single, answers, strict=False)),
        "echoes": echoes,
    }  # fmt: skip
    words = {r.error: r.detail for r in [*single, *two] if r.error and r.detail}
    found["error_words"] = words | found["error_words"]
    if any(p.get("interrupted") for p in (alone, pair)):
        found["interrupted"] = True
    return load, answers


def _phase(
    server: Server, options: Options, clients: int, name: str, tick: Callable[[str, Live], None], log: str
) -> tuple[list[Reply], dict[str, Any]]:
    """The replies of a small load, and what is kept of its figures."""
    begun = now()
    work = replace(options.workload, concurrency=clients)
    done, replies = trial(server, replace(options, workload=work), tick=lambda live: tick(name, live))
    o = done.outcome
    _counted(o, log, begun, now())
    kept = (
        "requests",
        "itl_ms",
        "e2e_ms",
        "output_tokens",
        "output_tok_s",
        "tokens_counted_by",
        "duration_s",
        "errors",
        "interrupted",
    )
    figures = {k: o[k] for k in kept if k in o}
    figures["first_text_ms"] = spread(_seen(replies))
    return replies, figures


def _seen(replies: Sequence[Reply]) -> list[float]:
    return [r.ttft for r in replies if r.ok and r.ttft is not None]


def _unseen(reply: Reply, patience_s: float) -> bool:
    """Whether a user looked at an empty page for longer than they wait."""
    return not reply.ok or reply.ttft is None or reply.ttft > patience_s


def _counted(o: dict[str, Any], log: str, begin: float, end: float) -> None:
    """Tokens as `generate` itself counted them, where the hook saw it. Events of a page are no tokens: a rate of them is taken out."""
    tokens = sum(row["tokens"] for row in calls(log) if begin <= row["begin"] and row["end"] <= end + 1)
    if tokens:
        o |= {
            "output_tokens": tokens,
            "output_tok_s": round(tokens / max(o["duration_s"], 1e-9), 2),
            "tokens_counted_by": "generate",
        }
    elif o.get("tokens_counted_by") in ("events", "chunks", ""):
        o["output_tok_s"] = None


def calls(log: str) -> list[dict[str, Any]]:
    """What the start-up hook wrote about calls of `generate` so far."""
    try:
        with open(log, encoding="utf-8") as f:
            rows = [json.loads(line) for line in f if line.startswith('{"begin"')]
    except (OSError, ValueError):
        return []
    return [r for r in rows if isinstance(r.get("tokens"), int)]


def bare(text: str, question: str) -> tuple[str, bool]:
    """(the answer, whether the question stood before it). A program that decodes the prompt too shows the question again."""
    at = text.find(question)
    if not 0 <= at < 200:
        return text.strip(), False
    rest = text[at + len(question) :].strip()
    return rest.removeprefix("assistant").strip(), True


def faulty(text: str) -> bool:
    """Whether an answer is empty, runs away or is damaged."""
    return not text or any(detector(text) for detector in DETECTORS.values())


def _char_rate(replies: Sequence[Reply], asked: Sequence[str], seconds: float) -> float | None:
    total = 0
    for reply in replies:
        text = reply.reasoning + reply.text
        question = next((q for q in asked if q in text[: len(q) + 200]), "")
        total += len(bare(text, question)[0] if question else text) if reply.ok else 0
    return round(total / seconds, 1) if total and seconds else None
