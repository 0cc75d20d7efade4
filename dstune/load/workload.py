"""What is asked, and when: prompts by profile, bodies by dialect, arrivals by rate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import parse_json

PROFILES: dict[str, tuple[str, ...]] = {
    "chat": (
        "Explain in a few sentences why the sky is blue.",
        "Give me three ideas for a rainy Sunday with two children.",
        "What is the difference between weather and climate?",
        "Write a short letter to a neighbour about a shared fence.",
        "How does a heat pump work?",
        "Summarise the plot of Robinson Crusoe in five sentences.",
    ),
    "math": (
        "What is 2^10? Please reason step by step, and put your final answer within \\boxed{}.",
        "A train leaves at 9:40 and arrives at 13:05. How long does it travel? Please reason step by step, and put your final answer within \\boxed{}.",
        "Solve 3x + 7 = 25. Please reason step by step, and put your final answer within \\boxed{}.",
        "How many primes are there below 50? Please reason step by step, and put your final answer within \\boxed{}.",
    ),
    "code": (
        "Write a Python function that sorts a list with quicksort.",
        "Write a Python function that reads a CSV file and returns the mean of each numeric column.",
        "Write a shell script that deletes log files older than seven days.",
        "Write a Python class for an LRU cache with get and put.",
    ),
    "zh": (
        "请用中文解释牛顿第一定律。",
        "什么是梯度下降？请举一个简单的例子。",
        "请用Python写一个快速排序函数，并解释每一步。",
        "1+1等于几？请逐步推理，并将最终答案放在 \\boxed{} 中。",
    ),
}
_SENTENCE = (
    "The harbour master wrote down the time, the wind and the name of every ship that came in before the fog closed the bay. "
)
LONG_WORDS = 1500


def prompts(profile: str) -> Sequence[str]:
    """Prompts of a named profile, `long`, or a file: one prompt a line, or JSON lines with `prompt`.

    Raises `DstuneError` for an unknown profile or an unreadable or empty file.
    """
    if profile in PROFILES:
        return PROFILES[profile]
    if profile == "long":
        text = _SENTENCE * (LONG_WORDS // len(_SENTENCE.split()))
        return [f"{text}\n\nSummarise the text above in one paragraph."]
    try:
        with open(profile, encoding="utf-8") as f:
            lines = [line.strip() for line in f if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join([*PROFILES, "long"])
        raise DstuneError(
            say(f"profile {profile!r} is no name and no readable file", f"配置 {profile!r} 既不是名称也不是可读文件"),
            str(error),
            f"--profile {known}",
        ) from None
    found = [_line(line) for line in lines]
    if not found:
        raise DstuneError(
            say(f"{profile} holds no prompt", f"{profile} 中没有提示词"), "", say("one prompt a line", "每行一个提示词")
        )
    return found


def _line(line: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        data = parse_json(line)
    except ValueError:
        return line
    return str(data.get("prompt") or data.get("text") or line)


class Bodies:
    """Request bodies, made ahead so that the loop only picks: `bodies(number) -> bytes`.

    Each prompt starts with its number: a server's prefix cache then holds the template, not the prompt, and the prefill is real. `warm`
    leaves the number out.
    """

    def __init__(
        self,
        profile: str,
        model: str,
        max_tokens: int,
        dialect: str = "chat",
        stream: bool = True,
        warm: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> None:
        self._prompts = prompts(profile)
        self._warm = warm
        base: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "stream": stream, **(extra or {})}
        if stream:
            base["stream_options"] = {"include_usage": True}
        mark = "\u0000prompt\u0000"
        asked = {"messages": [{"role": "user", "content": mark}]} if dialect == "chat" else {"prompt": mark}
        before, _, behind = json.dumps({**base, **asked}, ensure_ascii=False).partition(json.dumps(mark))
        self._before, self._behind = before.encode(), behind.encode()

    def __call__(self, number: int) -> bytes:
        """The body of request `number` (0-based)."""
        prompt = self._prompts[number % len(self._prompts)]
        if not self._warm:
            prompt = f"[{number + 1}] {prompt}"
        return self._before + json.dumps(prompt, ensure_ascii=False).encode() + self._behind


def poisson(rate: float, duration_s: float | None, requests: int | None, seed: int = 1) -> Iterator[float]:
    """Arrival offsets in seconds of a Poisson process of `rate` requests/s, until time or count is up. The same for a seed."""
    import random

    source = random.Random(seed)
    at, number = 0.0, 0
    while (requests is None or number < requests) and (duration_s is None or at < duration_s):
        yield at
        at += source.expovariate(rate)
        number += 1
