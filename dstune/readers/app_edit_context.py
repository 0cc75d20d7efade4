"""What a code edit may know. Without LibCST, so that it costs nothing where no program is edited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dstune.model import Value


@dataclass(frozen=True, slots=True)
class Context:
    """What an edit may know: library versions, the settings of the fix, and the evidence (lines of the file, texts of the log)."""

    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=dict)
    lines: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
