"""`recipes/symptoms/*.toml` → `Rule`. A wrong recipe is named by file and key."""

from __future__ import annotations

import marshal
import re
from collections.abc import Collection, Container
from functools import cache
from typing import Any

from dstune.catalog import compiled, listed, load
from dstune.errors import DstuneError, RecipeError
from dstune.expr import parse
from dstune.lang import say
from dstune.model import Example, Fix, Rule, Way

TEXT_KINDS = ("log", "app", "command", "container", "config", "any")
_KEYS = {
    "title", "severity", "message", "why", "explains", "consequence", "rank", "scope", "needs", "verify", "sources", "since",
    "aliases", "over", "way", "fix", "example",
}  # fmt: skip
_WAY = {*TEXT_KINDS, "absent", "when", "unless", "confidence", "doubt"}
_FIX = {"title", "kind", "safety", "when", "set", "edit", "run", "verify", "reason", "remarks"}
_NAME = re.compile(r"[a-z_]\w*\.[a-z_]\w*")
_EXAMPLE = {"expect", "facts", "note", *TEXT_KINDS}


@cache
def rules() -> dict[str, Rule]:
    """All rules by cause id."""
    return {cause: rule_of(cause, table) for cause, table in load("symptoms").items()}


def candidates(hit: Collection[str], read: Container[str]) -> list[Rule]:
    """The rules that can fire: those of `hit` (causes whose signatures matched) and those that facts alone can fire, where one that they ask for was read.

    The rest need a text or facts that are not there: of a program and a log 67 of 293 are left.
    """
    return [_unpacked(c) for c, (names, _) in _packed().items() if c in hit or any(name in read for name in names)]


@cache
def names_in(condition: str) -> tuple[str, ...]:
    """The names of a condition, found without parsing it."""
    return tuple(_NAME.findall(condition))


def count() -> int:
    """How many rules there are."""
    return len(_packed())


@cache
def _packed() -> dict[str, tuple[tuple[str, ...], bytes]]:
    """Per cause: the names that its ways without a text ask for, and its table without examples, marshalled."""

    def build() -> dict[str, tuple[tuple[str, ...], bytes]]:
        found = {}
        for cause, table in load("symptoms").items():
            by_facts = [way.when for w in table.get("way", ()) if not wanted(way := _way(cause, w))]
            names = tuple(dict.fromkeys(name for when in by_facts for name in names_in(when)))
            found[cause] = (names, marshal.dumps({k: v for k, v in table.items() if k != "example"}))
        return found

    kept: dict[str, tuple[tuple[str, ...], bytes]] = compiled("rules", listed("symptoms"), build)
    return kept


@cache
def _unpacked(cause: str) -> Rule:
    return rule_of(cause, marshal.loads(_packed()[cause][1]))


@cache
def _aliases() -> dict[str, str]:
    return {alias: cause for cause, rule in rules().items() for alias in rule.aliases}


def find(cause: str) -> Rule:
    """The rule of a cause id or an old alias of it. Raises `DstuneError` with close ids."""
    if cause in _packed():
        return rules()[cause]
    found = rules().get(_aliases().get(cause, ""))
    if found is None:
        import difflib

        names = [*rules(), *_aliases()]
        holding = sorted((n for n in names if cause and cause in n), key=lambda n: (not n.startswith(cause), n))
        close = holding[:6] or difflib.get_close_matches(cause, names, 3, 0.4)
        raise DstuneError(
            say(f"no cause is called {cause!r}", f"没有名为 {cause!r} 的病因"),
            say("near: ", "相近的有：") + ", ".join(close) if close else "",
            f"dstune explain {close[0]}" if close else "dstune explain",
        )
    return found


def rule_of(cause: str, table: dict[str, Any]) -> Rule:
    """One recipe's table as a Rule. Raises `RecipeError` for a missing or unknown key."""
    _check(cause, table, _KEYS, "")
    for key in ("title", "severity", "why"):
        if key not in table:
            raise RecipeError(f"symptoms/{cause}.toml has no {key}", "every recipe needs it")
    return Rule(
        cause=cause,
        title=table["title"],
        severity=table["severity"],
        why=table["why"],
        message=table.get("message", table["title"]),
        ways=tuple(_way(cause, w) for w in table.get("way", ())),
        fixes=tuple(_fix(cause, f) for f in table.get("fix", ())),
        explains=tuple(table.get("explains", ())),
        consequence=table.get("consequence", False),
        rank=table.get("rank", 0),
        scope=table.get("scope", ""),
        needs=table.get("needs", {}),
        verify=table.get("verify", {}),
        examples=tuple(_example(cause, e) for e in table.get("example", ())),
        sources=tuple(table.get("sources", ())),
        since=table.get("since", "0.1.0"),
        aliases=tuple(table.get("aliases", ())),
        over=table.get("over", ""),
    )


def parts(way: Way) -> list[tuple[str, str]]:
    """The expressions of a way in the order that `Hit.part` counts: (kind, expression), texts first, then absent ones."""
    return [(kind, p) for kind, ps in way.texts.items() for p in ps] + [("any", p) for p in way.absent]


def wanted(way: Way) -> int:
    """How many of `parts` must match (the rest must not)."""
    return sum(len(ps) for ps in way.texts.values())


def _check(cause: str, table: dict[str, Any], known: set[str], where: str) -> None:
    if unknown := set(table) - known:
        raise RecipeError(
            f"symptoms/{cause}.toml: {where}{sorted(unknown)[0]} is no key of a recipe", f"known: {', '.join(sorted(known))}"
        )


def _many(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _way(cause: str, t: dict[str, Any]) -> Way:
    _check(cause, t, _WAY, "way.")
    return Way(
        texts={k: _many(t[k]) for k in TEXT_KINDS if k in t},
        absent=_many(t.get("absent", ())),
        when=t.get("when", ""),
        unless=t.get("unless", ""),
        confidence=t.get("confidence", "high"),
        doubt=t.get("doubt", ""),
    )


def _fix(cause: str, t: dict[str, Any]) -> Fix:
    _check(cause, t, _FIX, "fix.")
    for key in ("title", "kind", "safety"):
        if key not in t:
            raise RecipeError(f"symptoms/{cause}.toml: a fix has no {key}", "every fix needs it")
    values = {k: v if isinstance(v, str) else repr(v) for k, v in t.get("set", {}).items()}
    return Fix(
        t["title"], t["kind"], t["safety"], t.get("when", ""), values, t.get("edit", ""), t.get("run", ""),
        t.get("verify", ""), t.get("reason", {}), t.get("remarks", {}),
    )  # fmt: skip


def _example(cause: str, t: dict[str, Any]) -> Example:
    _check(cause, t, _EXAMPLE, "example.")
    return Example(t["expect"], t.get("facts", {}), {k: t[k] for k in TEXT_KINDS if k in t}, t.get("note", ""))


def conditions(rule: Rule) -> list[str]:
    """Every condition and expression of a rule, parsed once to prove that it can be."""
    texts = [c for w in rule.ways for c in (w.when, w.unless)] + [
        c for f in rule.fixes for c in (f.when, f.verify, *f.set.values())
    ]
    return [c for c in (*texts, rule.over) if c and parse(c)]
