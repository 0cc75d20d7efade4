"""Puts settings into command lines: a flag is changed where it stands, added in the style of its command, or taken out with its line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from dstune.catalog.vocabulary import Term, terms
from dstune.model import Value
from dstune.readers.given import Given, given
from dstune.readers.launch import Launch, launches
from dstune.readers.shell import Word, joiner

_SHELL = re.compile(r"[\s\"'`$&|;<>(){}*?#~\\!]")


def spoken(term: Term, value: Value) -> str:
    """A value as the command line takes it (unquoted): JSON for structures, whole numbers without `.0`, sizes with their unit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if term.spec.get("size") and isinstance(value, int | float):
        return f"{value / 1024:g}g" if value % 1024 == 0 else f"{value:g}m"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value)


def quoted(text: str, quote: str = "") -> str:
    """A value with the quotes it had, or the ones that a shell needs."""
    if quote and quote not in text and not (quote == '"' and re.search(r"[$`\\]", text)):
        return f"{quote}{text}{quote}"
    return shlex.quote(text) if _SHELL.search(text) or not text else text


def words_for(term: Term, value: Value) -> list[str]:
    """The words that give a setting; empty where leaving it out says the same (a switch that is off and has no negation)."""
    if term.spec.get("switch"):
        if value:
            return [term.spec["flag"][0]]
        return [term.spec["off"]] if term.spec.get("off") else []
    if isinstance(value, list):
        return [term.spec["flag"][0], *(quoted(str(v)) for v in value)]
    return [term.spec["flag"][0], quoted(spoken(term, value))]


def into_command(text: str, settings: Mapping[str, Value]) -> str:
    """The shell text with the settings in it: each goes into the first command of its engine (or, `docker.*`, container)."""
    for key, value in settings.items():
        term = terms().get(key)
        if term is None:
            continue
        family = key.partition(".")[0]
        for launch in launches(text):
            if family == "docker" and launch.image is not None and launch.container:
                text = _set(text, launch, term, value, launch.docker, before=launch.image)
                break
            if launch.engine == family:
                if term.spec.get("flag"):
                    text = _set(text, launch, term, value, launch.args)
                else:
                    text = _set_env(text, launch, term, value)
                break
            if family == "env" and term.spec.get("env") and (launch.engine or launch.container or launch.program == "python"):
                text = _set_env(text, launch, term, value)
                break
    return text


def _set(text: str, launch: Launch, term: Term, value: Value, words: Sequence[Word], before: Word | None = None) -> str:
    family = term.name.partition(".")[0]
    found = [g for g in given(family, words) if g.term is term]
    if (
        not found
        and value is not None
        and term.name in (f"{family}.model",)
        and launch.args
        and not launch.args[0].text.startswith("-")
    ):
        return _put(text, launch.args[0].start, launch.args[0].end, quoted(spoken(term, value), launch.args[0].quote))
    if value is None or (term.spec.get("switch") and not words_for(term, value)):
        for item in reversed(found):
            text = _without(text, item)
        return text
    if found:
        last = found[-1]
        if term.spec.get("switch"):
            return _put(text, last.flag.start, last.flag.end, words_for(term, value)[0])
        if last.inline:
            flag = last.flag.text.partition("=")[0]
            return _put(text, last.flag.start, last.flag.end, f"{flag}={quoted(spoken(term, value))}")
        if last.values:
            many = " ".join(words_for(term, value)[1:])
            instead = many if isinstance(value, list) else quoted(spoken(term, value), last.values[0].quote)
            return _put(text, last.values[0].start, last.values[-1].end, instead)
        return _put(text, last.flag.start, last.flag.end, " ".join([last.flag.text, *words_for(term, value)[1:]]))
    new = words_for(term, value)
    if before is not None:
        return _put(text, before.start, before.start, " ".join(new) + gap(text, before.start))
    return _append(text, launch, " ".join(new))


def _put(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + new + text[end:]


def gap(text: str, start: int) -> str:
    """What stands between a word that begins its line and the one before it: ` \\`, line end and indent, or a space."""
    line = text.rfind("\n", 0, start) + 1
    indent = text[line:start]
    if line and not indent.strip():
        return f" {joiner(text)}\n{indent}"
    return " "


def _append(text: str, launch: Launch, new: str) -> str:
    """The words behind the last one of the command, on a line of their own where the command has its flags so."""
    at = launch.end or (launch.args[-1].end if launch.args else 0)
    if not at:
        return text
    mark = joiner(text)
    start = text.rfind("\n", 0, at) + 1
    own_line = launch.lines > 1 and re.match(r"[ \t]+\S", text[start:at])
    if own_line:
        indent = re.match(r"[ \t]*", text[start:])
        return _put(text, at, at, f" {mark}\n{indent[0] if indent else '  '}{new}")
    return _put(text, at, at, f" {new}")


def _without(text: str, item: Given) -> str:
    return taken_out(text, item.flag.start, item.values[-1].end if item.values else item.flag.end)


def taken_out(text: str, start: int, end: int) -> str:
    """The text without these words; a line that held nothing else goes whole, and no continuation is left dangling."""
    line, stop = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    mark = re.escape(joiner(text))
    tail = re.sub(r"(?:^|(?<=[ \t]))#.*", "", text[end:stop])  # what is said of a flag goes with it
    if not text[line:start].strip() and line and re.fullmatch(rf"[ \t]*(?:{mark}[ \t]*)?\r?", tail):
        if tail.strip():
            return text[:line] + text[stop + 1 :]
        return re.sub(rf"[ \t]*{mark}[ \t]*\r?\n$", "\n", text[:line]).rstrip("\n") + text[stop:]
    while start > 0 and text[start - 1] in " \t":
        start -= 1
    if not start or text[start - 1] == "\n":
        while end < len(text) and text[end] in " \t":
            end += 1
    return text[:start] + text[end:]


def _set_env(text: str, launch: Launch, term: Term, value: Value) -> str:
    """An environment variable: changed where it is assigned, else put before the command (or as `-e` of its container)."""
    name = term.spec["env"]
    shown = spoken(term, int(value) if isinstance(value, bool) else value) if value is not None else ""
    assigned = re.search(rf"(?m)(?<![\w.-]){re.escape(name)}=(\"[^\"\n]*\"|'[^'\n]*'|\S*)", text)
    if assigned:
        if value is None:
            start, end = assigned.span()
            line = text.rfind("\n", 0, start) + 1
            if re.fullmatch(r"\s*export\s+", text[line:start]):
                stop = text.find("\n", end)
                return text[:line] + (text[stop + 1 :] if stop >= 0 else "")
            if option := re.search(r"(?:-e|--env)[ =]$", text[:start]):
                start = option.start()
            return text[:start] + text[end:].lstrip(" ")
        return _put(text, assigned.start(1), assigned.end(1), quoted(shown))
    if value is None:
        return text
    if launch.container and launch.image is not None:
        return _put(text, launch.image.start, launch.image.start, f"-e {name}={quoted(shown)}{gap(text, launch.image.start)}")
    first = launch.args[0].start if launch.args else launch.end
    line = text.rfind("\n", 0, first) + 1
    while line > 1 and re.search(
        rf"(?:^|\s){re.escape(joiner(text))}[ \t]*\r?$", text[text.rfind("\n", 0, line - 1) + 1 : line - 1]
    ):
        line = text.rfind("\n", 0, line - 1) + 1
    indent = re.match(r"[ \t]*", text[line:])
    if re.match(r"\s*(?:exec|sudo|nohup)\b", text[line:]) or text[:line].count("\n") or text.startswith("#!"):
        return _put(text, line, line, f"{indent[0] if indent else ''}export {name}={quoted(shown)}\n")
    return _put(text, line, line, f"{name}={quoted(shown)} ")
