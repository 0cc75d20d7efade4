"""One side of `dstune verify`: the same questions, alone, in a pair and by several users, as figures and texts.

A pass is a dict: the outcome of the load by several users (`load.stats.outcome`), and beside it `alone` (one user), `pair` (two users at
the same moment), `first_text_ms` (when a user first saw text, whether it was streamed or came whole), `length` (tokens or characters of an
answer), `output_char_s`, `unseen` (who saw no text within the patience), `faults`, `echoes` (answers that show the question again) and, from who
starts it, `memory`. `compare` of dstune.verify reads these names.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dstune.errors import UnobservableError
from dstune.lang import say
from dstune.load.answers import Reply
from dstune.load.behaviour import DETECTORS
from dstune.load.client import now
from dstune.load.detect import Server, fetch
from dstune.load.run import Live, Options, trial
from dstune.load.shape import shape
from dstune.load.stats import outcome, spread
from dstune.load.workload import prompts
from dstune.model import parse_json
from dstune.model.plan import Trial, Workload


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


class SilentError(UnobservableError):
    """A side serves, and answers nothing."""


Begin = Callable[[], None]
SINGLE = 3
"""Requests of one user whose speed is measured."""
GIVE_UP = 2
"""Questions that fail before any was answered after which the rest is not asked: each may last until `timeout_s`."""
READ = 2
"""Passes in which the answers are read: the first, and another that shows whether a side repeats itself."""


def warmed(server: Server, bench: Bench, tick: Callable[[str, Live], None]) -> bool:
    """The first answers, which nobody counts: they compile, fill caches and touch every weight. True where the server takes `ignore_eos`."""
    one = replace(options_of(server, bench), requests=max(1, bench.warmup))
    asks = bench.held and server.dialect != "gradio"
    if asks:
        _, replies = trial(
            server, _fixed(replace(one, workload=replace(one.workload, concurrency=1))), tick=lambda live: tick("1", live)
        )
        if not any(r.error.startswith("http-4") for r in replies):
            return True
    if bench.warmup:
        trial(server, replace(one, workload=replace(one.workload, concurrency=1)), tick=lambda live: tick("1", live))
    return False


def _fixed(options: Options) -> Options:
    return replace(options, extra={**options.extra, "ignore_eos": True})


def measured(
    server: Server, bench: Bench, number: int = 0, log: str = "", ignores_eos: bool = False, begin: Begin = lambda: None,
    tick: Callable[[str, Live], None] = lambda phase, live: None,
) -> tuple[Trial, list[str]]:  # fmt: skip
    """Pass `number`: its figures, and the answers to `Bench.questions` ("" for a failed one; empty after `READ` passes).

    Questions are answered to their natural end first and read; then speed is measured with answers of one length, as far as the server
    (`ignores_eos`) or the start-up hook sees to it. `log` is the hook's file (recipes/scripts/verify), `begin` is called when the load by several users
    begins. Ctrl-C ends it: `outcome["interrupted"]`. Raises `SilentError` where each question of the first pass brings an empty answer or
    none in time: with answers held to one length, a side that says nothing would seem to talk. What fails otherwise fails then too.
    """
    options = options_of(server, bench)
    asked = bench.questions
    answers: list[str] = []
    seen: list[Reply] = []
    interrupted = False
    found: dict[str, Any] = {}
    if number < READ:
        replies, part = _phase(server, replace(options, warm=True, requests=len(asked), give_up=GIVE_UP), asked, 1, tick, log)
        texts = [bare(r.reasoning + r.text, q) for q, r in zip(asked, replies, strict=False)]
        answers = [t if r.ok else "" for (t, _), r in zip(texts, replies, strict=False)]
        found |= {
            "faults": sum(faulty(t) for t, r in zip(answers, replies, strict=False) if r.ok or r.error == "empty"),
            "echoes": sum(e for _, e in texts),
            "read": part,
        }
        interrupted = bool(part.get("interrupted"))
        if not interrupted:
            answers += [""] * (len(asked) - len(answers))  # those that were not asked any more, since the first ones failed
        if not number and not interrupted and replies and all(_nothing(r) for r in replies):
            raise _silent(replies)
        seen += [r for r in replies if r.error != "empty"]
    if ignores_eos:
        options = _fixed(options)
    with _one_length(log):
        one, alone = _phase(server, replace(options, requests=SINGLE), asked, 1, tick, log)
        two, pair = _phase(server, replace(options, warm=True, requests=2), asked, 2, tick, log)
        load, many, whole = _trial(server, options, asked, bench.clients, tick, log, begin)
    waits = _seen(two)
    seen += [*one, *two, *many]
    words = {r.error: r.detail for r in seen if r.error and r.detail}
    found |= {
        "alone": alone,
        "pair": {**pair, "second_wait_ms": round(1e3 * max(waits), 3) if len(waits) == 2 else None},
        "unseen": sum(_unseen(r, bench.patience_s) for r in seen),
        "failed_all": sum(not r.ok for r in seen),
        "error_words": {**words, **whole["error_words"]},
    }  # fmt: skip
    if interrupted or any(p.get("interrupted") for p in (alone, pair, load.outcome)):
        found["interrupted"] = True
    return Trial(load.workload, load.settings, whole | found), answers


def _nothing(reply: Reply) -> bool:
    """Whether a user saw nothing at all: no text, not even the question again."""
    return reply.error == "timeout" or (reply.error == "empty" and not (reply.reasoning + reply.text).strip())


def _silent(replies: Sequence[Reply]) -> SilentError:
    """What is said of a side that answered none of its questions: how each failed, in the server's words where there are any."""
    kinds = Counter(r.error for r in replies)
    words = {r.error: f": {' '.join(r.detail.split())[:120]}" for r in replies if r.detail}
    return SilentError(
        say("it serves, but answers nothing", "已开始服务，但没有给出任何回答"),
        say(f"{len(replies)} questions asked: ", f"问了 {len(replies)} 个问题：")
        + "; ".join(f"{n} × {k}{words.get(k, '')}" for k, n in kinds.items()),
    )


@contextlib.contextmanager
def _one_length(log: str) -> Iterator[None]:
    """The start-up hook lets no answer end early while this file is there."""
    if log:
        with open(f"{log}.fixed", "w", encoding="utf-8"):
            pass
    try:
        yield
    finally:
        if log:
            with contextlib.suppress(OSError):
                os.unlink(f"{log}.fixed")


def _trial(
    server: Server, options: Options, asked: Sequence[str], clients: int, tick: Callable[[str, Live], None], log: str, begin: Begin | None = None
) -> tuple[Trial, list[Reply], dict[str, Any]]:  # fmt: skip
    """One load: the trial, its replies, and its figures where an answer that holds nothing but the question is a failure."""
    begun = now()
    work = replace(options.workload, concurrency=clients)
    done, replies = trial(server, replace(options, workload=work), tick=lambda live: tick(str(clients), live), go=begin)
    length = 0
    for reply in replies:
        text = reply.reasoning + reply.text
        question = next((q for q in asked if q in text[: len(q) + 200]), "")
        rest = bare(text, question)[0] if question else text.strip()
        if reply.ok and not rest:
            reply.error, reply.detail = "empty", say("nothing but the question", "只有问题本身")
        length += len(rest) if reply.ok else 0
    o = done.outcome
    figures = o | outcome(replies, work, {"cpu_s": o["client_cpu_s"], "connections": o["connections"]}) | shape(replies)
    good = figures["requests"]["ok"]
    counted(figures, log, begun, now())
    figures["output_char_s"] = round(length / figures["duration_s"], 1) if length and figures["duration_s"] else None
    by_token = figures["output_tok_s"] is not None and figures["output_tokens"]
    figures["length"] = round((figures["output_tokens"] if by_token else length) / good, 2) if good else None
    figures["first_text_ms"] = spread(_seen(replies))
    return done, replies, figures


def _phase(
    server: Server, options: Options, asked: Sequence[str], clients: int, tick: Callable[[str, Live], None], log: str
) -> tuple[list[Reply], dict[str, Any]]:
    """The replies of a small load, and what is kept of its figures."""
    _, replies, o = _trial(server, options, asked, clients, tick, log)
    kept = (
        "requests", "first_text_ms", "itl_ms", "e2e_ms", "output_tokens", "output_tok_s", "output_char_s", "tokens_counted_by", "length",
        "duration_s", "errors", "interrupted",
    )  # fmt: skip
    return replies, {k: o[k] for k in kept if k in o}


def _seen(replies: Sequence[Reply]) -> list[float]:
    return [r.ttft for r in replies if r.ok and r.ttft is not None]


def _unseen(reply: Reply, patience_s: float) -> bool:
    """Whether a user looked at an empty page for longer than they wait."""
    return not reply.ok or reply.ttft is None or reply.ttft > patience_s


WRITTEN_S = 3.0
"""Seconds that the hook's last line may come after the answer it belongs to: a thread that generates ends after its last text was sent."""


def counted(o: dict[str, Any], log: str, begin: float, end: float) -> None:
    """Tokens as `generate` itself counted them, where the hook saw every answer. Events of a page are no tokens: a rate of them is taken out."""
    ok, failed = o["requests"]["ok"], o["requests"]["failed"]
    rows = _rows(log, begin, end)
    while calls(log) and len(rows) < ok + failed and now() < end + WRITTEN_S:
        time.sleep(0.05)
        rows = _rows(log, begin, end)
    if ok and len(rows) >= ok:
        tokens = round(sum(row["tokens"] for row in rows) * ok / (ok + failed))
        o |= {
            "output_tokens": tokens,
            "output_tok_s": round(tokens / max(o["duration_s"], 1e-9), 2),
            "tokens_counted_by": "generate",
        }
    elif o.get("tokens_counted_by") in ("events", "chunks", "") or not ok:
        o["output_tok_s"] = None


def _rows(log: str, begin: float, end: float) -> list[dict[str, Any]]:
    return [row for row in calls(log) if begin <= row["begin"] <= end]


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
