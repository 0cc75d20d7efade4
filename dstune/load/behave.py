"""Behaviour probes: a small set of questions that bring the symptoms of R1-family models out, at several temperatures."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dstune.load.answers import Reply, read
from dstune.load.behaviour import Asked, judge, runaway, summary
from dstune.load.client import Answer, Pool, Target, closed
from dstune.load.detect import Server
from dstune.load.run import ROUTE, Live, Options, hidden
from dstune.load.runner import run
from dstune.load.stats import outcome
from dstune.model.plan import Trial

SAMPLES = 2
LIMIT = 1024
"""Tokens that an answer may take at least: an R1 model thinks for some hundreds before it answers 2^10."""
BUDGET_S = 120.0
"""Seconds after which nothing more is asked and what still runs is judged as far as it came."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request: prompt, sampling, and what is expected of the answer."""

    prompt: str
    language: str = "en"
    temperature: float | None = None
    system: str = ""


QUESTIONS: tuple[Question, ...] = (
    *(Question("What is 2^10?", temperature=t) for t in (0.0, 0.3, 0.6, 0.9)),
    Question("What is 1+1?", temperature=0.6),
    Question("1+1等于几？", "zh", 0.6),
    Question("请用中文解释牛顿第一定律。", "zh", 0.6),
    Question("请用中文解释牛顿第一定律。", "zh", 0.6, "You are a helpful assistant."),
    Question("Write a Python function for quicksort.", temperature=0.6),
    Question("Write a Python function for quicksort.", temperature=0.0),
    Question("Count from 1 to 200 in words, one a line, then say done.", temperature=0.6),
    Question("What is 2^10? Please reason step by step, and put your final answer within \\boxed{}.", temperature=0.6),
)


def behave(server: Server, options: Options, tick: Callable[[Live], None] | None = None) -> tuple[Trial, list[dict[str, Any]]]:
    """Asks every question `SAMPLES` times, a few at once; a stream that already loops is cut. (trial, `behaviours` of the report)."""
    cpu = time.process_time()
    asked = [(q, Answer(i, 0.0)) for i, q in enumerate(q for q in QUESTIONS for _ in range(SAMPLES))]
    interrupted = run(_ask(server, options, asked, tick))
    replies = [(q, read(a)) for q, a in asked if a.sent and a.error != "cancelled"]
    hidden([r for _, r in replies], options)
    reasoning = any("think" in r.text or r.reasoning for _, r in replies) or "r1" in options.model.lower()
    judged = [
        judge(_mended(r), Asked(q.prompt, q.language, reasoning, limit(options)))
        for q, r in replies
        if r.ok or r.error in ("cut", "unfinished") or (r.error == "empty" and r.output_tokens)
    ]
    figures = outcome([_mended(r) for _, r in replies], options.workload, {"cpu_s": time.process_time() - cpu})
    figures["judged"] = len(judged)
    if interrupted:
        figures["interrupted"] = True
    settings = {
        "url": server.base,
        "server": server.kind,
        "server_version": server.version,
        "model": options.model,
        "profile": "behaviour",
    }
    return Trial(options.workload, dict(settings), figures), summary(judged)


def limit(options: Options) -> int:
    """Tokens that each answer may take."""
    return max(options.workload.output_tokens, LIMIT)


def _mended(reply: Reply) -> Reply:
    """A stream that we cut is an answer: one that did not stop where it looped, one of which the end is not known where time was up."""
    if reply.error in ("cut", "unfinished"):
        reply.error, reply.finish = "", "length" if reply.error == "cut" else "unfinished"
    return reply


async def _ask(
    server: Server, options: Options, asked: list[tuple[Question, Answer]], tick: Callable[[Live], None] | None
) -> bool:
    """Whether the user ended it (Ctrl-C); what was answered until then is the report."""
    pool = Pool(Target(server.base + ROUTE[server.dialect], options.headers, options.timeout_s, options.verify_tls))
    gate = asyncio.Semaphore(options.workload.concurrency)
    live = Live()
    end = time.perf_counter() + BUDGET_S

    async def one(question: Question, answer: Answer) -> None:
        async with gate:
            answer.due = time.perf_counter()
            if answer.due >= end:
                return
            task = asyncio.create_task(pool.send(pool.target.request(_body(question, options, server.dialect)), answer))
            while not task.done():
                try:
                    await asyncio.wait({task}, timeout=1.0)
                except asyncio.CancelledError:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    raise
                pool.peek(answer)
                late = time.perf_counter() >= end
                if not task.done() and (late or runaway(_so_far(answer))):
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    answer.error = "unfinished" if late else "cut"
            live.done += 1
            if tick is not None:
                tick(live)

    try:
        await closed(one(q, a) for q, a in asked)
    except asyncio.CancelledError:
        if not live.done:
            raise
        return True
    finally:
        pool.close()
    return False


def _so_far(answer: Answer) -> str:
    found = read(Answer(answer.number, answer.due, answer.sent, answer.ended, answer.status, answer.headers, answer.pieces))
    return found.reasoning + found.text


def _body(question: Question, options: Options, dialect: str) -> bytes:
    body: dict[str, Any] = {
        "model": options.model,
        "max_tokens": limit(options),
        "stream": True,
        "stream_options": {"include_usage": True},
        **options.extra,
    }
    if question.temperature is not None:
        body |= {"temperature": question.temperature, "top_p": 0.95 if question.temperature else 1.0}
    if dialect == "chat":
        system = [{"role": "system", "content": question.system}] if question.system else []
        body["messages"] = [*system, {"role": "user", "content": question.prompt}]
    else:
        body["prompt"] = question.prompt
    return json.dumps(body, ensure_ascii=False).encode()
