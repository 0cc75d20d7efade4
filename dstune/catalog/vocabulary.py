"""The closed vocabulary: every fact name (`facts.toml`) and every setting (`engines/*.toml`) with its type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dstune.catalog import load
from dstune.errors import RecipeError
from dstune.expr import Version
from dstune.model import Fact, Gap, Text, Value, family_of

TYPES = ("number", "text", "bool", "version", "list")


@dataclass(frozen=True, slots=True)
class Term:
    """A name of the vocabulary. `engine` is set for a setting; `spec` holds where the setting lives (flag, keyword, env, yaml)."""

    name: str
    type: str
    meaning: Text
    engine: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)


@cache
def terms() -> dict[str, Term]:
    """All names, `family.name` → Term. Raises `RecipeError` for a wrong type or a name declared twice."""
    found: dict[str, Term] = {}
    sources = [("", "facts.toml", load("facts.toml").get("facts", {}))]
    sources += [(engine, f"engines/{engine}.toml", table) for engine, table in load("engines").items()]
    for engine, file, families in sources:
        for family, entries in families.items():
            if family == "engine":
                continue
            for name, spec in entries.items():
                full = f"{family}.{name}"
                if not isinstance(spec, dict) or spec.get("type") not in TYPES:
                    raise RecipeError(f"{file}: {full} has no type", f"one of {', '.join(TYPES)}")
                if full in found:
                    raise RecipeError(f"{file}: {full} is declared twice", "a name has one meaning")
                found[full] = Term(full, spec["type"], {"en": spec.get("en", ""), "zh": spec.get("zh", "")}, engine, spec)
    return found


def settings(engine: str) -> dict[str, Term]:
    """The settings that an engine's recipe declares."""
    return {name: term for name, term in terms().items() if term.engine == engine}


_SIZE = re.compile(r"([\d.,]+)\s*([KMGT]?)(i?)(?:[Bb](?:ytes?)?)?\b")
_NUMBER = re.compile(r"[-+]?\d[\d,_]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_MOST = 1e18
"""Greater numbers, infinity and NaN are read as nothing: no quantity here comes near, and JSON has no word for the last two."""
_POWER = {"K": 1, "M": 2, "G": 3, "T": 4}
_TRUE = frozenset(("true", "yes", "on", "1", "y", "installed", "present", "ok", "enabled", "是", "有"))
_FALSE = frozenset(
    ("false", "no", "off", "0", "n", "missing", "absent", "none", "not installed", "disabled", "否", "无", "没有")
)


def to_mib(text: str) -> float | None:
    """MiB of a size as programs print it ("14.50 GiB", "8110MiB", "24 GB", "512"); a bare number is MiB already.

    GB is read as 1024 MiB as GPU tools and the allocator mean it; `KB`, `MB` alike.
    """
    found = _SIZE.search(text)
    if not found:
        return None
    digits = found[1].replace(",", "").rstrip(".") or "0"
    if digits.count(".") > 1:  # a damaged line: ".5.49"
        return None
    number = float(digits)
    if not found[2]:
        return number / 2**20 if re.search(r"[Bb]ytes?\b|\d\s*B\b", text) else number
    return number * 1024.0 ** (_POWER[found[2]] - 2)


def to_number(text: str) -> float | int | None:
    """The first number of a text, thousands separators dropped."""
    found = _NUMBER.search(text)
    if not found:
        return None
    digits = found.group().replace(",", "").replace("_", "")
    value = float(digits)
    return int(value) if value.is_integer() and "." not in digits and "e" not in digits.lower() else value


def normalise(name: str, value: Value) -> Value:
    """A value as the vocabulary types it; prose is read ("460.56 loaded" → "460.56"). None where it cannot be."""
    term = terms().get(name)
    if term is None or value is None:
        return value
    if term.type == "bool":
        if isinstance(value, bool | int | float):
            return bool(value)
        word = str(value).strip().casefold()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        if re.match(r"(not|no|missing|without|absent)\b", word):
            return False
        return True if re.match(r"(yes|installed|present|enabled|\d)", word) else None
    if term.type == "number":
        if isinstance(value, bool):
            return int(value)
        if not isinstance(value, int | float):
            text = str(value)
            size = to_mib(text) if name.endswith("_mib") else None
            value = to_number(text) if size is None else size
        return value if isinstance(value, int | float) and abs(value) < _MOST else None
    if term.type == "version":
        return str(value) if Version(value).parts else None
    if term.type == "list":
        return value if isinstance(value, list) else [v.strip() for v in str(value).split(",")]
    if isinstance(value, list):
        return ", ".join(str(v) for v in value)
    return value if isinstance(value, str) else str(value)


def typed(name: str, value: Value) -> Any:
    """A value as conditions compare it: versions wrapped, cut to the `parts` that count (an image's CUDA 13.0.2 is 13.0)."""
    term = terms().get(name)
    if term is None or term.type != "version" or value is None:
        return value
    parts = term.spec.get("parts")
    return Version(".".join(map(str, Version(value).parts[:parts]))) if parts else Version(value)


def said(facts: Mapping[str, Value], source: str = "--facts") -> list[Fact | Gap]:
    """Facts of a person's flat JSON (`{"gpu.name": "Tesla T4"}`); what is unknown or unreadable becomes a Gap.

    `gpu.name` without an index means each card: subject `gpu0`, as one card stands for all.
    """
    found: list[Fact | Gap] = []
    for full, value in facts.items():
        subject, _, name = full.partition(".")
        family = family_of(subject)
        if f"{family}.{name}" not in terms():
            found.append(Gap(family, name, f"{full} is not in the vocabulary", "dstune explain --facts lists the names"))
            continue
        read = normalise(f"{family}.{name}", value)
        if read is None:
            found.append(Gap(family, name, f"{value!r} could not be read as {terms()[f'{family}.{name}'].type}"))
            continue
        found.append(Fact("gpu0" if subject == "gpu" else subject, name, read, source, None, f"{full} = {value}"))
    return found
