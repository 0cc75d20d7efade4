"""What a handler does with the answer after it was generated: which statements move into the streaming loop, which run once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from dstune.readers.app_edit_keywords import callee_name
from dstune.readers.app_edit_sites import Program, Site
from dstune.readers.app_edit_tail_parts import Named, reads_of, slicing, swapped, takes_a_part, targets_of, uncut, with_added
from dstune.readers.app_edit_tree import callee, dotted, walk


@dataclass(slots=True)
class Tail:
    """The end of a handler, ready to be written as a loop.

    `whole` names the text so far, `tokenizer` and `options` make the streamer, `inside` runs for each piece, `result` is handed
    on, `once` runs at the end, `gone` are the statements that all this replaces, `sets` the names that `inside` assigns. `streamer`, `failed`
    and `stop` name the streamer, the list of failures and the event that ends the generation ("" for none).
    """

    whole: str
    result: cst.BaseExpression
    tokenizer: str = ""
    options: list[cst.Arg] = field(default_factory=list)
    inside: list[Any] = field(default_factory=list)
    once: list[Any] = field(default_factory=list)
    gone: list[Any] = field(default_factory=list)
    sets: set[str] = field(default_factory=set)
    leading: Sequence[cst.EmptyLine] = ()
    notes: list[cst.EmptyLine] = field(default_factory=list)
    streamer: str = ""
    failed: str = ""
    stop: str = ""


class _No(Exception):
    """The rest of the handler does what a loop cannot."""


class _Reader:
    """Goes through the statements after the generation, in order."""

    def __init__(self, program: Program, where: Site | None, line: Any, call: cst.Call | None) -> None:
        self.program, self.tree, self.where, self.line, self.call = program, program.tree, where, line, call
        self.source: cst.Call = where.call if where is not None else call  # type: ignore[assignment]
        self.derived: set[str] = set()
        self.texts: set[str] = set()
        self.whole = ""
        self.tokenizer = ""
        self.options: list[cst.Arg] = []
        self.items: list[tuple[str, Any]] = []
        self.adds: dict[str, list[cst.BaseExpression]] = {}
        self.add_lines: list[Any] = []
        self.gone: list[Any] = []
        self.notes: list[cst.EmptyLine] = []

    def finals(self, node: cst.CSTNode) -> list[cst.BaseExpression]:
        """Expressions inside `node` that are the finished text: a decode of what was generated, a pipeline's text, the helper's call."""
        if self.where is None:
            return [self.source] if any(c is self.source for c in walk(node, cst.Call)) else []
        left, name = callee(self.source)
        found: list[cst.BaseExpression] = []
        if (f"{left}.{name}" if left else name) in self.program.pipes:
            for part in walk(node, cst.Subscript):
                up = self.tree.parent(part)
                if isinstance(up, cst.Subscript) and up.value is part:
                    continue
                if "generated_text" in self.tree.code(part) and self.made(part):
                    found.append(part)
                    self.tokenizer = f"{left}.{name}.tokenizer" if left else f"{name}.tokenizer"
            return found
        for part in walk(node, cst.Call):
            if callee_name(part) not in ("decode", "batch_decode") or not callee(part)[0] or not self.made(part):
                continue
            outer: cst.BaseExpression = part
            if callee_name(part) == "batch_decode":
                up = self.tree.parent(part)
                if not isinstance(up, cst.Subscript):
                    raise _No
                outer = up
            self.tokenizer = callee(part)[0]
            self.options = [a for a in part.args if a.keyword is not None and a.keyword.value != "token_ids"]
            found.append(outer)
        return found

    def made(self, node: cst.CSTNode) -> bool:
        """Whether a node reads what was generated."""
        return any(c is self.source for c in walk(node, cst.Call)) or bool(self.derived & reads_of(self.tree, node))

    def begin(self) -> None:
        """The generating statement itself."""
        small = self.line.body[0]
        if isinstance(small, cst.Expr | cst.AugAssign) or (isinstance(small, cst.Assign) and len(small.targets) > 1):
            raise _No
        if self.finals(small):
            self.step(self.line)
            return
        targets = targets_of(small)
        if self.where is None or not targets or isinstance(small, cst.Return) or not slicing(small.value, self.source):
            raise _No
        self.derived |= targets
        self.gone.append(self.line)

    def step(self, line: Any) -> None:
        """One statement; raises `_No` for what cannot be kept in a loop."""
        if isinstance(line, cst.If):
            self.condition(line)
            return
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            raise _No
        small = line.body[0]
        finals = self.finals(small)
        if finals:
            self.final(line, small, finals)
        elif self.made(small):
            self.generated(line, small)
        else:
            self.other(line, small)

    def final(self, line: Any, small: Any, finals: list[cst.BaseExpression]) -> None:
        targets = targets_of(small)
        if len(finals) > 1 or (self.whole and finals) or isinstance(small, cst.AugAssign):
            raise _No
        self.gone.append(line)
        if line is not self.line:
            self.note(line)
        if isinstance(small, cst.Assign | cst.AnnAssign) and small.value is finals[0] and len(targets) == 1:
            self.whole = next(iter(targets))
            self.texts |= targets
            return
        append = self.appended(small)
        self.whole = self.tree.fresh("text", "answer", "partial")
        self.texts |= {self.whole, *targets}
        new = swapped(line, finals[0], self.whole)
        if append is not None:
            name, values = append
            self.adds.setdefault(name, []).extend(swapped(v, finals[0], self.whole) for v in values)
            self.add_lines.append(new)
        elif isinstance(small, cst.Return):
            self.items.append(("return", new))
        elif isinstance(small, cst.Assign) and targets:
            self.items.append(("inside", new))
        else:
            raise _No

    def generated(self, line: Any, small: Any) -> None:
        """A statement over the generated ids: slices go with the decode, anything else needs them and cannot stay."""
        self.gone.append(line)
        if isinstance(small, cst.Del):
            return
        if not isinstance(small, cst.Assign) or not targets_of(small) or not slicing(small.value, None):
            raise _No
        self.note(line)
        self.derived |= targets_of(small)

    def note(self, line: Any) -> None:
        """Keeps the comments of a statement that goes: those above it and the one behind it."""
        self.notes += [e for e in line.leading_lines if e.comment]
        if line.trailing_whitespace.comment:
            self.notes.append(cst.EmptyLine(comment=line.trailing_whitespace.comment))

    def other(self, line: Any, small: Any) -> None:
        self.gone.append(line)
        append = self.appended(small)
        reads = reads_of(self.tree, small)
        if isinstance(small, cst.Return):
            if small.value is None:
                raise _No
            self.note(line)
            self.items.append(("return", line))
        elif append is not None:
            self.adds.setdefault(append[0], []).extend(append[1])
            self.add_lines.append(line)
        elif isinstance(small, cst.Assign | cst.AnnAssign) and small.value is not None:
            kind = "inside" if reads & self.texts else "maybe"
            if kind == "inside":
                self.texts |= targets_of(small)
            self.items.append((kind, line))
        elif isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            self.items.append(("once", line))
        else:
            raise _No

    def condition(self, line: cst.If) -> None:
        """`if` around changes of the text only. One that cuts the prompt off the text goes: the streamer leaves it out."""
        smalls = [s for body in walk(line, cst.SimpleStatementLine) for s in body.body]
        nested = [n for kind in (cst.For, cst.While, cst.With, cst.Try, cst.FunctionDef) for n in walk(line, kind)]
        if (
            nested
            or not self.whole
            or not all(isinstance(s, cst.Assign) and targets_of(s) <= self.texts for s in smalls)
            or self.made(line)
        ):
            raise _No
        self.gone.append(line)
        if "startswith(" in self.tree.code(line.test):
            return
        self.items.append(("inside", line))

    def appended(self, small: Any) -> tuple[str, list[cst.BaseExpression]] | None:
        """(list, elements) of `x.append(…)`, `x.extend([…])`, `x += […]`, `x = x + […]`."""
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) and len(small.value.args) == 1:
            left, name = callee(small.value)
            value = small.value.args[0].value
            if name == "append" and left:
                return left, [value]
            if name == "extend" and left and isinstance(value, cst.List):
                return left, [e.value for e in value.elements]
        if isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign) and isinstance(small.value, cst.List):
            return dotted(small.target), [e.value for e in small.value.elements]
        if (
            isinstance(small, cst.Assign)
            and isinstance(small.value, cst.BinaryOperation)
            and isinstance(small.value.operator, cst.Add)
        ):
            name = dotted(small.targets[0].target)
            if name and dotted(small.value.left) == name and isinstance(small.value.right, cst.List):
                return name, [e.value for e in small.value.right.elements]
        return None


def tail_of(
    program: Program,
    where: Site | None,
    line: Any,
    inner: list[Any],
    after: list[Any],
    function: cst.FunctionDef,
    call: cst.Call | None = None,
) -> Tail | None:
    """The tail of a handler, or None where a loop could not do the same.

    `inner` are the statements from the generating one to the end of its block, `after` those behind the blocks around it.
    """
    reader = _Reader(program, where, line, call)
    try:
        reader.begin()
        for one in inner[1:]:
            if reader.items and reader.items[-1][0] == "return":
                raise _No
            reader.step(one)
        return _tail(reader, after, function)
    except _No:
        return None


def _tail(reader: _Reader, after: list[Any], function: cst.FunctionDef) -> Tail:
    if not reader.whole:
        raise _No
    ends = [item for kind, item in reader.items if kind == "return"]
    if ends:
        end = ends[0]
    else:  # the answer is returned behind the block (after try/except)
        if (
            not after
            or not isinstance(after[-1], cst.SimpleStatementLine)
            or not isinstance(after[-1].body[0], cst.Return)
            or after[-1].body[0].value is None
        ):
            raise _No
        if (
            any(not isinstance(s, cst.SimpleStatementLine) or not isinstance(s.body[0], cst.Expr) for s in after[:-1])
            or reader.adds
        ):
            raise _No
        end = after[-1]
    result = end.body[0].value
    reads = reads_of(reader.tree, result)
    if any(n in reader.derived for n in reads):
        raise _No
    inside, once, sets = _sorted(reader, reads)
    for name, values in reader.adds.items():
        if name in {*reads} | {dotted(n) for n in walk(result, cst.Attribute)}:
            result = with_added(result, name, values)
        else:
            once += reader.add_lines
    result = uncut(result, reader.texts)
    parts = [*inside, result, *(v for values in reader.adds.values() for v in values)]
    page = reader.tree.imported("gradio")
    if not all(takes_a_part(reader.tree, part, reader.texts | {reader.whole}, page) for part in parts):
        raise _No
    whole = _kept_whole(reader, inside)
    return Tail(
        whole, result, reader.tokenizer, reader.options, inside, once, reader.gone, sets | {whole, reader.whole},
        [*reader.line.leading_lines], reader.notes,
    )  # fmt: skip


def _sorted(reader: _Reader, reads: set[str]) -> tuple[list[Any], list[Any], set[str]]:
    """Statements of the loop, statements of the end, and the names that the loop sets."""
    inside: list[Any] = []
    once: list[Any] = []
    sets: set[str] = set()
    wanted = {*reads, *(n for kind, item in reader.items if kind == "inside" for n in reads_of(reader.tree, item))}
    wanted |= {n for values in reader.adds.values() for v in values for n in reads_of(reader.tree, v)}
    for kind, item in reader.items:
        if kind == "return":
            continue
        if kind == "once":
            once.append(item)
            continue
        small = item.body[0] if isinstance(item, cst.SimpleStatementLine) else None
        targets = targets_of(small) if small is not None else set()
        if kind == "maybe" and not targets & wanted:
            once.append(item)
            continue
        new = uncut(item, reader.texts)
        if small is not None and isinstance(small, cst.Assign):
            made = new.body[0]
            if dotted(made.value) and dotted(made.value) == dotted(made.targets[0].target):
                continue  # only cut the prompt off
        sets |= {n for a in walk(item, cst.Assign) for n in targets_of(a)}
        inside.append(new)
    return inside, once, sets


def _kept_whole(reader: _Reader, inside: list[Any]) -> str:
    """The text so far under a name of its own, where the handler changes the text before it shows it (`text = text.strip()`)."""
    if not any(reader.whole in targets_of(a) for line in inside for a in walk(line, cst.Assign)):
        return reader.whole
    shown, whole = reader.whole, reader.tree.fresh("text", "answer", "partial")
    first = inside[0]
    if isinstance(first, cst.SimpleStatementLine) and targets_of(first.body[0]) == {shown}:
        small: Any = first.body[0]
        inside[0] = first.with_changes(body=[small.with_changes(value=small.value.visit(Named(shown, whole)))])
    else:
        inside.insert(0, cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(shown))], cst.Name(whole))]))
    return whole
