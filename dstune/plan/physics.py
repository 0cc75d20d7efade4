"""The coefficients of `recipes/engines/physics/`: each a number with its source, some of them by engine version."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from dstune.catalog import load
from dstune.errors import RecipeError


@cache
def _all() -> dict[str, dict[str, Any]]:
    return load("engines", "physics")


def table(engine: str) -> dict[str, Any]:
    """The physics of an engine (`llama.cpp` is stored as `llamacpp`)."""
    return _all()[engine.replace(".", "")]


def entry(engine: str, name: str, version: str = "") -> dict[str, Any]:
    """The entry `name` of an engine's physics; of a list by version, the last whose `since` is not newer than `version`."""
    try:
        found = table(engine)[name]
    except KeyError:
        raise RecipeError(f"engines/physics/{engine}.toml has no {name}") from None
    if isinstance(found, dict):
        return found
    at = release(engine, version)
    holds: dict[str, Any] = found[0]
    for row in found:
        if numbers(row["since"]) <= at:
            holds = row
    return holds


def value(engine: str, name: str, version: str = "") -> Any:
    """The number (or word) of `entry`."""
    return entry(engine, name, version)["value"]


def source(engine: str, name: str, version: str = "") -> str:
    """Where the number of `entry` comes from."""
    return str(entry(engine, name, version).get("source", ""))


@lru_cache(maxsize=1024)
def numbers(text: str) -> tuple[int, ...]:
    """`0.6.6.post1` → (0, 6, 6); `0.2.x` → (0, 2)."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    return tuple(int(n) for n in found[1].split(".")) if found else ()


@lru_cache(maxsize=1024)
def release(engine: str, version: str) -> tuple[int, ...]:
    """A version as numbers. A year (`2024-05 (RunPod)`) stands for a release of that year; nothing stands for the latest."""
    text = version.strip().lower()
    rows = table(engine).get("version", {})
    if re.match(r"20\d\d", text):
        return numbers(rows.get("by_year", {}).get(text[:4], rows.get("latest", "999")))
    if re.match(r"b\d{4}", text):  # llama.cpp build numbers
        return (int(text[1:5]),)
    found = numbers(text)
    if not found:
        return numbers(rows.get("latest", "999"))
    if "x" in text and re.match(r"\d+\.\d+x", text):  # 0.1x: some release of 0.10 to 0.19
        return (found[0], found[1] * 10)
    return found
