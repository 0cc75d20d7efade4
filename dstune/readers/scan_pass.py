"""One pass of a scanner over blocks of lines.

Servers print few kinds of lines. A block is cut into lines twice, as it is and with every digit made a zero (a line's template), and
what is known of a template decides on all its lines. Only templates not seen before go through the automaton of fixed texts, and only
rows whose text is there meet their full expression. Where an expression tells one digit from another (`code 137`), the digits at that
place decide too; rows that reach over line ends see the text around each line that holds their fixed text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dstune.catalog.signatures import log_facts
from dstune.catalog.vocabulary import normalise
from dstune.model import Fact, Hit, Value
from dstune.readers.scan_text import CUT, cleaned, content, shown, values, whole

if TYPE_CHECKING:
    from dstune.readers.scan import Scanner

KEEP = 24
"""Hits kept per signature: the first ones. A line repeated a million times adds nothing."""
KNOWN = 100_000
"""Templates remembered, and at most 24 MB of them; then all are forgotten and learnt anew."""
_KNOWN_BYTES = 24 << 20
_LONG = 16_000
"""Bytes above which a line's template is not remembered."""
SMALL = 64 << 10
"""Bytes below which each line is seen by itself: learning templates costs more than it saves."""
_VARIANTS = 500
_EXAMPLES = 4
_WINDOW = 4000
"""Characters before and after a line that rows reaching over line ends see."""
_ZERO = bytes.maketrans(b"123456789", b"000000000")


class _Variant:
    """Rows that match the same lines; `lines`: where they are in the block; `alike`: all are of one template."""

    __slots__ = ("alike", "facts", "lines", "rules")

    def __init__(self, rules: list[int], facts: list[int], alike: bool) -> None:
        self.rules, self.facts, self.alike = rules, facts, alike
        self.lines: list[int] = []


class _Telling:
    """Rows of a template for which the digits that `pick` takes of a line count.

    `known`: which of them match, by those digits. `values`: texts without which all lines are alike (None: there are none such); `plain`:
    which rows match those.
    """

    __slots__ = ("known", "pick", "plain", "rows", "values")

    def __init__(self, rows: list[int], spans: Iterable[tuple[int, int]], values: tuple[bytes, ...] | None) -> None:
        self.rows, self.pick, self.values = rows, _picker(spans), values
        self.known: dict[Any, tuple[int, ...]] = {}
        self.plain: tuple[int, ...] | None = None


class _Template:
    """What is known of the lines of one template.

    `always`: rows that match each of them; `telling`: rows that match some; `windows`: rows that reach over line ends; `variants`: by
    the rows that match; `examples`: lines with different digits, until there are enough to take `telling` apart.
    """

    __slots__ = ("always", "examples", "telling", "variants", "windows")

    def __init__(self, always: list[int], telling: list[_Telling], windows: list[int]) -> None:
        self.always, self.telling, self.windows = tuple(always), telling, windows
        self.variants: dict[tuple[int, ...], _Variant] = {}
        self.examples: list[bytes] = []


class Pass:
    """What was found so far, and what is known of the templates."""

    def __init__(self, scanner: Scanner, kind: str, source: str) -> None:
        self._scanner, self._kind, self._source = scanner, kind, source
        self._hits: list[tuple[int, int, Hit]] = []
        self._facts: dict[tuple[str, str, Any], tuple[Value, int, str]] = {}
        self._counts: dict[int, int] = {}
        self._full: set[int] = set()  # rows that want no more
        self._given: dict[int, set[str]] = {}  # names that a row of facts has given, where only the first counts
        self._dead: set[bytes] = set()  # templates on which nothing can match
        self._live: dict[bytes, _Template] = {}
        self._once: set[bytes] = set()  # templates seen once, of which nothing is known
        self._variants: dict[tuple[int, ...], _Variant] = {}
        self._bytes = 0
        self._tail: list[bytes] = []  # the last lines of the block before
        self._next = 1
        self._open: list[tuple[int, int]] = []  # (line, row) whose surroundings are to be seen
        self._seen: set[tuple[int, int]] = set()

    def block(self, first: int, data: bytes) -> None:
        """Whole lines; `first` is the number of the first one."""
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        dirty = b"\x1b" in data or b"\r" in data or b"\0" in data
        if len(data) < SMALL:
            keys, todo, live = lines, list(range(len(lines))), _NONE
            found = self._plain(todo, first, lines, dirty)
        else:
            keys, live = data.translate(_ZERO).split(b"\n")[: len(lines)], self._live
            todo = [i for i, key in enumerate(keys) if key not in self._dead]
            once, fresh = self._sort(todo, keys)
            if fresh:
                self._learn(fresh, lines, dirty)
            found = self._plain(list(once.values()), first, lines, dirty) if once else {}
        touched: list[_Variant] = []
        for i in todo:
            template = live.get(keys[i])
            if template is None:
                if i not in found:
                    continue
                rows = found[i]
                variants = self._variants
            else:
                variants = template.variants
                for row in template.windows:
                    self._open.append((first + i, row))
                rows = template.always
                if template.telling:
                    line = cleaned(lines[i]) if dirty else lines[i]
                    for telling in template.telling:
                        matching = telling.known.get(telling.pick(line))
                        if matching is None:
                            matching = self._tell(template, telling, line)
                        rows += matching
                if not rows:
                    continue
            variant = variants.get(rows)
            if variant is None:
                variant = variants[rows] = self._variant(rows, template is not None)
            if variant.facts:
                if not variant.lines:
                    touched.append(variant)
                variant.lines.append(i)
            if variant.rules and self._take(variant.rules, first + i, lines[i]):
                variant.rules = [row for row in variant.rules if row not in self._full]
                if template and not (variant.rules or variant.facts or template.windows or template.telling):
                    del live[keys[i]]
                    self._dead.add(keys[i])
        if touched:
            self._note(touched, first, lines, dirty)
        if live is self._live:
            self._forget([*once, *fresh])
        self._look_around(first, lines)

    def found(self) -> tuple[list[Hit], list[Fact]]:
        """Hits by line, and facts."""
        self._look_around(self._next, None)
        self._hits.sort(key=itemgetter(0, 1))
        facts = [
            Fact(subject, name, value, self._source, line, shown(text))
            for (subject, name, _), (value, line, text) in self._facts.items()
        ]
        return [hit for _, _, hit in self._hits], facts

    def _sort(self, todo: list[int], keys: list[bytes]) -> tuple[dict[bytes, int], dict[bytes, int]]:
        """(templates never seen before, templates seen a second time and worth learning), with a line of each."""
        live, before = self._live, self._once
        once: dict[bytes, int] = {}
        fresh: dict[bytes, int] = {}
        for i in todo:
            key = keys[i]
            if key in live or key in fresh:
                continue
            if key in once:
                fresh[key] = once.pop(key)
            elif key in before:
                before.discard(key)
                fresh[key] = i
            else:
                once[key] = i
        before.update(once)
        return once, fresh

    def _plain(self, places: list[int], first: int, lines: list[bytes], dirty: bool) -> dict[int, tuple[int, ...]]:
        """Rows that match lines, each line seen by itself."""
        found: dict[int, tuple[int, ...]] = {}
        scanner = self._scanner
        texts = [cleaned(lines[i]) for i in places] if dirty else [lines[i] for i in places]
        for place, rows in scanner.in_lines(texts).items():
            seen, matching = "", []
            for row in sorted(rows):
                if row in self._full:
                    continue
                if scanner.rows[row].multiline:
                    self._open.append((first + places[place], row))
                    continue
                seen = seen or texts[place].decode("utf-8", "replace")[:CUT]
                if scanner.pattern(row).search(seen):
                    matching.append(row)
            if matching:
                found[places[place]] = tuple(matching)
        return found

    def _learn(self, fresh: dict[bytes, int], lines: list[bytes], dirty: bool) -> None:
        """Finds out about templates, on one line of each."""
        keys = list(fresh)
        texts = [cleaned(key) for key in keys] if dirty else keys
        self._dead.update(keys)
        for place, rows in self._scanner.in_templates(texts).items():
            template = self._template(texts[place], lines[fresh[keys[place]]], rows)
            if template is not None:
                self._live[keys[place]] = template
                self._dead.discard(keys[place])

    def _template(self, text: bytes, line: bytes, rows: set[int]) -> _Template | None:
        scanner, seen = self._scanner, ""
        always, telling, windows = [], [], []
        spans: set[tuple[int, int]] = set()
        for row in sorted(rows - self._full):
            if scanner.rows[row].multiline:
                windows.append(row)
                continue
            if places := scanner.telling(row, text):
                telling.append(row)
                spans.update(places)
                continue
            seen = seen or content(line)
            if scanner.pattern(row).search(seen):
                always.append(row)
        if not (always or telling or windows):
            return None
        return _Template(always, [_Telling(telling, spans, None)] if telling else [], windows)

    def _tell(self, template: _Template, telling: _Telling, line: bytes) -> tuple[int, ...]:
        """Which of the rows match a line, remembered for lines that have the same digits there."""
        plain = telling.values is not None
        for value in telling.values or ():
            if value in line:
                plain = False
                break
        if plain and telling.plain is not None:
            return telling.plain
        seen, scanner = content(line), self._scanner
        found = tuple(row for row in telling.rows if scanner.maybe(row, seen) and scanner.pattern(row).search(seen))
        if plain:
            telling.plain = found
        if not plain or len(telling.known) < _EXAMPLES:
            if len(telling.known) >= _VARIANTS:
                telling.known.clear()
            telling.known[telling.pick(line)] = found
        if len(template.examples) < _EXAMPLES:
            template.examples.append(line)
            if len(template.examples) == _EXAMPLES:
                self._refine(template)
        return found

    def _refine(self, template: _Template) -> None:
        """A template that came again and again: leaves out rows that no digits can make match, groups the rest by the digits they ask.

        Rows that ask digits in which the examples are alike go together, as those hardly change.
        """
        line = template.examples[0]
        text = line.translate(_ZERO)
        seen = text.decode("utf-8", "replace")[:CUT]
        changing = [at for at, column in enumerate(zip(*template.examples, strict=True)) if len(set(column)) > 1]
        groups: dict[tuple[tuple[int, int], ...], list[int]] = {}
        steady: set[tuple[int, int]] = set()
        for row in template.telling[0].rows:
            begin = 0
            blurred = self._scanner.blurred(row)
            if blurred is not None:
                match = blurred.search(seen)
                if match is None:
                    continue
                begin = match.start() if text.isascii() else 0
            spans = tuple(sorted(span for span in self._scanner.telling(row, text) if span[1] > begin))
            if not spans:
                if self._scanner.pattern(row).search(content(line)):
                    template.always += (row,)
            elif any(a <= at < b for at in changing for a, b in spans):
                groups.setdefault(spans, []).append(row)
            else:
                groups.setdefault((), []).append(row)
                steady.update(spans)
        template.telling = []
        for spans, rows in groups.items():
            values = [self._scanner.values(row) for row in rows]
            every = None if None in values else tuple({one for some in values for one in some or ()})
            template.telling.append(_Telling(rows, spans or steady, every))

    def _variant(self, rows: tuple[int, ...], alike: bool) -> _Variant:
        table = self._scanner.rows
        return _Variant([row for row in rows if table[row].cause], [row for row in rows if not table[row].cause], alike)

    def _take(self, rows: list[int], number: int, line: bytes) -> bool:
        """Adds the hits of a line; whether a row has had enough."""
        enough, seen, text = False, content(line), ""
        for row in rows:
            if row not in self._full:
                match = self._scanner.pattern(row).search(seen)
                if match is not None:
                    text = text or shown(seen)
                    self._hit(row, number, match, text)
            enough |= row in self._full
        return enough

    def _hit(self, row: int, number: int, match: re.Match[str], text: str) -> None:
        of = self._scanner.rows[row]
        hit = Hit(of.cause, of.way, of.part, self._kind, self._source, number, text, values(match.groupdict()))
        self._hits.append((number, row, hit))
        self._counts[row] = self._counts.get(row, 0) + 1
        if self._counts[row] >= KEEP:
            self._full.add(row)

    def _note(self, touched: list[_Variant], first: int, lines: list[bytes], dirty: bool) -> None:
        """Facts of a block: of each row only the lines that can count by its `keep`, in line order."""
        by_row: dict[int, list[_Variant]] = {}
        for variant in touched:
            variant.facts = [row for row in variant.facts if row not in self._full]
            for row in variant.facts:
                by_row.setdefault(row, []).append(variant)
        events: dict[tuple[int, int], tuple[str, dict[str, Value]] | None] = {}
        for row, variants in by_row.items():
            keep, names = self._keeps(row)
            places = variants[0].lines if len(variants) == 1 else sorted(i for v in variants for i in v.lines)
            if row not in self._given:  # the first line sets the order of facts
                self._given[row] = set()
                events[places[0], row] = None
            if keep == "all":
                events.update(((i, row), None) for i in places)
            elif keep == "max":
                events.update(
                    ((i, row), None)
                    for v in variants
                    for i in (v.lines if dirty or not v.alike else self._peaks(row, v.lines, lines))
                )
            else:
                given = self._given[row] if keep == "first" else set()
                for i in places if keep == "first" else reversed(places):
                    read = events[i, row] = self._read(row, lines[i])
                    given.update(read[1])
                    if len(given) == names:
                        if keep == "first":
                            self._full.add(row)
                        break
        for i, row in sorted(events):
            self._keep(row, first + i, *(events[i, row] or self._read(row, lines[i])))
        for variant in touched:
            variant.lines = []

    def _keeps(self, row: int) -> tuple[str, int]:
        """(which lines of a row of facts must be seen, how many names it gives)."""
        fact = log_facts()[self._scanner.rows[row].way]
        mixed = any(name in _highest_and_other() for name in fact["set"])
        return "all" if mixed else fact.get("keep", "last"), len(fact["set"])

    def _read(self, row: int, line: bytes) -> tuple[str, dict[str, Value]]:
        """(the line, the values that a row of facts gives there, by full name)."""
        text = content(line)
        match = self._scanner.pattern(row).search(text)
        return text, self._facts_of(row, match) if match else {}

    def _facts_of(self, row: int, match: re.Match[str]) -> dict[str, Value]:
        groups = match.groupdict()
        found: dict[str, Value] = {}
        for full, group in log_facts()[self._scanner.rows[row].way]["set"].items():
            raw: Value = groups.get(group) if isinstance(group, str) and group in groups else group
            value = None if raw is None else normalise(full, raw)
            if value is not None:
                found[full] = value
        return found

    def _keep(self, row: int, number: int, text: str, found: dict[str, Value]) -> None:
        """Adds the facts of a line, by the row's `keep`: last (default), first, max, or all."""
        keep = log_facts()[self._scanner.rows[row].way].get("keep", "last")
        for full, value in found.items():
            subject, _, name = full.partition(".")
            key = (subject, name, number if keep == "all" else None)
            old = self._facts.get(key)
            if old is None or not (keep == "first" or (keep == "max" and _number(old[0]) >= _number(value))):
                self._facts[key] = (value, number, text)

    def _peaks(self, row: int, places: list[int], lines: list[bytes]) -> Iterable[int]:
        """Of lines of one template those with the highest number in a row's groups; all, where that is not plain to see."""
        line = lines[places[0]]
        if self._scanner.rows[row].digits or not line.isascii() or len(line) > CUT:
            return places
        match = self._scanner.pattern(row).search(line.decode())
        groups = log_facts()[self._scanner.rows[row].way]["set"].values()
        spans = [match.span(group) for group in groups if match and group in match.re.groupindex]
        try:
            return [max(places, key=lambda i: float(lines[i][a:b])) for a, b in spans if a >= 0]
        except ValueError:  # "1,024", "14.5 GiB"
            return places

    def _forget(self, fresh: list[bytes]) -> None:
        """Keeps the memory bounded."""
        if not fresh:
            return
        self._bytes += sum(map(len, fresh))
        if self._bytes > _KNOWN_BYTES or len(self._dead) + len(self._live) + len(self._once) > KNOWN:
            self._dead.clear()
            self._live.clear()
            self._once.clear()
            self._variants.clear()
            self._bytes = 0
        elif max(map(len, fresh)) > _LONG:
            for key in fresh:
                if len(key) > _LONG:
                    self._dead.discard(key)
                    self._once.discard(key)
                    self._live.pop(key, None)

    def _look_around(self, first: int, lines: list[bytes] | None) -> None:
        """Rows that reach over line ends, as far as the text behind their line is there; None: no more comes."""
        around = self._tail + lines if lines is not None else self._tail
        start = first - len(self._tail)
        limit = _last(around, 5 * _WINDOW) if lines is not None else len(around)
        waiting, at = [], -1
        for number, row in sorted(self._open):
            place = number - start
            if place >= limit:
                waiting.append((number, row))
            elif row not in self._full:
                if place != at:
                    at, window = place, _window(around, place)
                self._search(row, start, *window)
        self._open = waiting
        self._tail = around[_last(around, 12 * _WINDOW) :]
        self._next = start + len(around)

    def _search(self, row: int, start: int, text: str, shift: int, low: int, high: int) -> None:
        literals = self._scanner.rows[row].literals
        if not any(fixed in text and all(other in text for other in others) for fixed, others in literals):
            return
        match = self._scanner.pattern(row).search(text, low, high)
        if match is None:
            return
        number = start + shift + text.count("\n", 0, match.start())
        if (row, number) in self._seen:
            return
        self._seen.add((row, number))
        if len(self._seen) > 200_000:
            self._seen.clear()
        begin, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.start())
        line = text[begin : end if end >= 0 else len(text)]
        if self._scanner.rows[row].cause:
            self._hit(row, number, match, shown(line))
        else:
            self._keep(row, number, line, self._facts_of(row, match))


_NONE: dict[bytes, _Template] = {}


@cache
def _highest_and_other() -> frozenset[str]:
    """Names of facts that one row gives by its highest value and another otherwise: each line counts."""
    by_keep: dict[bool, set[str]] = {True: set(), False: set()}
    for row in log_facts():
        by_keep[row.get("keep", "last") == "max"].update(row["set"])
    return frozenset(by_keep[True] & by_keep[False])


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _picker(spans: Iterable[tuple[int, int]]) -> Callable[[bytes], Any]:
    """Takes the parts of a line at these places, joined where they touch; from the first to the last where there are many."""
    joined: list[list[int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    if len(joined) > 12:
        joined = [[joined[0][0], joined[-1][1]]]
    return itemgetter(*(slice(begin, end) for begin, end in joined))


def _last(lines: list[bytes], size: int) -> int:
    """Where the last lines begin that have `size` bytes together."""
    place = len(lines)
    while place and size > 0:
        place -= 1
        size -= len(lines[place]) + 1
    return place


def _window(lines: list[bytes], place: int) -> tuple[str, int, int, int]:
    """(text around a line, where its first line is in `lines`, where a search in it begins, and ends)."""
    begin, end, before, after = place, place + 1, 0, -1
    while begin and before < _WINDOW:
        begin -= 1
        before += len(lines[begin]) + 1
    while end < len(lines) and after < _WINDOW:
        after += len(lines[end]) + 1
        end += 1
    text = b"\n".join(lines[begin:end])
    if text.isascii() and b"\x1b" not in text and b"\r" not in text and b"\0" not in text:
        high = before + len(lines[place]) + _WINDOW
        return text.decode(), begin, max(0, before - _WINDOW), min(len(text), high)
    begin, parts, before = place, [whole(lines[place])], 0
    while begin and before < _WINDOW:
        begin -= 1
        parts.append(whole(lines[begin]))
        before += len(parts[-1]) + 1
    parts.reverse()
    high, end, after = before + len(parts[-1]) + _WINDOW, place, before + len(parts[-1])
    while end + 1 < len(lines) and after < high:
        end += 1
        parts.append(whole(lines[end]))
        after += len(parts[-1]) + 1
    return "\n".join(parts), begin, max(0, before - _WINDOW), min(after, high)
