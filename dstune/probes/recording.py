"""Evidence into a file, whole or not at all: a reader never sees half of one."""

from __future__ import annotations

import json
import os
import tempfile

from dstune.model import Evidence, to_json


def save(path: str, evidence: Evidence) -> None:
    """Writes the evidence as JSON. Raises `OSError` where the folder cannot be written."""
    folder = os.path.dirname(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".dstune-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            json.dump(to_json(evidence), f, ensure_ascii=False, indent=1)
            f.write("\n")
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
