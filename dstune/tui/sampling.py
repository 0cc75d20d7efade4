"""The one thread that samples: it asks the feed, diagnoses when something changed, and posts. The screen never waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dstune.errors import DstuneError
from dstune.lang import current
from dstune.model import Diagnosis, Evidence
from dstune.tui.feed import Feed

DIAGNOSE_EVERY = 5
"""Samples between two looks whether a diagnosis is due."""
DIAGNOSE_ANYWAY = 30
"""Samples after which it is made although the figures are the same to two digits: one may have crossed a threshold."""
_DIGITS = 2


class Sampler:
    """A daemon thread: a feed that hangs does not hold the terminal when the person leaves.

    `say` gets (evidence, diagnosis or None), a text about trouble, or None at the end of a recording.
    """

    def __init__(
        self,
        feed: Feed,
        diagnose: Callable[[Evidence], Diagnosis] | None,
        beside: Callable[[], Evidence],
        say: Callable[[object], None],
    ) -> None:
        self._feed, self._diagnose, self._beside, self._say = feed, diagnose, beside, say
        self._stopped, self._due = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._mark = 0

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Asks the thread to end; does not wait."""
        self._stopped.set()

    def again(self) -> None:
        """The next sample is diagnosed."""
        self._due.set()

    def _run(self) -> None:
        count = 0
        while not self._stopped.is_set():
            try:
                found = self._feed.sample()
            except Exception as error:  # shown on the screen, which lives on
                self._say(worded(error))
                if not self._feed.live and not hasattr(self._feed, "seek"):
                    return
                self._stopped.wait(2.0)
                continue
            if self._stopped.is_set():
                return
            if found is None:
                self._say(None)
                wait = getattr(self._feed, "wait_moved", None)
                if wait is None:
                    return
                wait()
                continue
            if count % DIAGNOSE_ANYWAY == DIAGNOSE_ANYWAY - 1:
                self._due.set()
            due = self._due.is_set() or not self._feed.live or count % DIAGNOSE_EVERY == 1
            self._say((found, self._judged(found) if due else None))
            count += 1

    def _judged(self, found: Evidence) -> Diagnosis | None:
        """The diagnosis, where what it would read has changed since the last one."""
        if self._diagnose is None:
            return None
        asked = self._due.is_set()
        self._due.clear()
        whole = found.merged(self._beside())
        mark = fingerprint(whole)
        if mark == self._mark and not asked:
            return None
        self._mark = mark
        try:
            return self._diagnose(whole)
        except Exception as error:  # a recipe or a reader that breaks must not end the samples
            self._say(worded(error))
            return None


def worded(error: Exception) -> str:
    """What a person reads of it: our own errors have words of their own."""
    if isinstance(error, DstuneError):
        return ": ".join(filter(None, (error.what, error.why)))
    return f"{type(error).__name__}: {error}"


def fingerprint(evidence: Evidence) -> int:
    """Facts with their numbers to two digits, and the language: a figure that only flickers asks for no new diagnosis."""
    facts = tuple(
        (f.subject, f.name, f"{v:.{_DIGITS}g}" if isinstance(v := f.value, int | float) and not isinstance(v, bool) else str(v))
        for f in evidence.facts
    )
    return hash((facts, len(evidence.gaps), evidence.hits and len(evidence.hits), current()))
