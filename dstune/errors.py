"""Errors a person may see: what happened, why, and what to type next."""

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
