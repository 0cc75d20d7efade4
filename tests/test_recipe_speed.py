"""No expression of a recipe takes long on text that is made to mislead it: deep indentation, blank runs, one long line."""

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dstune.catalog.rules import parts, rules
from dstune.catalog.signatures import Signature, signatures

LIMIT_S = 2.0
SPACES = "    " * 5
TEXTS = {
    "indented Python": "@app.post('/x')\nasync def handler(message, history):\n" + (SPACES + "value = call(value, 1)\n") * 40,
    "functions": "".join(f"def predict{i}(x):\n{SPACES}y = f(x)  \n\n{SPACES}return y\n" for i in range(30)),
    "blanks": "def chat(x):\n" + (" " * 60 + "\n") * 30,
    "long line": "RuntimeError: " + "CUDA error: out of memory, " * 150,
    "words and dots": "docker run --gpus all -e A=b " * 60 + "a." * 1500,
    "continued commands": "vllm serve \\\n" * 2000,
    "words before blanks": "transformers" + " " * 2000 + "--temp" + " " * 2000 + "Paris<|eot_id|>" + " " * 2000,
    "numbers": "Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 2.00 GiB " * 40,
    "short log lines": "INFO 11-30 21:13:42 [core.py:1510] NCCL INFO Channel 00 : 1[1] -> 0[0] via P2P/CUMEM\n" * 60,
    "table": ("| N/A   31C    P0    37W / 250W |   2716MiB / 16384MiB |      0%      Default |\n" + "|" + "=" * 70 + "|\n")
    * 25,
}


@contextmanager
def alarm() -> Iterator[None]:
    """Ends a search that does not end; `re` looks for signals while it searches."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer here")
@pytest.mark.parametrize("cause", sorted(rules()))
def test_expressions_are_quick(cause: str) -> None:
    for way in rules()[cause].ways:
        for _, expression in parts(way):
            pattern = re.compile(expression)
            for name, text in TEXTS.items():
                began = time.monotonic()
                try:
                    with alarm():
                        pattern.search(text)
                except TimeoutError:
                    pytest.fail(f"{cause}: {expression[:120]!r} does not end on {name}")
                assert time.monotonic() - began < LIMIT_S


WIDE_S = 0.6
"""CPU seconds, a generous ten times what the slowest takes; those that this test is for took 2 to 4."""


def misleading(row: Signature) -> Iterator[str]:
    """Lines of 4,000 characters made of what an expression looks for."""
    texts = list(dict.fromkeys(text for text, _ in row.literals))[:8]
    also = list(dict.fromkeys(text for _, groups in row.literals for group in groups for text in group))[:6]
    first = texts[0]
    yield (first * 4000)[:4000]
    yield ((first + " ") * 4000)[:4000]
    yield first + "a" * (4000 - len(first))
    yield "a" * (4000 - len(first)) + first
    yield ("".join(texts + also) * 4000)[:4000]
    yield (" ".join(texts + also) * 4000)[:4000]
    if also:
        yield ((first + " ") * 2000)[:2000] + ((also[0] + " ") * 2000)[:2000]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer here")
@pytest.mark.parametrize("share", range(8))
def test_a_line_made_of_what_is_looked_for(share: int) -> None:
    """CPU time of this process, so that other work on the machine does not count."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    slow: list[str] = []
    unique = {row.pattern: row for row in signatures() if row.kind in ("log", "any")}
    for row in list(unique.values())[share::8]:
        pattern = re.compile(row.pattern, re.MULTILINE)
        for line in misleading(row):
            signal.setitimer(signal.ITIMER_VIRTUAL, WIDE_S)
            try:
                pattern.search(line)
            except TimeoutError:
                slow.append(f"{row.cause or row.way}: {row.pattern[:100]!r} on {line[:40]!r}")
                break
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)
    assert not slow
