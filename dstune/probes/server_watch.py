"""A server's moving figures every two seconds: one kept connection and /metrics alone; all that it says of itself twice a minute."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

from dstune.lang import say
from dstune.model import Evidence, Fact, Gap
from dstune.probes.metrics import ENGINES, read_metrics
from dstune.probes.server import read_endpoint

EVERY_S = 2.0
WINDOW = 6
"""Readings between which rates and percentiles are taken: the last ten seconds."""
WHOLE_EVERY = 15
_PREFIXES = tuple(ENGINES.values())
_LIMIT = 8 << 20


class ServerWatch:
    """A thread per endpoint, so that a server that hangs holds up nobody; `latest()` never blocks."""

    def __init__(self, url: str, subject: str = "server") -> None:
        self.url, self.subject = url, subject
        self._found = Evidence()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="server-watch", daemon=True).start()

    def latest(self) -> Evidence:
        """What was read last."""
        return self._found

    def close(self) -> None:
        """Ends the thread after its current reading."""
        self._closed.set()

    def _run(self) -> None:
        reading = Reading(self.url, self.subject)
        while not self._closed.is_set():
            started = time.monotonic()
            try:
                self._found = reading.take()
            except Exception as error:  # what answers is no server of ours: said, and asked again
                self._found = Evidence(
                    (Fact(self.subject, "url", self.url, "--endpoint"),),
                    (Gap(self.subject, "*", f"{type(error).__name__}: {error}"),),
                )
            self._closed.wait(max(0.2, EVERY_S - (time.monotonic() - started)))


class Reading:
    """Readings of one endpoint, one after the other. `clock` is for tests."""

    def __init__(self, url: str, subject: str = "server", clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._subject, self._clock = url, subject, clock
        address = urlsplit(url if "://" in url else f"http://{url}")
        self._plain = address.scheme == "http" and (address.hostname or "").startswith(("127.", "localhost"))
        self._host, self._port = address.hostname or "", address.port or 80
        self._link: object = None
        self._count = 0
        self._whole = Evidence()
        self._metrics: tuple[Fact, ...] = ()
        self._texts: deque[tuple[float, str]] = deque(maxlen=WINDOW)

    def take(self) -> Evidence:
        """The next one: the whole description every `WHOLE_EVERY` times and after any trouble, else the metrics."""
        text = self._page() if self._count % WHOLE_EVERY and self._plain else None
        self._count += 1
        if text is None:
            self._whole = read_endpoint(self._url, subject=self._subject, timeout_s=1.5)
            if not self._up():
                self._count = 0
                self._texts.clear()
                self._metrics = ()
                return self._whole
            text = self._page() if self._plain else None
            if text is None:
                self._count = 0  # no metrics here, or not over this kind of connection: the whole is all there is
                return self._whole
        self._take(text)
        told = {f.name for f in self._metrics}
        return Evidence((*self._metrics, *(f for f in self._whole.facts if f.name not in told)), self._whole.gaps)

    def _up(self) -> bool:
        return self._whole.first("server", "reachable") is True

    def _take(self, text: str) -> None:
        """Facts of the window; unchanged figures are not read again."""
        now = self._clock()
        same = bool(self._texts) and self._texts[-1][1] == text
        first = self._texts[0] if self._texts else None
        self._texts.append((now, text))
        if first is None:
            self._metrics = tuple(read_metrics(text, f"GET {self._url}/metrics", self._subject))
        elif not same or first[1] != text or not self._metrics:
            seconds = now - first[0]
            found = read_metrics(text, f"GET {self._url}/metrics", self._subject, first[1], seconds)
            since = {
                f.name: f
                for f in read_metrics(text, f"GET {self._url}/metrics", self._subject)
                if f.name.endswith(("_ms", "_pct"))
            }
            told = {f.name for f in found}
            # a window without a request has no latencies: those since the start stand in
            self._metrics = (
                *found,
                *(f for n, f in since.items() if n not in told),
                Fact(self._subject, "window_s", round(seconds, 1), "dstune"),
            )

    def _page(self) -> str | None:
        """The engine's lines of /metrics, None where it does not answer with them."""
        import http.client

        for _ in range(2):
            link = self._link if isinstance(self._link, http.client.HTTPConnection) else None
            fresh = link is None
            link = link or http.client.HTTPConnection(self._host, self._port, timeout=1.5)
            try:
                link.request("GET", "/metrics")
                answer = link.getresponse()
                body = answer.read(_LIMIT).decode("utf-8", "replace")
                self._link = link
                if answer.status != 200 or not answer.isclosed():
                    link.close()
                    self._link = None
                if answer.status != 200:
                    return None
                lines = [line for line in body.splitlines() if line.startswith(_PREFIXES)]
                return "\n".join(lines) if lines else None
            except (OSError, http.client.HTTPException):
                link.close()
                self._link = None
                if fresh:
                    return None
        return None


def unreachable(url: str, subject: str) -> Evidence:
    """What is said of an endpoint before its first answer."""
    return Evidence((Fact(subject, "url", url, "--endpoint"),), (Gap(subject, "*", say("not asked yet", "尚未询问")),))
