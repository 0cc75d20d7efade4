"""One pass of a scanner over blocks of lines.

Servers print few kinds of lines. A block is cut into lines twice, as it is and with every digit made a zero (a line's template), and
what is known of a template decides on all its lines. Only templates not seen before go through the automaton of fixed texts, and only
rows whose text is there meet their full expression. Where an expression tells one digit from another (`code 137`), the digits at that
place decide too; rows that reach over line ends see the text around each line that holds their fixed text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dstune.model import Fact, Hit
from dstune.readers.scan_facts import LineFacts, Variant
from dstune.readers.scan_text import CUT, WINDOW, cleaned, content, last_lines, shown, values, window

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
_ZERO = bytes.maketrans(b"123456789", b"000000000")


_Search = Callable[[bytes], bool]


class _Telling:
    """Rows of a template for which the digits that `pick` takes of a line count.

    `known`: which of them match, by those digits. `values` searches a line for texts without which all lines are alike (None: there are
    none such, or the digits hardly change); `plain`: which rows match those lines.
    """

    __slots__ = ("known", "pick", "plain", "rows", "values")

    def __init__(self, rows: list[int], spans: Iterable[tuple[int, int]], values: _Search | None) -> None:
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
        self.variants: dict[tuple[int, ...], Variant] = {}
        self.examples: list[bytes] = []


class Pass:
    """What was found so far, and what is known of the templates."""

    def __init__(self, scanner: Scanner, kind: str, source: str) -> None:
        self._scanner, self._kind, self._source = scanner, kind, source
        self._hits: list[tuple[int, int, Hit]] = []
        self._counts: dict[int, int] = {}
        self._full: set[int] = set()  # rows that want no more
        self._facts = LineFacts(scanner, self._full)
        self._dead: set[bytes] = set()  # templates on which nothing can match
        self._live: dict[bytes, _Template] = {}
        self._once: set[bytes] = set()  # templates seen once, of which nothing is known
        self._variants: dict[tuple[int, ...], Variant] = {}
        self._bytes = 0
        self._tail: list[bytes] = []  # the last lines of the block before
        self._next = 1
        self._open: list[tuple[int, int]] = []  # (line, row) whose surroundings are to be seen
        self._tries: dict[int, int] = {}
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
        touched: list[Variant] = []
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
                        if telling.plain is not None and telling.values is not None and not telling.values(line):
                            rows += telling.plain
                            continue
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
                if template:
                    self._prune(template)
                if template and not (variant.rules or variant.facts or template.windows or template.telling):
                    del live[keys[i]]
                    self._dead.add(keys[i])
        if touched:
            self._facts.note(touched, first, lines, dirty)
        if live is self._live:
            self._forget([*once, *fresh])
        self._look_around(first, lines)

    def found(self) -> tuple[list[Hit], list[Fact]]:
        """Hits by line, and facts."""
        self._look_around(self._next, None)
        self._hits.sort(key=itemgetter(0, 1))
        return [hit for _, _, hit in self._hits], self._facts.found(self._source)

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
        plain = telling.values is not None and not telling.values(line)
        seen, scanner = content(line), self._scanner
        found = tuple(row for row in telling.rows if scanner.maybe(row, seen) and scanner.pattern(row).search(seen))
        if plain:
            telling.plain = found
            return found
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

        Rows that ask digits in which the examples are alike go together, as those hardly change, and those that wait for known digits.
        """
        line = template.examples[0]
        text = line.translate(_ZERO)
        seen = text.decode("utf-8", "replace")[:CUT]
        changing = [at for at, column in enumerate(zip(*template.examples, strict=True)) if len(set(column)) > 1]
        groups: dict[object, tuple[list[int], set[tuple[int, int]], set[bytes]]] = {}
        for row in template.telling[0].rows:
            begin = 0
            blurred = self._scanner.blurred(row)
            if blurred is not None:
                match = blurred.search(seen)
                if match is None:
                    continue
                begin = match.start() if text.isascii() else 0
            spans = {span for span in self._scanner.telling(row, text) if span[1] > begin}
            if not spans:
                if self._scanner.pattern(row).search(content(line)):
                    template.always += (row,)
                continue
            steady = not any(a <= at < b for at in changing for a, b in spans)
            values = self._scanner.values(row)
            key = "steady" if steady else "gated" if values else frozenset(spans)
            group = groups.setdefault(key, ([], set(), set()))
            group[0].append(row)
            group[1].update(spans)
            if not steady:
                group[2].update(values or ())
        template.telling = [
            _Telling(rows, spans, _any_of(sorted(values)) if values else None) for rows, spans, values in groups.values()
        ]

    def _variant(self, rows: tuple[int, ...], alike: bool) -> Variant:
        table = self._scanner.rows
        return Variant([row for row in rows if table[row].cause], [row for row in rows if not table[row].cause], alike)

    def _prune(self, template: _Template) -> None:
        """Forgets rows that want no more."""

        def left(rows: Iterable[int]) -> tuple[int, ...]:
            return tuple(row for row in rows if row not in self._full)

        template.always = left(template.always)
        for telling in template.telling:
            telling.known = {key: left(rows) for key, rows in telling.known.items()}
            telling.plain = None if telling.plain is None else left(telling.plain)

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
        limit = last_lines(around, 5 * WINDOW) if lines is not None else len(around)
        waiting, at = [], -1
        for number, row in sorted(self._open):
            place = number - start
            if place >= limit:
                waiting.append((number, row))
            elif row not in self._full and self._tries.get(row, 0) < TRIES:
                self._tries[row] = self._tries.get(row, 0) + 1
                if place != at:
                    at, seen = place, window(around, place)
                self._search(row, start, *seen)
        self._open = waiting
        self._tail = around[last_lines(around, 12 * WINDOW) :]
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
            self._facts.keep(row, number, line, self._facts.of(row, match))


TRIES = 1000
"""Places at which a row that reaches over line ends is looked at, each a window of up to 8,000 characters: a line repeated 20,000
times took over a minute.
"""
_NONE: dict[bytes, _Template] = {}


def _any_of(texts: list[bytes]) -> _Search:
    """Whether a line holds one of a few texts: faster one by one than as an expression."""

    def search(line: bytes) -> bool:
        for text in texts:  # noqa: SIM110  (any() with a generator takes twice as long)
            if text in line:
                return True
        return False

    return search


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
