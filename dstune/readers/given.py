"""The settings that the words of a command give, typed by the vocabulary, and what the flag history says about them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dstune.catalog import flags
from dstune.catalog.vocabulary import Term, normalise, terms, to_mib
from dstune.model import Fact, Value
from dstune.readers.launch import Launch
from dstune.readers.shell import Word


@cache
def spellings(family: str) -> dict[str, Term]:
    """Every flag of a family's settings → the setting; for `vllm` with `off` flags too."""
    found: dict[str, Term] = {}
    for full, term in terms().items():
        if full.startswith(f"{family}.") and term.engine:
            for flag in term.spec.get("flag", ()):
                found[flag] = term
            if off := term.spec.get("off"):
                found[off] = term
    return found


@cache
def variables() -> dict[str, Term]:
    """Environment variable → the setting it holds."""
    found: dict[str, Term] = {}
    for term in terms().values():
        if name := term.spec.get("env"):
            for each in (name, *term.spec.get("also", ())):
                found.setdefault(each, term)
    return found


@dataclass(frozen=True, slots=True)
class Given:
    """A setting as the words give it: `flag` its word, `values` the words of its value (empty for a switch), `inline` for `--a=b`."""

    term: Term
    flag: Word
    values: tuple[Word, ...]
    inline: bool
    value: Value


def given(family: str, words: Sequence[Word]) -> Iterator[Given]:
    """Settings among the words of a command of this family, typed as the vocabulary types them."""
    known = spellings(family)
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.text.startswith("-"):
            continue
        flag, _, value = word.text.partition("=")
        if flag.startswith("--") and family in ("vllm", "sglang", "lmdeploy", "llamacpp"):
            flag = "--" + flag[2:].replace("_", "-")
        term = known.get(flag)
        if term is None and re.fullmatch(r"-[A-Za-z]\d+", flag) and flag[:2] in known:
            term, value = known[flag[:2]], flag[2:]
        if term is None:
            if at < len(words) and not words[at].text.startswith("-") and "=" not in word.text and family != "docker":
                at += 1
            continue
        inline = "=" in word.text or bool(value)
        taken: list[Word] = []
        if not inline and not term.spec.get("switch"):
            many = term.type == "list" and family != "docker"
            while at < len(words) and (many or not taken) and not _is_flag(words[at].text):
                taken.append(words[at])
                at += 1
        raw: Any = value if inline else [w.text for w in taken] if term.type == "list" else " ".join(w.text for w in taken)
        yield Given(term, word, tuple(taken), inline, _typed(term, flag, raw))


def _is_flag(text: str) -> bool:
    return text.startswith(("-", "\u2013", "\u2014")) and not re.fullmatch(r"-\d[\d.]*", text)


def _typed(term: Term, flag: str, raw: Any) -> Value:
    spec = term.spec
    if spec.get("switch"):
        on = str(raw).strip().lower() not in ("false", "0", "no", "off")
        return (not on) if flag == spec.get("off") else on
    if spec.get("secret") or term.name.endswith("api_key"):
        return "(given)" if raw else None
    if isinstance(raw, str) and not raw:
        return "on" if spec.get("optional_value") else None
    if term.name in ("vllm.max_model_len", "vllm.max_num_batched_tokens", "vllm.kv_cache_memory_bytes"):
        return flags.human(str(raw))
    if spec.get("size"):
        return docker_size(str(raw))
    if term.type == "list":
        return raw if isinstance(raw, list) else [raw]
    if term.type == "number" and not re.match(r"[-+]?[\d.]", str(raw)):
        return None
    return normalise(term.name, raw)


def docker_size(text: str) -> float | None:
    """MiB of a size as Docker takes it: `1g`, `512m`, `64mb`, a bare number is bytes."""
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d*)?|\.\d+)\s*([bkmgtBKMGT]?)(?:i?[bB])?\s*", text)
    if not found:
        return to_mib(text)
    return float(found[1]) * 1024.0 ** ({"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4}[found[2].lower()] - 2)


def facts(launch: Launch, source: str, lines: Sequence[str], subject: str | None = None) -> Iterator[Fact]:
    """Settings and version facts of a launch. `subject` numbers several of one family."""
    family = launch.engine

    def fact(family: str, name: str, value: Value, word: Word | None) -> Fact:
        number = word.line if word else None
        return Fact(family, name, value, source, number, shown(lines, number))

    for variable, word in launch.env.items():
        if (term := variables().get(variable)) is not None:
            value = normalise(term.name, word.text.partition("=")[2]) if not term.spec.get("secret") else "(given)"
            if value is not None:
                where, _, name = term.name.partition(".")
                yield fact(where, name, value, word)
    if not family or family in ("pip", "torch"):
        return
    own = subject or family
    start = launch.first or launch.image or (launch.args[0] if launch.args else None)
    yield fact("command", "engine", family, start)
    yield fact("command", "program", launch.program, start)
    for setting in given(family, launch.args):
        if setting.value is not None:
            yield fact(own, setting.term.name.partition(".")[2], setting.value, setting.flag)
    model = positional(launch)
    if model is not None and not any(g.term.name == f"{family}.model" for g in given(family, launch.args)):
        if f"{family}.model" in terms():
            yield fact(own, "model", model.text, model)
        elif family == "web":
            yield fact(own, "app", model.text, model)
    if family == "vllm":
        yield from _checked(launch, fact)


def positional(launch: Launch) -> Word | None:
    """The model (or app) that is named without a flag."""
    if launch.engine in ("vllm", "hfserve", "web", "sglang") and launch.args and not launch.args[0].text.startswith("-"):
        return launch.args[0]
    if launch.engine in ("web",):
        return next((w for w in launch.args if re.fullmatch(r"[\w.]+:[\w.()]+", w.text)), None)
    return None


def _checked(launch: Launch, fact: Any) -> Iterator[Fact]:
    """What the newest known parser and the history of flags say about the command."""
    if launch.program not in ("vllm serve", "vllm openai", "vllm"):
        return
    words = [w.text for w in launch.args]
    newest = ""
    for problem in flags.check(words):
        word = launch.args[problem.word]
        if problem.fault == "removed":
            yield fact("vllm", "removed_flag", problem.flag, word)
            yield fact("vllm", "removed_flag_gone", problem.detail, word)
            if problem.instead:
                yield fact("vllm", "removed_flag_instead", problem.instead, word)
        elif problem.fault == "unknown":
            yield fact("vllm", "unknown_flag", problem.flag, word)
            yield fact("vllm", "unknown_flag_close", problem.instead, word)
        elif problem.fault in ("value", "choice", "no value"):
            yield fact("vllm", "wrong_value", f"{problem.flag} ({problem.detail})" if problem.detail else problem.flag, word)
    for setting in given("vllm", launch.args):
        share = setting.value
        if setting.term.name == "vllm.gpu_memory_utilization" and isinstance(share, int | float) and not 0 < share <= 1:
            yield fact(
                "vllm", "wrong_value", f"{setting.flag.text.partition('=')[0]} ({share:g}; 0 < share <= 1)", setting.flag
            )
    for word in launch.args:
        if word.text.startswith("--"):
            name = flags.spelled(word.text)[0].lstrip("-").removeprefix("no-")
            first = flags.since(name)
            if first and (not newest or _later(first, newest)) and first != next(iter(flags.tables())):
                newest = first
                at = word
    if newest:
        yield fact("vllm", "newest_flag", at.text.partition("=")[0], at)
        yield fact("vllm", "newest_flag_since", newest, at)
        yield fact("vllm", "newest_flag_missing", flags.missing(flags.spelled(at.text)[0].lstrip("-").removeprefix("no-")), at)


def _later(a: str, b: str) -> bool:
    order = list(flags.tables())
    return order.index(a) > order.index(b)


def shown(lines: Sequence[str], number: int | None) -> str:
    """A line as evidence: redacted and cut."""
    from dstune.readers.scan import shown as cut

    return cut(lines[number - 1]) if number and number <= len(lines) else ""
