"""Checks the flags of a `vllm serve` command against the argument parser of a vLLM version, without vLLM.

The parsers of four versions are data (`recipes/flags/`, made by scripts/vllm_flags.py). A version between two of them is judged by the
older one for what exists already and by the newer one for what exists no longer: only what both say is said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from dstune.catalog import load
from dstune.expr import Version

Fault = Literal["removed", "too new", "unknown", "value", "choice", "no value"]
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BOOL = frozenset(("true", "false", "1", "0", "yes", "no"))


@dataclass(frozen=True, slots=True)
class Problem:
    """A flag that the version does not take as it stands. `instead` is what replaces it or the nearest name ("" = nothing)."""

    flag: str
    fault: Fault
    detail: str = ""
    instead: str = ""
    word: int = 0


@cache
def tables() -> dict[str, dict[str, dict[str, Any]]]:
    """Flags by version, oldest first: `{"0.6.6.post1": {"max-model-len": {type, also, choices, nargs, default}}}`."""
    found = {t["version"]: t["flags"] for t in load("flags").values()}
    return dict(sorted(found.items(), key=lambda item: Version(item[0]).parts))


@cache
def _names(version: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every spelling of every flag of a version → (canonical name, its row)."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, row in tables()[version].items():
        for spelling in (f"--{name}", *row.get("also", ())):
            found[spelling] = (name, row)
        if row["type"] == "onoff":
            found[f"--no-{name}"] = (name, row)
        if name == "optimization-level":
            found.setdefault("-O", (name, row))  # vLLM's parser rewrites -O2 and -O 2 before argparse sees them
    return found


def replaced_by(name: str) -> str | None:
    """What stands for a flag that went ("" = drop it), or None where nothing is known."""
    known: dict[str, str] = load("engines")["vllm"]["engine"]["replaced"]
    return known.get(name)


def around(version: object) -> tuple[str | None, str | None]:
    """The newest known version not above `version` and the oldest not below it."""
    wanted = Version(version)
    lower = [v for v in tables() if Version(v) <= wanted]
    upper = [v for v in tables() if Version(v) >= wanted]
    return (lower[-1] if lower else None), (upper[0] if upper else None)


def since(name: str) -> str:
    """The first known version that has the flag ("" = none has it)."""
    return next((v for v in tables() if _has(v, name)), "")


def missing(name: str) -> str:
    """The last known version before the flag came ("" = the oldest has it, or none has it)."""
    order = list(tables())
    first = since(name)
    return order[order.index(first) - 1] if first and order.index(first) else ""


def gone(name: str) -> str:
    """The first known version from which on the flag is missing ("" = the newest still has it, or none ever had it)."""
    having = [v for v in tables() if _has(v, name)]
    if not having:
        return ""
    later = list(tables())[list(tables()).index(having[-1]) + 1 :]
    return later[0] if later else ""


def _has(version: str, name: str) -> bool:
    return name in tables()[version] or f"--{name}" in _names(version)


def spelled(word: str) -> tuple[str, str | None]:
    """A word of the command line as (flag, value behind =), underscores made dashes and dotted JSON keys cut off as vLLM does."""
    flag, mark, value = word.partition("=")
    if flag.startswith("--"):
        flag = "--" + flag[2:].replace("_", "-")
    head = flag.split(".", 1)[0] if "." in flag else flag
    if re.fullmatch(r"-O\d", head):
        return "-O", head[2:]
    return head, (value if mark or head != flag else None)


def check(words: Sequence[str], version: object | None = None) -> list[Problem]:
    """Problems of the arguments behind `vllm serve`. Without a version the newest known parser judges.

    Values with placeholders or shell variables (`<model>`, `$LEN`) are not judged.
    """
    lower, upper = around(version) if version is not None else (list(tables())[-1],) * 2
    judges = [v for v in dict.fromkeys((lower, upper)) if v]
    problems: list[Problem] = []
    position = 0
    while position < len(words):
        word = words[position]
        here = position
        position += 1
        if not re.match(r"--?[A-Za-z]", word):
            continue
        flag, value = spelled(word)
        rows = [_names(v)[flag][1] for v in judges if flag in _names(v)]
        if not rows:
            if (problem := _missing(flag, version, here)) is not None:
                problems.append(problem)
            if value is None and position < len(words) and not words[position].startswith("-"):
                position += 1
            continue
        row = rows[0]
        if row["type"] in ("none", "onoff") or "." in word.partition("=")[0]:
            continue
        if value is None:
            values, position = _values(words, position, row)
        else:
            values = [value]
        if not values and row.get("nargs") not in ("?", "*") and flag != "-O":
            problems.append(Problem(flag, "no value", word=here))
        for each in values:
            faults = [_wrong(each, r) for r in rows]
            if all(faults) and faults[0]:
                problems.append(Problem(flag, faults[0][0], faults[0][1], word=here))
    return problems


def _values(words: Sequence[str], position: int, row: dict[str, Any]) -> tuple[list[str], int]:
    many = row.get("nargs") in ("+", "*")
    taken: list[str] = []
    while position < len(words) and (many or not taken):
        word = words[position]
        if word.startswith("-") and not re.fullmatch(r"-\d[\d.]*", word):
            break
        taken.append(word)
        position += 1
    return taken, position


def _missing(flag: str, version: object | None, word: int) -> Problem | None:
    name = flag.lstrip("-").removeprefix("no-") if flag.startswith("--no-") else flag.lstrip("-")
    every = [v for v in tables() if flag in _names(v) or _has(v, name)]
    if every and version is not None and Version(every[0]) > Version(version):
        surely = Version(version) <= Version(missing(name) or "0")
        return Problem(flag, "too new", every[0], word=word) if surely else None
    if every:
        return Problem(flag, "removed", gone(name) or every[-1], replaced_by(name) or "", word)
    if flag.startswith("--"):
        newest = _names(list(tables())[-1])
        if sum(1 for known in newest if known.startswith(flag)) == 1:
            return None  # an unambiguous abbreviation, which argparse takes
    import difflib

    close = difflib.get_close_matches(flag, [n for v in tables() for n in _names(v)], 1, 0.75)
    return Problem(flag, "unknown", "", close[0] if close else "", word)


def _wrong(value: str, row: dict[str, Any]) -> tuple[Fault, str] | None:
    if not value or re.search(r"[$<>{}]|\.\.\.|…", value):
        return None
    kind = row["type"]
    if (choices := row.get("choices")) and value not in choices:
        return "choice", ", ".join(choices)
    if kind == "int" and not re.fullmatch(r"[-+]?\d+(_\d+)*", value):
        return "value", "a whole number"
    if kind == "float" and not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|inf|nan", value):
        return "value", "a number"
    if kind in ("human", "human_auto") and not (_HUMAN.fullmatch(value) or (kind == "human_auto" and value in ("auto", "-1"))):
        return "value", "a whole number, or one like 8k"
    if kind == "bool" and value.lower() not in _BOOL:
        return "value", "true or false"
    return None


def human(value: str) -> int | None:
    """`8k` → 8000, `8K` → 8192, `4096` → 4096, as vLLM reads them; None for what it refuses."""
    found = _HUMAN.fullmatch(value.strip())
    return int(float(found[1]) * _SCALE[found[2]]) if found and len(found[1]) < 20 else None
