"""Errors a person may see: what happened, why, and what to type next."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    UNOBSERVABLE = 3
    BUG = 70
    INTERRUPTED = 130


class DstuneError(Exception):
    """A failure with its reason and its cure.

    `what` is one sentence without a final full stop, `why` its reason, `next` a command or an action.
    """

    code: Exit = Exit.USAGE

    def __init__(self, what: str, why: str = "", next: str = "", code: Exit | None = None) -> None:
        super().__init__(what)
        self.what, self.why, self.next = what, why, next
        if code is not None:
            self.code = code


class RecipeError(DstuneError):
    """A recipe is wrong; `what` names the file and the key."""


class UnobservableError(DstuneError):
    """The thing asked about could not be read at all."""

    code = Exit.UNOBSERVABLE


@contextmanager
def unwinding() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind as Ctrl-C does: their default would leave one of several files new and the others old. A second one is ignored."""
    import signal
    import threading

    numbers = [n for n in (signal.SIGTERM, getattr(signal, "SIGHUP", None)) if n is not None]

    def stop(number: int, frame: object) -> None:
        for n in numbers:
            signal.signal(n, signal.SIG_IGN)
        raise SystemExit(128 + number)

    main = threading.current_thread() is threading.main_thread()  # no other may set handlers
    before = {n: signal.signal(n, stop) for n in numbers if main and signal.getsignal(n) is signal.SIG_DFL}
    try:
        yield
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
