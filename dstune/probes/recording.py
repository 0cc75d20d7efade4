"""Our own files, evidence and reports, whole or not at all: a reader never sees half of one."""

from __future__ import annotations

import json
import os
import tempfile

from dstune.model import Evidence, to_json


def save(path: str, evidence: Evidence) -> None:
    """Writes the evidence as JSON. Raises `OSError` where the folder cannot be written."""
    write(path, json.dumps(to_json(evidence), ensure_ascii=False, indent=1) + "\n")


def write(path: str, text: str) -> None:
    """Writes one of our own files: beside it first, then renamed. A link stays a link; a device or pipe (/dev/null, /dev/stdout) is
    written to, as renaming would put a file in its place. Raises `OSError` that names `path`."""
    try:
        _write(path, text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _write(path: str, text: str) -> None:
    path = os.path.realpath(path) if os.path.isfile(path) else path
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".dstune-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
