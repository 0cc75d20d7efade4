"""What is wrong with a text: runaways, loops, leaks, damage. Pure detectors over answers, and how sure a rate over N samples is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dstune.load.answers import Reply

SPECIAL = re.compile(
    r"<[|｜](?:end▁of▁sentence|begin▁of▁sentence|User|Assistant|im_start|im_end|eot_id|endoftext|EOT|start_header_id|end_header_id)[|｜]>|</s>|<s>"
)
_MOJIBAKE = re.compile(
    r"(?:[ÃÂâ][\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ¡-¿]){2}|[\u00c0-\u00ff][\u0080-\u00bf]{1,2}[\u00c0-\u00ff]"
)
_BPE = re.compile(r"[ĠĊ]\w|▁\w+▁")
_CJK = re.compile(r"[\u4e00-\u9fff]")
_LATIN = re.compile(r"[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked: the language expected of the answer, whether the model is one that reasons in `<think>`, and the tokens that the
    answer could take (0: unknown)."""

    prompt: str = ""
    language: str = "en"
    reasoning: bool = False
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """A misbehaviour in one answer: the probe's name and the piece of text that shows it."""

    probe: str
    excerpt: str


def newlines(text: str) -> str:
    """The end of a text that runs on in empty lines: 12 or more line breaks with nothing between them, or the last 30 characters blank."""
    run = re.search(r"(?:[ \t]*\n){12,}", text)
    if run:
        return text[max(0, run.start() - 40) : run.start() + 12]
    tail = text[-30:]
    return text[-70:] if len(text) > 60 and not tail.strip() and tail.count("\n") >= 4 else ""


def line_loop(text: str) -> str:
    """A line that stands at least 6 times and is most of the last 12 lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-12:]
    for line in set(lines):
        if len(line) > 3 and lines.count(line) >= 6:
            return line[:120]
    return ""


def phrase_loop(text: str, times: int = 6) -> str:
    """A phrase of 2 to 200 characters that the text ends in, `times` or more times in a row (short ones: at least 60 characters in all)."""
    tail = text[-4000:]
    for size in range(2, min(200, len(tail) // times) + 1):
        phrase = tail[-size:]
        if not phrase.strip() or len(set(phrase.strip())) < 2:
            continue
        count = 1
        while tail[-size * (count + 1) : -size * count] == phrase:
            count += 1
        if count >= times and count * size >= 60:
            return phrase.strip()[:120]
    return ""


def ngram_loop(text: str) -> str:
    """An 8-word sequence (or 16 Chinese characters) that returns 4 times or more in the last 300 words."""
    words = text.split()[-300:]
    size = 8
    if len(words) < 40 and len(text) > 200:
        words, size = list(re.sub(r"\s", "", text)[-600:]), 16
    counts: dict[tuple[str, ...], int] = {}
    for i in range(len(words) - size + 1):
        key = tuple(words[i : i + size])
        counts[key] = counts.get(key, 0) + 1
    most = max(counts, key=lambda k: counts[k], default=())
    return ("" if size == 16 else " ").join(most)[:120] if most and counts[most] >= 4 and len(set(most)) > 1 else ""


def bangs(text: str) -> str:
    """A run of 8 or more exclamation marks: token 0 of many vocabularies, chosen when logits are NaN."""
    found = re.search(r"!{8,}", text)
    return text[max(0, found.start() - 20) : found.start() + 20] if found else ""


def broken_characters(text: str) -> str:
    """U+FFFD: a character whose bytes came in pieces."""
    found = re.search("\ufffd", text)
    return text[max(0, found.start() - 20) : found.start() + 20] if found else ""


def mojibake(text: str) -> str:
    """UTF-8 read as Latin-1."""
    found = _MOJIBAKE.search(text)
    return text[max(0, found.start() - 20) : found.start() + 20] if found else ""


def byte_level(text: str) -> str:
    """Ġ, Ċ or ▁ of the vocabulary shown as text: the tokenizer was rebuilt as another class."""
    text = SPECIAL.sub("", text)
    found = _BPE.search(text)
    return text[max(0, found.start() - 20) : found.start() + 20] if found and len(_BPE.findall(text)) > 2 else ""


def no_spaces(text: str) -> str:
    """Latin text without spaces: 200 letters with fewer than one space in 25. Code, links and Chinese are left out."""
    plain = re.sub(r"```.*?(?:```|\Z)|https?://\S+|\\\w+|[\u4e00-\u9fff]", " ", text, flags=re.DOTALL)
    letters = len(_LATIN.findall(plain))
    longest = max((len(w) for w in re.findall(r"[A-Za-z.,]+", plain)), default=0)
    return plain.strip()[:80] if letters >= 120 and longest > 60 else ""


def language(text: str, expected: str) -> str:
    """An answer in another script than the question: under a fifth Chinese where Chinese was asked, over a third where English was."""
    cjk, latin = len(_CJK.findall(text)), len(_LATIN.findall(text))
    if cjk + latin < 40:
        return ""
    share = cjk / (cjk + latin)
    return text[:80] if (share < 0.1 if expected == "zh" else share > 0.34) else ""


def special(text: str) -> str:
    """A control token that should have been skipped."""
    found = SPECIAL.search(text)
    return text[max(0, found.start() - 20) : found.end() + 10] if found else ""


def judge(reply: Reply, asked: Asked) -> list[Seen]:
    """All misbehaviours of one answer. An answer that ended at a limit below the one asked for was cut by the server's own; at ours it did
    not stop, and a thought that it cut says nothing of the server."""
    text = reply.reasoning + reply.text
    found = [Seen(name, excerpt) for name, detect in DETECTORS.items() if (excerpt := detect(text))]
    early = reply.finish == "length" and 0 < (reply.output_tokens or 0) < 0.9 * asked.limit and not found
    ours = reply.finish in ("length", "unfinished") and not early
    if ours and reply.finish == "length":
        found.append(Seen("never-stops", text[-80:]))
    if not reply.text.strip() and not ours and (reply.reasoning.strip() or (reply.output_tokens or 0) > 8):
        found.append(Seen("empty-answer", reply.reasoning[-80:]))
    if reply.none_chunks:
        found.append(Seen("none-content", f"{reply.none_chunks} × content: null"))
    if asked.reasoning:
        if "<think>" in reply.text and "</think>" not in reply.text:
            if not ours:
                found.append(Seen("unclosed-think", reply.text[-80:]))
        elif "</think>" not in reply.text and not reply.reasoning and reply.finish not in ("length", "unfinished"):
            found.append(Seen("no-think", reply.text[:80]))
    answer = reply.text.rpartition("</think>")[2] or reply.text
    if excerpt := language(answer, asked.language):
        found.append(Seen("language-drift", excerpt))
    return found


DETECTORS: dict[str, Callable[[str], str]] = {
    "endless-newlines": newlines,
    "line-loop": line_loop,
    "phrase-loop": phrase_loop,
    "ngram-loop": ngram_loop,
    "exclamation-marks": bangs,
    "broken-characters": broken_characters,
    "mojibake": mojibake,
    "byte-level-tokens": byte_level,
    "lost-spaces": no_spaces,
    "special-tokens": special,
}
CAUSES = {
    "endless-newlines": "endless-newlines", "line-loop": "endless-newlines", "phrase-loop": "endless-newlines", "ngram-loop": "endless-newlines",
    "exclamation-marks": "fp16-activation-overflow", "broken-characters": "decode-token-by-token", "mojibake": "tokenizer-rebuilt-garbled-text",
    "byte-level-tokens": "tokenizer-rebuilt-garbled-text", "lost-spaces": "tokenizer-rebuilt-garbled-text", "special-tokens": "special-tokens-not-skipped",
    "never-stops": "runaway-output", "empty-answer": "reasoning-truncated-by-max-tokens", "none-content": "stream-none-content-chunk",
    "unclosed-think": "reasoning-truncated-by-max-tokens", "no-think": "", "language-drift": "",
}  # fmt: skip
"""The cause that a behaviour points to most often, "" where there is no such one; the doctor's rules refine it."""


def runaway(text: str) -> bool:
    """Whether a stream may be cut short: it loops already, so that the rest would only repeat."""
    return len(text) > 200 and bool(newlines(text) or phrase_loop(text, 12) or bangs(text[-40:]))


def interval(hits: int, samples: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of 95 % for a share. (0, 1) without samples."""
    if not samples:
        return 0.0, 1.0
    p, n = hits / samples, samples
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def summary(judged: Sequence[list[Seen]]) -> list[dict[str, object]]:
    """The `behaviours` of a report: probe, samples, hits, share with its interval, an excerpt, the cause it points to."""
    names = dict.fromkeys(s.probe for answer in judged for s in answer)
    out: list[dict[str, object]] = []
    for name in names:
        shown = [s for answer in judged for s in answer if s.probe == name]
        hits = sum(any(s.probe == name for s in answer) for answer in judged)
        low, high = interval(hits, len(judged))
        out.append(
            {
                "probe": name,
                "samples": len(judged),
                "hits": hits,
                "low": round(low, 3),
                "high": round(high, 3),
                "excerpt": shown[0].excerpt,
                "cause": CAUSES[name],
            }
        )
    return sorted(out, key=lambda row: -int(str(row["hits"])))
