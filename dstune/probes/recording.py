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
    """Writes one of our own files: beside it first, then renamed. Raises `OSError`."""
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
