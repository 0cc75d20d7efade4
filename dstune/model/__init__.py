"""The types that every part speaks. Frozen; `to_json` and `from_json` are inverse. Imports nothing of ours."""

from __future__ import annotations

import types as _types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dstune.model.plan import Artifact, Plan, Trial, Verdict

Value = str | int | float | bool | list[Any] | None
Severity = Literal["error", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
Safety = Literal["live", "restart", "display"]
Kind = Literal["flag", "code", "install", "host", "model"]
Text = dict[str, str]
"""A text in each language: {"en": …, "zh": …}."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that was read.

    `subject` is a family of `facts.toml` or of an engine recipe, with a number where there are several (`gpu0`, `gpu1`;
    the first of an unnumbered family is bare: `app`, `app1`). `name` carries its unit (`_mib _pct _ms _w _c`).
    `source` says what was read; for a file it is the path, with `line` (1-based) and the `text` of that line.
    """

    subject: str
    name: str
    value: Value
    source: str = ""
    line: int | None = None
    text: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that could not be read, why, and how to get it. `name` may be `*` for a whole subject."""

    subject: str
    name: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A log (or file) line that matched a signature of a recipe.

    `part` counts the expressions of the way (texts in order, then absent ones); `kind` is the kind of text it was found in
    (`log`, `app`, `command`, `container`, `config`); `groups` the named groups of the expression, with sizes already in MiB.
    """

    cause: str
    way: int
    part: int
    kind: str
    source: str
    line: int
    text: str
    groups: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """A user's file or a paste, as text, with the kind it was recognised as (a key of `READERS`)."""

    path: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was read about one machine and its files."""

    facts: tuple[Fact, ...] = ()
    gaps: tuple[Gap, ...] = ()
    hits: tuple[Hit, ...] = ()
    origin: dict[str, Value] = field(default_factory=dict)

    def plus(self, facts: Iterable[Fact] = (), gaps: Iterable[Gap] = (), hits: Iterable[Hit] = ()) -> Evidence:
        """This evidence and more of it."""
        return Evidence((*self.facts, *facts), (*self.gaps, *gaps), (*self.hits, *hits), self.origin)

    def merged(self, other: Evidence) -> Evidence:
        """Both; the origin of the first wins."""
        return Evidence(
            self.facts + other.facts, self.gaps + other.gaps, self.hits + other.hits, {**other.origin, **self.origin}
        )

    def subjects(self, family: str) -> list[str]:
        """Subjects of a family in the order they appear: `gpu` → `gpu0`, `gpu1`."""
        return list(dict.fromkeys(f.subject for f in self.facts if family_of(f.subject) == family))

    def find(self, family: str, name: str) -> Iterator[Fact]:
        """Facts with this name, whatever the number of their subject."""
        return (f for f in self.facts if f.name == name and family_of(f.subject) == family)

    def first(self, family: str, name: str, default: Any = None) -> Any:
        """The value of the first such fact."""
        return next((f.value for f in self.find(family, name)), default)


def family_of(subject: str) -> str:
    """`gpu0` → `gpu`."""
    return subject.rstrip("0123456789")


@dataclass(frozen=True, slots=True)
class Way:
    """One way a cause shows itself.

    Text expressions per kind of file (each of a list must match somewhere), `absent` ones that must not, a condition over
    facts and `hit.<group>`, and a condition (`unless`) that refutes. `confidence` holds when all that is asked for is
    known; `doubt` is the confidence while `when` is unknown ("" = the way does not count then).
    """

    texts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    when: str = ""
    unless: str = ""
    confidence: Confidence = "high"
    doubt: Confidence | Literal[""] = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """One remedy of a rule, for the context in `when`.

    `set` maps a setting (`vllm.max_num_seqs`) to an expression over facts, `edit` names a code change of
    `readers.app_edit`, `run` is shown and never executed, `verify` is a condition over the evidence afterwards.
    """

    title: Text
    kind: Kind
    safety: Safety
    when: str = ""
    set: dict[str, str] = field(default_factory=dict)
    edit: str = ""
    run: str = ""
    verify: str = ""
    reason: Text = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    """Words behind a `#` in `run`, and the same in Chinese."""


@dataclass(frozen=True, slots=True)
class Example:
    """An input of a recipe's own test: texts by kind, facts by name; `expect` is `fires` or `quiet`."""

    expect: Literal["fires", "quiet"]
    facts: dict[str, Value] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause, as its recipe says it. `rank` breaks ties between roots: higher is nearer to the root; `over` names the fact that ends it."""

    cause: str
    title: Text
    severity: Severity
    why: Text
    message: Text
    ways: tuple[Way, ...]
    fixes: tuple[Fix, ...] = ()
    explains: tuple[str, ...] = ()
    consequence: bool = False
    rank: int = 0
    scope: str = ""
    needs: Text = field(default_factory=dict)
    verify: Text = field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    sources: tuple[str, ...] = ()
    since: str = "0.1.0"
    aliases: tuple[str, ...] = ()
    over: str = ""


@dataclass(frozen=True, slots=True)
class Cite:
    """The evidence of a finding: a line of a file, or a fact."""

    source: str
    line: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause that was found; `because` names the cause that explains it, so that it is no root."""

    cause: str
    subject: str
    severity: Severity
    confidence: Confidence
    message: str
    why: str
    evidence: tuple[Cite, ...]
    fixes: tuple[Fix, ...] = ()
    verify: str = ""
    because: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A cause that could be neither confirmed nor excluded, and what would decide it."""

    cause: str
    needs: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings (roots first, most probable first), what stayed open, and how many rules were quiet."""

    findings: tuple[Finding, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    quiet: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What a command has to say. The only thing that a format sees."""

    command: str
    version: str
    evidence: Evidence | None = None
    diagnosis: Diagnosis | None = None
    plan: Plan | None = None
    artifacts: tuple[Artifact, ...] = ()
    trials: tuple[Trial, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    behaviours: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


def to_json(value: Any) -> Any:
    """Plain dicts, lists and scalars of a value of these types."""
    if is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [to_json(v) for v in value]
    if isinstance(value, Mapping):
        return {k: to_json(v) for k, v in value.items()}
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def parse_json(text: str | bytes) -> Any:
    """A stranger's JSON. Raises `ValueError` also for nesting that no parser takes."""
    import json

    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def from_json(kind: Any, data: Any) -> Any:
    """The value of type `kind` out of its JSON. Unknown keys are ignored, absent ones take their default."""
    if is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return kind(**{f.name: from_json(hints[f.name], data[f.name]) for f in fields(kind) if f.name in data})
    if kind in (str, int) and not isinstance(data, kind):
        raise TypeError(f"{data!r:.40} is no {kind.__name__}")
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, _types.UnionType):
        if data is None:
            return None
        inner = next((a for a in args if is_dataclass(a)), None)
        if inner is None and (isinstance(data, dict) or (isinstance(data, str) and {*args} <= {int, float, bool, type(None)})):
            raise TypeError(f"{data!r:.40} is none of {kind}")
        return from_json(inner, data) if inner is not None else data
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(from_json(args[0], v) for v in data)
        return tuple(from_json(a, v) for a, v in zip(args, data, strict=True))
    if origin is dict:
        return {k: from_json(args[1], v) for k, v in data.items()}
    if origin is list:
        return list(data)
    return data
