"""All text signatures of the recipes as one table: an expression, the fixed texts that its matches hold, and which digits it looks at.

Finding those needs `re._parser`, which costs over 150 ms for a thousand expressions: hence built once and cached.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from dstune.catalog import compiled, load, root
from dstune.catalog.rules import parts, rule_of
from dstune.errors import RecipeError

MIN_LITERAL = 4
ZERO = str.maketrans("123456789", "000000000")
"""A text's template: every digit a zero."""
ANY_DIGIT: tuple[str, tuple[str, ...]] = ("0", ())
DIGITS = "0123456789"
_CHOICES = 12
_LITERAL = re._constants.LITERAL  # type: ignore[attr-defined]
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


_Group = list[tuple[str, frozenset[str]]]


@dataclass(frozen=True, slots=True)
class Signature:
    """An expression of a rule's way, or of a log fact (`cause` "" and `way` its row).

    `kind` is the kind of text it looks in; `literals`: one of the texts is in every match, with others that are there then too.
    `multiline`: it reaches over line ends. `digits`: the places where the expression tells one digit from another, as template and what may stand there
    ("code 000", ("code 137",)); none where it treats all digits alike, so that one line of a template speaks for all.
    """

    cause: str
    way: int
    part: int
    kind: str
    pattern: str
    literals: tuple[tuple[str, tuple[str, ...]], ...]
    digits: tuple[tuple[str, tuple[str, ...]], ...]
    multiline: bool


@cache
def signatures() -> tuple[Signature, ...]:
    """Every signature of every recipe, in recipe order."""
    files = sorted(root().joinpath("symptoms").glob("*.toml")) + sorted(root().joinpath("log_facts").glob("*.toml"))
    files.append(root() / "common_log.txt")
    return tuple(Signature(*row) for row in compiled("signature-table", files, _build))


@cache
def log_facts() -> tuple[dict[str, Any], ...]:
    """Rows of `log_facts/*.toml`: `log` (expression), `set` ({family.name: group}), `keep` (first, last, max or all)."""
    return tuple(row for table in load("log_facts").values() for row in table.get("fact", ()))


def signature(cause: str, way: int, part: int, kind: str, pattern: str, where: str = "", common: str = "") -> Signature:
    """The row of an expression. `common`: templates of lines of healthy servers. Raises `RecipeError` as `literals` does."""
    fixed = literals(pattern, where, common)
    tree = _parsed(pattern, where)
    by_template: dict[str, set[str] | None] = {}
    for text, choices in _digits(tree, bool(tree.state.flags & re.IGNORECASE)):
        known = by_template.setdefault(text, set())
        by_template[text] = known | set(choices) if choices and known is not None else None
    if ANY_DIGIT[0] in by_template and by_template[ANY_DIGIT[0]] is None:
        by_template = {ANY_DIGIT[0]: None}
    digits = tuple((text, tuple(sorted(by_template[text] or ()))) for text in sorted(by_template))
    return Signature(cause, way, part, kind, pattern, tuple(fixed), digits, _over_lines(tree))


def _build() -> list[tuple[Any, ...]]:
    common = (root() / "common_log.txt").read_text(encoding="utf-8")
    rows: list[Signature] = []
    for cause, table in load("symptoms").items():
        for number, way in enumerate(rule_of(cause, table).ways):
            for part, (kind, pattern) in enumerate(parts(way)):
                rows.append(signature(cause, number, part, kind, pattern, f"symptoms/{cause}.toml", common))
    for number, row in enumerate(log_facts()):
        rows.append(signature("", number, 0, "log", row["log"], "log_facts", common))
    return [(s.cause, s.way, s.part, s.kind, s.pattern, s.literals, s.digits, s.multiline) for s in rows]


@lru_cache(maxsize=1)
def _parsed(pattern: str, where: str) -> Any:
    try:
        return re._parser.parse(pattern)  # type: ignore[attr-defined]
    except re.error as error:
        raise RecipeError(f"{where}: expression {pattern!r} is wrong", str(error)) from None


def literals(pattern: str, where: str, common: str = "") -> list[tuple[str, tuple[str, ...]]]:
    """Texts of which one is in every match, each with up to three others that are in the match then too; none holds a line end.

    They are what one pass over a file looks for: those that are rarest in `common`, then the longest. Raises `RecipeError` where
    there is none of 4 letters.
    """
    tree = _parsed(pattern, where)
    count: Callable[[str], int] = cache(lambda text: common.count(text.translate(ZERO)))

    def rank(group: _Group) -> tuple[bool, int, int, int]:
        shortest = min(len(text.strip()) for text, _ in group)
        return shortest < MIN_LITERAL, sum(count(text) for text, _ in group), -shortest, len(group)

    found = _best(_required(tree, bool(tree.state.flags & re.IGNORECASE), rank), rank)
    if not found or rank(found)[0]:
        raise RecipeError(
            f"{where}: expression {pattern!r} has no fixed text of {MIN_LITERAL} letters",
            "one pass over the file looks for fixed texts first",
            "write letters whose case varies as [Oo] and keep a fixed word",
        )
    merged: dict[str, frozenset[str]] = {}
    for text, others in found:
        merged[text] = merged.get(text, others) & others
    rarest = {
        text: sorted((t for t in others if len(t) > 1 and t not in text), key=lambda t: (count(t), -len(t), t))
        for text, others in merged.items()
    }
    return [(text, tuple(others[:3])) for text, others in rarest.items()]


def _best(groups: list[_Group], rank: Callable[[_Group], Any]) -> _Group:
    """The best group, its texts with those of all groups that have one text."""
    best = min(groups, key=rank, default=[])
    single = frozenset(t for g in groups if len(g) == 1 and g is not best for t in (g[0][0], *g[0][1]))
    return [(text, others | single) for text, others in best]


def _required(tree: Any, caseless: bool, rank: Callable[[_Group], Any], before: str = "") -> list[_Group]:
    """Groups of texts, of each of which one is in every match of a sequence; `rank`: the lower the better; `before`: text right before it."""
    groups: list[_Group] = []
    run = before
    for op, value in [*tree, (None, None)]:
        name = str(op)
        if name == "LITERAL" and not caseless and value != 10:
            run += chr(value)
            continue
        if run:
            groups.append([(run, frozenset())])
        if name == "SUBPATTERN":
            _, add, _, inner = value
            groups += _required(inner, caseless or bool(add & re.IGNORECASE), rank, run)
        elif name in _REPEATS and value[0] >= 1:
            groups += _required(value[2], caseless, rank, run)
        elif name == "BRANCH":
            branches = [_best(_required(b, caseless, rank, run), rank) for b in value[1]]
            if all(branches):
                groups.append([pair for b in branches for pair in b])
        run = ""
    return groups


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


def _digits(tree: Any, caseless: bool, before: str = "", choices: tuple[str, ...] = ("",)) -> list[tuple[str, tuple[str, ...]]]:
    """All places of a sequence at which one digit differs from another: (template of the fixed text there, what it may be).

    Any line whose template lacks them all, or which has them alike as another line of its template, is treated by the expression as that
    other line. `before`: template of the fixed text right before the sequence, `choices`: what that may be. ("0", ()): any digit may matter.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    run, telling = before, False

    def end() -> None:
        nonlocal run, telling, choices
        if telling:
            found.append((run, choices))
        run, telling, choices = "", False, ("",)

    for op, value in tree:
        name = str(op)
        if name in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
            fixed, tells = _one(name, value)
            if tells and (caseless or not fixed):
                found.append(ANY_DIGIT)
            if fixed and not caseless:
                run, telling = run + fixed[0].translate(ZERO), telling or tells
                choices = (
                    tuple(text + one for text in choices for one in fixed) if len(choices) * len(fixed) <= _CHOICES else ()
                )
            else:
                end()
        elif name == "AT":
            continue
        elif name in ("ASSERT", "ASSERT_NOT"):
            found += _digits(value[1], caseless, run, choices) if value[0] > 0 else _digits(value[1], caseless)
        else:
            if name == "SUBPATTERN":
                found += _digits(value[3], caseless or bool(value[1] & re.IGNORECASE), run, choices)
            elif name == "BRANCH":
                for branch in value[1]:
                    found += _digits(branch, caseless, run, choices)
            elif name in _REPEATS:
                found += _digits(value[2], caseless, run, choices) if value[1] == 1 else _digits(value[2], caseless)
            elif name == "ATOMIC_GROUP":
                found += _digits(value, caseless, run, choices)
            elif name == "GROUPREF_EXISTS":
                found += [t for part in value[1:] if part is not None for t in _digits(part, caseless)]
            elif name != "FAILURE":
                found.append(ANY_DIGIT)  # a group's text again
            end()
    end()
    return found


def _one(name: str, value: Any) -> tuple[str, bool]:
    """(what an element may take, where that is one character or some digits, else ""; whether it takes some digits and not others)."""
    if name == "LITERAL":
        return chr(value), chr(value) in DIGITS
    if name == "NOT_LITERAL":
        return "", chr(value) in DIGITS
    if name != "IN":
        return "", False
    taken: set[int] = set()
    other = False
    negated = str(value[0][0]) == "NEGATE"
    for op, member in value[negated:]:
        kind = str(op)
        if kind == "LITERAL":
            low = high = member
        elif kind == "RANGE":
            low, high = member
        else:
            other = True
            if str(member) in ("CATEGORY_DIGIT", "CATEGORY_WORD", "CATEGORY_NOT_SPACE"):
                taken.update(range(48, 58))
            continue
        taken.update(range(max(low, 48), min(high, 57) + 1))
        other |= low < 48 or high > 57
    tells = 0 < len(taken) < 10
    return ("".join(map(chr, sorted(taken))) if tells and not other and not negated else ""), tells


def blurred(pattern: str) -> re.Pattern[str] | None:
    """An expression that matches the template of every line that `pattern` matches, from the same place on; None where there is none.

    It spares most digits: where it does not match a template, no digits of a line can make `pattern` match.
    """
    tree = re._parser.parse(pattern)  # type: ignore[attr-defined]
    if "(?<" in re.sub(r"\(\?P<", "", pattern) or not _blur(tree):
        return None
    made: re.Pattern[str] = re._compiler.compile(tree, re.MULTILINE | tree.state.flags)  # type: ignore[attr-defined]
    return made


def _blur(tree: Any) -> bool:
    """Lets an expression take a zero wherever it takes some digit, in place; whether that can be done."""
    for i, (op, value) in enumerate(tree.data):
        name = str(op)
        if name in ("LITERAL", "NOT_LITERAL", "IN"):
            if not _one(name, value)[1]:
                continue
            if name == "LITERAL":
                tree.data[i] = (op, 48)
            elif name == "IN" and str(value[0][0]) != "NEGATE":
                value.append((_LITERAL, 48))
            else:
                return False
        elif name == "ASSERT_NOT":
            if _digits(value[1], False):
                return False
        elif name == "BRANCH":
            if not all(map(_blur, value[1])):
                return False
        elif name in ("SUBPATTERN", "MAX_REPEAT", "MIN_REPEAT", "ASSERT"):
            if not _blur(value[-1]):
                return False
        elif name not in ("AT", "ANY"):
            return False
    return True
