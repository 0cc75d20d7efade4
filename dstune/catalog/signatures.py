"""All text signatures of the recipes as one table: an expression, and the fixed texts that its matches hold.

Finding those needs `re._parser`, which costs over 150 ms for a thousand expressions: hence built once and cached.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from dstune.catalog import compiled, listed, load, root
from dstune.catalog.rules import parts, rule_of
from dstune.errors import RecipeError

MIN_LITERAL = 4
ZERO = str.maketrans("123456789", "000000000")
"""Every digit a zero: how `common_log.txt` is written."""
_RUNS = 24
"""Texts up to which a run of choices (`[Oo]ut`, `tokens?`) is written out."""
_CHOICES = 8
"""Texts of which one must be in the line too, at most."""
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")

Also = tuple[tuple[str, ...], ...]
"""Of each of these one is in the match too."""
Literals = tuple[tuple[str, Also], ...]
Fixed = tuple[tuple[bytes, tuple[tuple[bytes, ...], ...]], ...]
"""The same as bytes."""
Owners = list[tuple[int, tuple[tuple[bytes, ...], ...]]]
"""Rows of a fixed text, each with sets of texts of which one must be in the line too."""
_Group = list[tuple[str, frozenset[tuple[str, ...]]]]


@dataclass(frozen=True, slots=True)
class Signature:
    """An expression of a rule's way, or of a log fact (`cause` "" and `way` its row).

    `kind` is the kind of text it looks in; `literals`: one of the texts is in every match, with others that are there then too.
    `multiline`: it reaches over line ends.
    """

    cause: str
    way: int
    part: int
    kind: str
    pattern: str
    literals: Literals
    multiline: bool


@cache
def signatures() -> tuple[Signature, ...]:
    """Every signature of every recipe, in recipe order."""
    return tuple(Signature(*row) for row in compiled("signature-words", _files(), _build))


def _files() -> list[str]:
    return [*listed("symptoms"), *listed("log_facts"), str(root() / "common_log.txt")]


class Rows(Sequence[Signature]):
    """The signatures of one kind of text, each made when it is first asked for: most files meet some hundred of 3,500."""

    def __init__(self, packed: list[bytes]) -> None:
        self._packed = packed
        self._made: list[Signature | None] = [None] * len(packed)

    def __getitem__(self, number: Any) -> Any:
        made = self._made[number]
        if made is None:
            made = self._made[number] = Signature(*marshal.loads(self._packed[number]))
        return made

    def __len__(self) -> int:
        return len(self._packed)


def rows_of(kind: str) -> tuple[Rows, list[bytes], list[bytes]]:
    """The signatures that look in a kind of text, their fixed texts, and of each text its `Owners`, marshalled."""

    def build() -> tuple[list[bytes], list[bytes], list[bytes]]:
        rows = [s for s in signatures() if s.kind in (kind, "any")]
        texts = by_text((number, as_bytes(seen_on_its_line(s))) for number, s in enumerate(rows))
        packed = [marshal.dumps((s.cause, s.way, s.part, s.kind, s.pattern, s.literals, s.multiline)) for s in rows]
        return packed, list(texts), [marshal.dumps(owners) for owners in texts.values()]

    packed, texts, owners = compiled(f"signatures-{kind}", _files(), build)
    return Rows(packed), texts, owners


def by_text(rows: Iterable[tuple[int, Fixed]]) -> dict[bytes, Owners]:
    """The fixed texts of rows, each with its owners."""
    found: dict[bytes, Owners] = {}
    for row, texts in rows:
        for text, also in texts:
            found.setdefault(text, []).append((row, also))
    return found


def as_bytes(texts: Literals) -> Fixed:
    """The texts as bytes."""
    return tuple((_bytes(text), tuple(tuple(map(_bytes, any_of)) for any_of in also)) for text, also in texts)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def seen_on_its_line(row: Signature) -> Literals:
    """The fixed texts of a row; where it reaches over line ends, what else must be there may be on another line."""
    return tuple((text, ()) for text, _ in row.literals) if row.multiline else row.literals


@cache
def log_facts() -> tuple[dict[str, Any], ...]:
    """Rows of `log_facts/*.toml`: `log` (expression), `set` ({family.name: group}), `keep` (first, last, max or all)."""
    return tuple(row for table in load("log_facts").values() for row in table.get("fact", ()))


def signature(cause: str, way: int, part: int, kind: str, pattern: str, where: str = "", common: str = "") -> Signature:
    """The row of an expression. `common`: lines of healthy servers, digits zero. Raises `RecipeError` as `literals` does."""
    return Signature(cause, way, part, kind, pattern, literals(pattern, where, common), _over_lines(parsed(pattern, where)))


def _build() -> list[tuple[Any, ...]]:
    common = (root() / "common_log.txt").read_text(encoding="utf-8")
    rows: list[Signature] = []
    for cause, table in load("symptoms").items():
        for number, way in enumerate(rule_of(cause, table).ways):
            for part, (kind, pattern) in enumerate(parts(way)):
                rows.append(signature(cause, number, part, kind, pattern, f"symptoms/{cause}.toml", common))
    for number, row in enumerate(log_facts()):
        rows.append(signature("", number, 0, "log", row["log"], "log_facts", common))
    return [(s.cause, s.way, s.part, s.kind, s.pattern, s.literals, s.multiline) for s in rows]


@lru_cache(maxsize=256)
def parsed(pattern: str, where: str) -> Any:
    try:
        return re._parser.parse(pattern)  # type: ignore[attr-defined]
    except re.error as error:
        raise RecipeError(f"{where}: expression {pattern!r} is wrong", str(error)) from None


def literals(pattern: str, where: str, common: str = "") -> Literals:
    """Texts of which one is in every match, each with up to two sets of texts of which one is in the match then too; none holds a line end.

    They are what one pass over a file looks for: those that are rarest in `common`, then the longest. Raises `RecipeError` where
    there is none of 4 letters.
    """
    found = rarest(pattern, lambda text: common.count(text.translate(ZERO)), where)
    if not found or min(letters(text) for text, _ in found) < MIN_LITERAL:
        raise RecipeError(
            f"{where}: expression {pattern!r} has no fixed text of {MIN_LITERAL} letters",
            "one pass over the file looks for fixed texts first",
            "write letters whose case varies as [Oo] and keep a fixed word",
        )
    return found


def letters(text: str) -> int:
    """How many letters a fixed text counts for: a Chinese character says as much as two."""
    text = text.strip()
    return len(text) + sum(c > "\u2e7f" for c in text)


def rarest(pattern: str, often: Callable[[str], int], where: str = "", shortest: int = MIN_LITERAL) -> Literals:
    """As `literals`, by how `often` a text comes; texts below `shortest` letters are the last choice."""
    tree = parsed(pattern, where)
    count = cache(often)

    def rank(group: _Group) -> tuple[bool, int, float]:
        least = min(letters(text) for text, _ in group)
        return least < shortest, sum(count(text) for text, _ in group), len(group) - min(least, 16) / 4

    def rare(texts: tuple[str, ...]) -> tuple[int, int, tuple[str, ...]]:
        return sum(map(count, texts)), len(texts), texts

    merged: dict[str, frozenset[tuple[str, ...]]] = {}
    for text, others in _best(_required(tree, bool(tree.state.flags & re.IGNORECASE), rank), rank):
        merged[text] = merged.get(text, others) & others
    for text in sorted(merged, key=len, reverse=True):  # one that holds another is found by the other
        within = next((t for t in merged if t != text and t in text and merged[t] <= merged[text]), None)
        if within is not None:
            del merged[text]
    return tuple((text, _apart(text, sorted(others, key=rare))) for text, others in merged.items())


def _apart(text: str, groups: list[tuple[str, ...]]) -> Also:
    """The first two groups that say more than the text does; those that may be the same place of the line only where there are no others."""
    fresh = [g for g in groups if not any(t in text for t in g)]
    return tuple(sorted(fresh, key=lambda g: any(text in t for t in g))[:2])


def _best(groups: list[_Group], rank: Callable[[_Group], Any]) -> _Group:
    """The best group, its texts with the small ones of the other groups."""
    best = min(groups, key=rank, default=[])
    also: set[tuple[str, ...]] = set()
    for group in groups:
        if group is not best and len(group) <= _CHOICES and min(len(text) for text, _ in group) > 1:
            also.add(tuple(sorted(text for text, _ in group)))
            if len(group) == 1:
                also |= group[0][1]
    return [(text, others | also) for text, others in best]


def _required(tree: Any, caseless: bool, rank: Callable[[_Group], Any], before: tuple[str, ...] = ("",)) -> list[_Group]:
    """Groups of texts, of each of which one is in every match of a sequence; `rank`: the lower the better; `before`: what is right before it."""
    groups: list[_Group] = []
    runs, plain = before, before[0] if len(before) == 1 else ""

    def end() -> None:
        if "" not in runs:
            groups.append([(run, frozenset()) for run in runs])
        if plain and runs != (plain,):
            groups.append([(plain, frozenset())])

    for op, value in [*tree, (None, None)]:
        fixed = exact(op, value, caseless)
        if fixed is not None:
            if len(fixed) > 1 or len(runs) * len(fixed) > _RUNS:
                end()
                plain = ""
            if len(fixed) == 1:
                plain += fixed[0]
            runs = joined(runs, fixed) or fixed
            continue
        end()
        name = str(op)
        if name == "SUBPATTERN":
            _, add, _, inner = value
            groups += _required(inner, caseless or bool(add & re.IGNORECASE), rank, runs)
        elif name in REPEATS and value[0] >= 1:
            groups += _required(value[2], caseless, rank, runs)
        elif name == "BRANCH":
            branches = [_best(_required(b, caseless, rank, runs), rank) for b in value[1]]
            if all(branches):
                groups.append([pair for b in branches for pair in b])
        runs, plain = ("",), ""
    return groups


def joined(first: tuple[str, ...], then: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Each of the first texts with each of the others behind it; None where they are too many."""
    if then is None or len(first) * len(then) > _RUNS:
        return None
    return tuple(dict.fromkeys(a + b for a in first for b in then))


def exact(op: Any, value: Any, caseless: bool) -> tuple[str, ...] | None:
    """All texts that an element can match, where they are few and hold no line end."""
    name = str(op)
    if name in ("AT", "ASSERT", "ASSERT_NOT"):
        return ("",)
    if name in ("LITERAL", "IN"):
        taken: list[str] = []
        for kind, member in [(op, value)] if name == "LITERAL" else value:
            low, high = member if str(kind) == "RANGE" else (member, member)
            if str(kind) not in ("LITERAL", "RANGE") or high - low >= _CHOICES:
                return None
            taken += map(chr, range(low, high + 1))
        varies = caseless and any(c.lower() != c.upper() for c in taken)
        return None if varies or "\n" in taken or len(taken) > _CHOICES else tuple(taken)
    if name == "SUBPATTERN":
        return _sequence(value[3], caseless or bool(value[1] & re.IGNORECASE))
    if name == "ATOMIC_GROUP":
        return _sequence(value, caseless)
    if name == "BRANCH":
        texts: dict[str, None] = {}
        for branch in value[1]:
            found = _sequence(branch, caseless)
            if found is None:
                return None
            texts.update(dict.fromkeys(found))
        return tuple(texts) if len(texts) <= _RUNS else None
    if name in REPEATS and value[1] == 1:
        found = _sequence(value[2], caseless)
        return found if found is None or value[0] else tuple(dict.fromkeys(("", *found)))
    return None


def _sequence(tree: Any, caseless: bool) -> tuple[str, ...] | None:
    runs: tuple[str, ...] | None = ("",)
    for op, value in tree:
        if runs is None:
            return None
        runs = joined(runs, exact(op, value, caseless))
    return runs


def _over_lines(tree: Any) -> bool:
    """Whether the expression names a line end: `\\n`, `[\\s\\S]` or a dot that takes it (`\\s` alone and `[^\\n]` do not)."""
    if isinstance(tree, tuple) and len(tree) == 2 and str(tree[0]) == "IN":
        members = [(str(op), value) for op, value in tree[1]]
        if members[0][0] == "NEGATE":
            return False
        kinds = {str(value) for op, value in members if op == "CATEGORY"}
        ends = any((op == "LITERAL" and value == 10) or (op == "RANGE" and value[0] <= 10 <= value[1]) for op, value in members)
        return ends or {"CATEGORY_SPACE", "CATEGORY_NOT_SPACE"} <= kinds
    if isinstance(tree, tuple) and len(tree) == 2 and str(tree[0]) == "LITERAL":
        return bool(tree[1] == 10)
    if hasattr(tree, "state"):
        return bool(tree.state.flags & re.DOTALL) or any(map(_over_lines, tree))
    return isinstance(tree, list | tuple) and any(map(_over_lines, tree))


def openings(pattern: str) -> tuple[tuple[str, int], ...]:
    """Texts with which, after so many other characters at most, every match begins; none where there are no such.

    Where they are in a long line is found a hundred times as quickly as `re` tries a choice at each character.
    """
    tree = parsed(pattern, "")
    found = _openings(tree, bool(tree.state.flags & re.IGNORECASE), 0) or ()
    return tuple(o for o in found if not any(o != p and o[0].startswith(p[0]) and o[1] <= p[1] for p in found))


def _openings(tree: Any, caseless: bool, lead: int) -> tuple[tuple[str, int], ...] | None:
    """As `openings`, of a sequence behind up to `lead` characters."""
    runs: tuple[str, ...] = ("",)
    for op, value in [*tree, (None, None)]:
        fixed = exact(op, value, caseless)
        more = joined(runs, fixed)
        if more is not None:
            runs = more
            continue
        if min(map(len, runs)) > 1:
            return tuple((run, lead) for run in runs)
        lead += max(map(len, runs))
        runs = ("",)
        name = str(op)
        width = None
        if fixed is not None:
            runs = fixed
            continue
        if name in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
            width = 1
        elif name == "SUBPATTERN" or (name in REPEATS and value[0] >= 1):
            inner = value[3] if name == "SUBPATTERN" else value[2]
            found = _openings(inner, caseless or (name == "SUBPATTERN" and bool(value[1] & re.IGNORECASE)), lead)
            if found is not None:
                return found
            width = inner.getwidth()[1] * (1 if name == "SUBPATTERN" else min(value[1], _LEAD + 1))
        elif name in REPEATS:
            width = value[2].getwidth()[1] * min(value[1], _LEAD + 1)
        elif name == "BRANCH":
            branches = [_openings(branch, caseless, lead) for branch in value[1]]
            if all(branches):
                return tuple(dict.fromkeys(pair for found in branches for pair in found or ()))
            width = max(branch.getwidth()[1] for branch in value[1])
        if width is None or lead + width > _LEAD:
            return None
        lead += width
    return None


_LEAD = 4
"""Characters before a text up to which a match is tried at each."""
