"""The log (lines for people on the console, JSON in a file that rotates) and the counters of /metrics. Never a word of a conversation."""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from chat.settings import Log, SettingsError

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120)
"""Upper bounds of the latency histograms in seconds."""


class Trace:
    """`trace("cache", "reused", tokens=812)` writes a line `[DYNAMIC_CACHE] reused tokens=812`; `trace.count` and `trace.observe` add up."""

    def __init__(self, settings: Log) -> None:
        self.log = logging.getLogger("chat")
        self.log.setLevel(settings.level)
        self.log.propagate = False
        for old in list(self.log.handlers):
            self.log.removeHandler(old)
        console = logging.StreamHandler(sys.stderr)
        console.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self.log.addHandler(console)
        if settings.file:
            try:
                Path(settings.file).parent.mkdir(parents=True, exist_ok=True)
                file = _File(settings.file, maxBytes=int(settings.max_mb * 1e6), backupCount=settings.keep, encoding="utf-8")
            except OSError as error:
                raise SettingsError(f"log.file: {settings.file} cannot be written: {error.strerror}") from None
            file.setFormatter(_Json())
            self.log.addHandler(file)
        self.lock = threading.Lock()
        self.counters: dict[str, float] = defaultdict(float)
        self.histograms: dict[str, list[float]] = {}

    def __call__(self, topic: str, event: str, level: int = logging.INFO, **values: Any) -> None:
        """One line. The topics are cache, model, queue, request and server."""
        if self.log.isEnabledFor(level):
            shown = " ".join(f"{k}={v}" for k, v in values.items())
            tag = "[DYNAMIC_CACHE] " if topic in ("cache", "model", "queue") else ""
            self.log.log(
                level, f"{tag}{topic} {event} {shown}".rstrip(), extra={"fields": {"topic": topic, "event": event, **values}}
            )

    def count(self, name: str, amount: float = 1) -> None:
        """Adds to a counter."""
        with self.lock:
            self.counters[name] += amount

    def observe(self, name: str, seconds: float) -> None:
        """Adds a duration to a histogram."""
        with self.lock:
            row = self.histograms.setdefault(name, [0.0] * (len(BUCKETS) + 2))
            for i, bound in enumerate(BUCKETS):
                row[i] += seconds <= bound
            row[-2] += 1
            row[-1] += seconds

    def prometheus(self, gauges: dict[str, float]) -> str:
        """All numbers in Prometheus' text form."""
        with self.lock:
            lines = [f"# TYPE chat_{n} gauge\nchat_{n} {number(v)}" for n, v in gauges.items()]
            lines += [f"# TYPE chat_{n}_total counter\nchat_{n}_total {number(v)}" for n, v in sorted(self.counters.items())]
            for name, row in sorted(self.histograms.items()):
                lines.append(f"# TYPE chat_{name}_seconds histogram")
                lines += [f'chat_{name}_seconds_bucket{{le="{b:g}"}} {number(row[i])}' for i, b in enumerate(BUCKETS)]
                lines += [
                    f'chat_{name}_seconds_bucket{{le="+Inf"}} {number(row[-2])}',
                    f"chat_{name}_seconds_count {number(row[-2])}",
                ]
                lines.append(f"chat_{name}_seconds_sum {number(row[-1])}")
        return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """A number in full: rounded to six digits, a counter past a million would stand still and then jump."""
    return f"{value:.15g}"


class _File(logging.handlers.RotatingFileHandler):
    """A file that rotates. A full disk is told once, not with a traceback for every line; the lines go on when there is room again."""

    lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line, or counts it as lost."""
        before = self.lost
        super().emit(record)
        if before and self.lost == before:
            self.lost = 0
            print(f"log.file: {self.baseFilename} is written again; {before} lines are lost", file=sys.stderr)

    def handleError(self, record: logging.LogRecord) -> None:
        """What could not be written."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            return super().handleError(record)
        if not self.lost:
            print(f"log.file: {self.baseFilename} cannot be written: {error.strerror}; the server goes on", file=sys.stderr)
        self.lost += 1
        return None


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        made = {
            "time": round(time.time(), 3),
            "level": record.levelname,
            **getattr(record, "fields", {"event": record.getMessage()}),
        }
        if record.exc_info:
            made["error"] = self.formatException(record.exc_info)
        return json.dumps(made, ensure_ascii=False)
