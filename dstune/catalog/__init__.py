"""Reads `recipes/`: the only place that knows where they lie. Parsed folders are cached, keyed by every file's size and time."""

from __future__ import annotations

import hashlib
import marshal
import os
import sys
import tempfile
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
    where = root().joinpath(*names)
    files = sorted(where.glob("*.toml")) if where.is_dir() else [where]
    found: dict[str, dict[str, Any]] = compiled("-".join(names), files, lambda: {f.stem: parse_toml(f) for f in files})
    return found


def compiled(name: str, files: list[Path], build: Callable[[], Any]) -> Any:
    """`build()`, kept in the user's cache until one of `files` (or dstune, or Python) changes.

    Parsing the symptoms costs over 60 ms of CPU, the cache 3. Values must be plain (dict, list, str, numbers). A cache that cannot
    be read or written is no error.
    """
    stamp = hashlib.sha256(f"{__version__} {sys.version} {name}".encode())
    for f in files:
        info = f.stat()
        stamp.update(f"{f}:{info.st_size}:{info.st_mtime_ns}\n".encode())
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    kept = os.path.join(base, "dstune", f"{name}-{stamp.hexdigest()[:16]}.bin")
    try:
        with open(kept, "rb") as cached:
            if os.fstat(cached.fileno()).st_uid in (os.getuid(), 0):  # marshal trusts its input: read only what is ours
                check, data = cached.read(4), cached.read()
                if check == zlib.crc32(data).to_bytes(4, "big"):  # marshal takes almost any bytes for something
                    return marshal.loads(data)
    except (OSError, ValueError, EOFError, TypeError):
        pass
    value = build()
    try:
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(kept))
        with os.fdopen(handle, "wb") as fresh:
            data = marshal.dumps(value)
            fresh.write(zlib.crc32(data).to_bytes(4, "big") + data)
        os.replace(temporary, kept)
        _forget_older(kept, name)
    except OSError:
        pass
    return value


def _forget_older(kept: str, name: str) -> None:
    """Drops the caches that older recipes left (keeps the three newest of this name)."""
    folder = os.path.dirname(kept)
    mine = [os.path.join(folder, f) for f in os.listdir(folder) if f.startswith(f"{name}-") and f.endswith(".bin")]
    mine = [f for f in mine if len(os.path.basename(f)) == len(os.path.basename(kept))]
    for old in sorted(mine, key=os.path.getmtime)[:-3]:
        os.unlink(old)
