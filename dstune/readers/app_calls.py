"""The calls of a program, with `**dicts`, partials, threads and executors looked through."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dstune.readers.app_names import Names
from dstune.readers.app_source import Source


@dataclass(slots=True)
class Called:
    """A call that will happen: its function, arguments and keywords with partials, `**dicts` and threads looked through.

    `via`: "" for a plain call, else thread | executor | partial | lambda. `node` is where it is written.
    """

    func: ast.expr
    name: str
    args: list[ast.expr]
    keywords: dict[str, ast.expr]
    node: ast.Call
    via: str = ""
    open_: bool = False
    doubled: list[str] = field(default_factory=list)


class Calls(Names):
    """Names and calls."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._calls: list[Called] | None = None

    # -- calls ---------------------------------------------------------------------------------------------------------------

    def keywords(self, call: ast.Call) -> tuple[dict[str, ast.expr], bool]:
        """Keywords of a call with `**dict` followed; True when something stays open."""
        found: dict[str, ast.expr] = {}
        open_ = False
        for k in call.keywords:
            if k.arg is not None:
                found[k.arg] = k.value
            else:
                inner, unsure = self.dict_of(k.value)
                found.update({n: v for n, v in inner.items() if n not in found})
                open_ = open_ or unsure
        return found, open_

    def dict_of(self, node: ast.AST, depth: int = 4) -> tuple[dict[str, ast.expr], bool]:
        """Entries of a dictionary expression by name; True when it may hold more."""
        if depth < 0:
            return {}, True
        match node:
            case ast.Dict(keys=keys, values=values):
                found: dict[str, ast.expr] = {}
                open_ = False
                for key, value in zip(keys, values, strict=True):
                    if key is None:
                        inner, unsure = self.dict_of(value, depth - 1)
                        found.update(inner)
                        open_ = open_ or unsure
                    elif isinstance(name := self.const(key), str):
                        found[name] = value
                return found, open_
            case ast.Call(func=ast.Name(id="dict"), args=args, keywords=keywords):
                found, open_ = {}, False
                for arg in args:
                    inner, unsure = self.dict_of(arg, depth - 1)
                    found.update(inner)
                    open_ = open_ or unsure
                for k in keywords:
                    if k.arg:
                        found[k.arg] = k.value
                    else:
                        inner, unsure = self.dict_of(k.value, depth - 1)
                        found.update(inner)
                        open_ = open_ or unsure
                return found, open_
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                a, b = self.dict_of(left, depth - 1), self.dict_of(right, depth - 1)
                return {**a[0], **b[0]}, a[1] or b[1]
            case ast.Name(id=name):
                if self.kind(node) in ("batch", "ids"):
                    return {}, False
                rows = [r for r in self.find(name, node) if r.how == "" and r.index is None]
                if not rows:
                    return {}, not re.fullmatch(r"(?:model_)?inputs?|batch|enc|encoded|encodings?|ids|tokens|tokenized|x", name)
                found, open_ = self.dict_of(rows[0].value, depth - 1)
                more, unsure = self._updates(name, node)
                return {**found, **more}, open_ or unsure
            case ast.Attribute(attr=attr):
                rows = self.assigned.get((None, f".{attr}"), [])
                return self.dict_of(rows[-1].value, depth - 1) if len(rows) == 1 else ({}, True)
        if self.kind(node) in ("batch", "ids"):
            return {}, False
        return {}, True

    def _updates(self, name: str, at: ast.AST) -> tuple[dict[str, ast.expr], bool]:
        """`d["x"] = …` and `d.update(x=…)`; True when something unknown is added."""
        found: dict[str, ast.expr] = {}
        open_ = False
        for node in self.nodes:
            match node:
                case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=n), slice=key)], value=value) if n == name:
                    if isinstance(k := self.const(key), str):
                        found[k] = self._perhaps(node, value, at)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=n), attr="update"), args=args, keywords=keywords) if (
                    n == name
                ):
                    found.update({k2.arg: k2.value for k2 in keywords if k2.arg})
                    open_ = open_ or any(k2.arg is None for k2 in keywords)
                    for arg in args:
                        if not (isinstance(arg, ast.Name) and arg.id == name):
                            inner, unsure = self.dict_of(arg, 2)
                            found.update(inner)
                            open_ = open_ or unsure
        return found, open_

    def _perhaps(self, node: ast.stmt, value: ast.expr, at: ast.AST) -> ast.expr:
        """A value that is set under a condition which its use does not stand under: either is possible."""
        test = self.inside(node, ast.If)
        if not isinstance(test, ast.If) or test in self.chain(at):
            return value
        return ast.copy_location(ast.IfExp(test=test.test, body=value, orelse=ast.Name(id="", ctx=ast.Load())), value)

    def calls(self) -> list[Called]:
        """Every call in order of the text, threads and partials looked through (those give an additional entry)."""
        if self._calls is not None:
            return self._calls
        self._calls = found = []
        for node in self.nodes:
            if not isinstance(node, ast.Call):
                continue
            keywords, open_ = self.keywords(node)
            name = self.dotted(node.func)
            found.append(Called(node.func, name, node.args, keywords, node, "", open_, _doubled(node)))
            found.extend(self._indirect(node, name, keywords, open_))
        return found

    def _indirect(self, node: ast.Call, name: str, keywords: dict[str, ast.expr], unsure: bool) -> Iterator[Called]:
        last = name.rsplit(".", 1)[-1]
        target: ast.expr | None = None
        args: list[ast.expr] = []
        rest: dict[str, ast.expr] = {}
        via, open_ = "", False
        if last == "Thread" or last == "Process":
            target, via = keywords.get("target"), "thread"
            packed = keywords.get("args")
            args = list(packed.elts) if isinstance(packed, ast.Tuple | ast.List) else []
            if "kwargs" in keywords:
                rest, open_ = self.dict_of(keywords["kwargs"])
        elif (
            last in ("submit", "map", "to_thread", "run_in_threadpool", "partial", "run_sync", "start_new_thread") and node.args
        ):
            target, args, via = node.args[0], node.args[1:], "partial" if last == "partial" else "executor"
            rest, open_ = {k: v for k, v in keywords.items() if k not in ("limiter", "cancellable", "timeout")}, unsure
        elif last == "run_in_executor" and len(node.args) > 1:
            target, args, via = node.args[1], node.args[2:], "executor"
        if target is None:
            return
        if isinstance(target, ast.Lambda):
            return
        if isinstance(target, ast.Call):  # executor of a partial: the partial itself gives the entry
            return
        if isinstance(target, ast.Name):
            rows = [r for r in self.find(target.id, target) if r.how == ""]
            if rows and isinstance(rows[0].value, ast.Call) and self.dotted(rows[0].value.func).endswith("partial"):
                return
        yield Called(target, self.dotted(target), args, rest, node, via, open_)

    def completed(self, call: Called) -> Called:
        """A partial with the keywords that its later calls add: `write = partial(model.generate, …)`, `write(**ids, max_new_tokens=9)`."""
        over = self.parent.get(call.node)
        targets = over.targets if isinstance(over, ast.Assign) else [over.target] if isinstance(over, ast.AnnAssign) else []
        names = {self.dotted(t) for t in targets} - {""}
        keywords, open_ = dict(call.keywords), call.open_
        for node in self.nodes if names else ():
            if not isinstance(node, ast.Call):
                continue
            more, unsure = self.keywords(node)
            handed = [*node.args, *more.values()]
            if self.dotted(node.func) not in names and not any(self.dotted(a) in names for a in handed):
                continue
            if "kwargs" in more and "target" in more:
                more, unsure = self.dict_of(more["kwargs"])
            keywords.update(more)
            open_ = open_ or unsure
        return replace(call, keywords=keywords, open_=open_)


def _doubled(node: ast.Call) -> list[str]:
    names = [k.arg for k in node.keywords if k.arg]
    return [n for n in set(names) if names.count(n) > 1]
