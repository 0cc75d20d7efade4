"""Reads `recipes/`: the only place that knows where they lie. Parsed folders are cached, keyed by every file's size and time."""

from __future__ import annotations

import marshal
import os
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from dstune import __version__
from dstune.errors import RecipeError


@cache
def root() -> Path:
    """The recipes: packed beside this package, else the folder of the working copy."""
    packed = Path(__file__).parent.parent / "recipes"
    return packed if packed.is_dir() else Path(__file__).parents[2] / "recipes"


def parse_toml(path: Path) -> dict[str, Any]:
    """One recipe file. Raises `RecipeError` with the file's name."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path.name} is not readable TOML", str(error), "correct the file") from None


def load(*names: str) -> dict[str, dict[str, Any]]:
    """Parsed TOML of a file (`facts.toml`) or a folder (`symptoms`) below the recipes, by file stem."""
    files = listed(*names)
    found: dict[str, dict[str, Any]] = compiled(
        "-".join(names), files, lambda: {(path := Path(f)).stem: parse_toml(path) for f in files}
    )
    return found


def listed(*names: str) -> list[str]:
    """The recipes of a folder (or the one file) below the recipes, as paths."""
    where = os.path.join(root(), *names)
    if not os.path.isdir(where):
        return [where]
    return sorted(os.path.join(where, f) for f in os.listdir(where) if f.endswith(".toml"))


def compiled(name: str, files: list[str], build: Callable[[], Any]) -> Any:
    """`build()`, kept in the user's cache until one of `files` (or the catalog's code, dstune, or Python) changes.

    Parsing the symptoms costs over a second of CPU, the cache some milliseconds. Values must be plain (dict, list, str, numbers). A cache
    that cannot be read or written is no error.
    """
    stamp = f"{__version__} {sys.version} {name}\n"
    for f in (*files, *_code()):
        info = os.stat(f)
        stamp += f"{f}:{info.st_size}:{info.st_mtime_ns}\n"
    of = stamp.encode("utf-8", "surrogateescape")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    kept = os.path.join(base, "dstune", f"{name}-{zlib.crc32(of):08x}{zlib.adler32(of):08x}.bin")
    try:
        with open(kept, "rb") as cached:
            if os.fstat(cached.fileno()).st_uid in (os.getuid(), 0):  # marshal trusts its input: read only what is ours
                check, data = cached.read(4), cached.read()
                # marshal takes almost any bytes for something; the whole stamp stands in front, since two may share a file's name
                if check == zlib.crc32(data).to_bytes(4, "big") and data.startswith(of):
                    return marshal.loads(memoryview(data)[len(of) :])
    except (OSError, ValueError, EOFError, TypeError):
        pass
    value = build()
    try:
        import tempfile  # 5 ms

        os.makedirs(os.path.dirname(kept), exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(kept))
        with os.fdopen(handle, "wb") as fresh:
            data = of + marshal.dumps(value)
            fresh.write(zlib.crc32(data).to_bytes(4, "big") + data)
        os.replace(temporary, kept)
        _forget_older(kept, name)
    except OSError:
        pass
    return value


@cache
def _code() -> tuple[str, ...]:
    """The modules that say how recipes are read."""
    here = os.path.dirname(__file__)
    return tuple(sorted(os.path.join(here, f) for f in os.listdir(here) if f.endswith(".py")))


def _forget_older(kept: str, name: str) -> None:
    """Drops the caches that older recipes left (keeps the three newest of this name)."""
    folder = os.path.dirname(kept)
    mine = [os.path.join(folder, f) for f in os.listdir(folder) if f.startswith(f"{name}-") and f.endswith(".bin")]
    mine = [f for f in mine if len(os.path.basename(f)) == len(os.path.basename(kept))]
    for old in sorted(mine, key=os.path.getmtime)[:-3]:
        os.unlink(old)
