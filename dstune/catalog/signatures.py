"""All text signatures of the recipes as one table: a literal that every match must contain, then the full expression.

Finding literals needs `re._parser`, which costs 150 ms for a thousand expressions: hence built once and cached.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from dstune.catalog import compiled, load, root
from dstune.catalog.rules import parts, rule_of
from dstune.errors import RecipeError

MIN_LITERAL = 4
_NEGATED = re.compile(r"\[\^(?:\\.|[^\]\\])*\]")


@dataclass(frozen=True, slots=True)
class Signature:
    """An expression of a rule's way, or of a log fact (`cause` "" and `way` its row).

    `kind` is the kind of text it looks in; `literals`: one of them is in every match.
    """

    cause: str
    way: int
    part: int
    kind: str
    pattern: str
    literals: tuple[str, ...]

    @property
    def multiline(self) -> bool:
        """Whether the expression reaches over line ends (`[^\\n]` does not)."""
        plain = _NEGATED.sub("", self.pattern)
        return r"\n" in plain or r"\s\S" in plain or "(?s" in plain


@cache
def signatures() -> tuple[Signature, ...]:
    """Every signature of every recipe, in recipe order."""
    files = sorted(root().joinpath("symptoms").glob("*.toml")) + sorted(root().joinpath("log_facts").glob("*.toml"))
    return tuple(Signature(c, w, p, k, t, tuple(fixed)) for c, w, p, k, t, fixed in compiled("signatures", files, _build))


@cache
def log_facts() -> tuple[dict[str, Any], ...]:
    """Rows of `log_facts/*.toml`: `log` (expression), `set` ({family.name: group}), `keep` (first, last, max or all)."""
    return tuple(row for table in load("log_facts").values() for row in table.get("fact", ()))


def _build() -> list[list[Any]]:
    rows: list[list[Any]] = []
    for cause, table in load("symptoms").items():
        for number, way in enumerate(rule_of(cause, table).ways):
            for part, (kind, pattern) in enumerate(parts(way)):
                rows.append([cause, number, part, kind, pattern, literals(pattern, f"symptoms/{cause}.toml")])
    for number, row in enumerate(log_facts()):
        rows.append(["", number, 0, "log", row["log"], literals(row["log"], "log_facts")])
    return rows


def literals(pattern: str, where: str) -> list[str]:
    """Texts of which one is in every match of the expression. Raises `RecipeError` where there is none of 4 letters."""
    try:
        tree = re._parser.parse(pattern)  # type: ignore[attr-defined]
    except re.error as error:
        raise RecipeError(f"{where}: expression {pattern!r} is wrong", str(error)) from None
    found = _best(tree, bool(tree.state.flags & re.IGNORECASE))
    if not found or min(len(t.strip()) for t in found) < MIN_LITERAL:
        raise RecipeError(
            f"{where}: expression {pattern!r} has no fixed text of {MIN_LITERAL} letters",
            "one pass over the file looks for fixed texts first",
            "write letters whose case varies as [Oo] and keep a fixed word",
        )
    return found


def _best(tree: Any, caseless: bool) -> list[str]:
    """Alternatives of the longest fixed text of a sequence."""
    candidates: list[list[str]] = []
    run = ""
    for op, value in [*tree, (None, None)]:
        name = str(op)
        if name == "LITERAL" and not caseless:
            run += chr(value)
            continue
        if run:
            candidates.append([run])
            run = ""
        if name == "SUBPATTERN":
            _, add, _, inner = value
            candidates.append(_best(inner, caseless or bool(add & re.IGNORECASE)))
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and value[0] >= 1:
            candidates.append(_best(value[2], caseless))
        elif name == "BRANCH":
            branches = [_best(b, caseless) for b in value[1]]
            if all(branches):
                candidates.append([text for b in branches for text in b])
    candidates = [c for c in candidates if c]
    return max(candidates, key=lambda c: (min(map(len, c)), -len(c)), default=[])
