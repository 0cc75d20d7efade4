"""The syntax tree of a user's program, as the code edits see it: parents, names, places, and rewriting node by node.

Nodes are LibCST's; everything that an edit does not name keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import libcst as cst

Edit = Callable[[Any], Any]
"""The node after the edits inside it → its replacement (a node, several through `FlattenSentinel`, or `cst.RemoveFromParent()`)."""


class Tree:
    """A module with parent links. `calls` and `functions` are in source order."""

    def __init__(self, module: cst.Module) -> None:
        self.module = module
        self._parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.calls: list[cst.Call] = []
        self.functions: list[cst.FunctionDef] = []
        self.names: set[str] = set()
        self._nodes: list[cst.CSTNode] = []
        """All of them in source order, so that those inside one stand behind it in a row."""
        self._order: dict[cst.CSTNode, int] = {}
        self._end: dict[cst.CSTNode, int] = {}
        self._visit(module)

    def _visit(self, node: cst.CSTNode) -> None:
        self._order[node] = len(self._nodes)
        self._nodes.append(node)
        if isinstance(node, cst.Call):
            self.calls.append(node)
        elif isinstance(node, cst.FunctionDef):
            self.functions.append(node)
        elif isinstance(node, cst.Name):
            self.names.add(node.value)
        for child in node.children:
            self._parents[child] = node
            self._visit(child)
        self._end[node] = len(self._nodes)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around this one."""
        return self._parents.get(node)

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Parents from the inside out."""
        here = self._parents.get(node)
        while here is not None:
            yield here
            here = self._parents.get(here)

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The function that holds this node, None at module level."""
        return next((n for n in self.above(node) if isinstance(n, cst.FunctionDef)), None)

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine | cst.BaseCompoundStatement | None:
        """The innermost whole statement around (or at) this node."""
        for here in (node, *self.above(node)):
            if isinstance(here, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                return here
        return None

    def before(self, a: cst.CSTNode, b: cst.CSTNode) -> bool:
        """Whether `a` begins before `b`."""
        return self._order[a] < self._order[b]

    def step(self, near: cst.CSTNode) -> str:
        """One level of indentation as the code around a node has it: files mix tabs and spaces."""
        blocks = (n for n in self.above(near) if isinstance(n, cst.IndentedBlock))
        return next((b.indent or self.module.default_indent for b in blocks), self.module.default_indent)

    def within(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        """Whether `node` is `outer` or inside it."""
        return node is outer or any(n is outer for n in self.above(node))

    def find(self, kind: type[Any], within: cst.CSTNode | None = None) -> Iterator[Any]:
        """Nodes of a kind in source order. LibCST makes a node anew to tell its children: `walk` takes twenty times as long."""
        outer = within or self.module
        if outer not in self._order:
            yield from walk(outer, kind)
            return
        for node in self._nodes[self._order[outer] : self._end[outer]]:
            if isinstance(node, kind):
                yield node

    def assigned(self, name: str, scope: cst.FunctionDef | None = None) -> list[cst.Assign | cst.AnnAssign]:
        """Plain assignments to a (dotted) name; inside `scope` and, where it has none, at module level."""
        found = [a for a in self.find(cst.Assign) if any(dotted(t.target) == name for t in a.targets)]
        found += [a for a in self.find(cst.AnnAssign) if a.value is not None and dotted(a.target) == name]
        inside = [a for a in found if scope is not None and self.within(a, scope)]
        if not inside and scope is not None and name in parameters(scope):
            return []
        return inside or [a for a in found if self.function(a) is None or "." in name or "[" in name]

    def default(self, name: str, at: cst.CSTNode) -> cst.BaseExpression | None:
        """The default of the parameter that a name means, where callers of this program decide: not of a function that is handed to
        somebody else (a web handler gets its values from the page)."""
        function = self.function(at)
        if function is None or self.assigned(name, function):
            return None
        given = next(
            (p.default for p in (*function.params.params, *function.params.kwonly_params) if p.name.value == name), None
        )
        own = function.name.value
        handed = any(
            isinstance(p, cst.Arg) and p.value is n
            for n in [*self.find(cst.Name), *self.find(cst.Attribute)]
            if dotted(n).rpartition(".")[2] == own and (p := self.parent(n)) is not None
        )
        return None if handed or function.decorators else given

    def fresh(self, *wanted: str) -> str:
        """The first of these names that the program does not use yet."""
        for name in wanted:
            if name not in self.names:
                self.names.add(name)
                return name
        number = 2
        while f"{wanted[0]}{number}" in self.names:
            number += 1
        self.names.add(f"{wanted[0]}{number}")
        return f"{wanted[0]}{number}"

    def imported(self, module: str, name: str = "") -> str:
        """What the program calls a module (`gradio` → `gr`) or a name of one (`transformers`, `TextIteratorStreamer`); "" if it does not."""
        for statement in self.find(cst.Import) if not name else ():
            for alias in statement.names:
                if dotted(alias.name) == module:
                    return alias.asname.name.value if alias.asname and isinstance(alias.asname.name, cst.Name) else module
        for statement in self.find(cst.ImportFrom) if name else ():
            if statement.module is None or dotted(statement.module) != module or isinstance(statement.names, cst.ImportStar):
                continue
            for alias in statement.names:
                if dotted(alias.name) == name:
                    return alias.asname.name.value if alias.asname and isinstance(alias.asname.name, cst.Name) else name
        return ""

    def code(self, node: cst.CSTNode) -> str:
        """Source text of a node."""
        return self.module.code_for_node(node)


def parameters(function: cst.FunctionDef) -> list[str]:
    """Names of a function's parameters, starred ones too."""
    p = function.params
    stars = [x for x in (p.star_arg, p.star_kwarg) if isinstance(x, cst.Param)]
    return [x.name.value for x in (*p.posonly_params, *p.params, *p.kwonly_params, *stars)]


def walk(node: cst.CSTNode, kind: type[Any]) -> Iterator[Any]:
    """Nodes of a kind in `node` (itself too), in source order."""
    if isinstance(node, kind):
        yield node
    for child in node.children:
        yield from walk(child, kind)


def walk_shallow(node: cst.CSTNode, kind: type[Any]) -> Iterator[Any]:
    """As `walk`, but not into functions, lambdas and classes defined inside."""
    for child in node.children:
        if isinstance(child, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            continue
        if isinstance(child, kind):
            yield child
        yield from walk_shallow(child, kind)


def dotted(node: cst.CSTNode | None) -> str:
    """`model.generate` of a name or attribute chain, `ml["model"]` of an entry by a literal key, "" for anything else."""
    if isinstance(node, cst.Subscript) and len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        left, key = dotted(node.value), text_of(node.slice[0].slice.value)
        return f'{left}["{key}"]' if left and key is not None and key.isidentifier() else ""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr.value}" if left else ""
    return ""


def callee(call: cst.Call) -> tuple[str, str]:
    """(dotted left side, last name) of what is called: `gr.Interface(` → ("gr", "Interface"), `ml["tok"](` → ("", 'ml["tok"]'); ("", "") for others."""
    if isinstance(call.func, cst.Name):
        return "", call.func.value
    if isinstance(call.func, cst.Attribute):
        return dotted(call.func.value), call.func.attr.value
    return ("", dotted(call.func)) if isinstance(call.func, cst.Subscript) else ("", "")


def text_of(node: cst.CSTNode | None) -> str | None:
    """The value of a string literal (concatenations too), None for anything else."""
    if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None


def constant(node: cst.CSTNode | None) -> bool:
    """Whether a node is a literal: text, number, True, False, None."""
    if isinstance(node, cst.UnaryOperation):
        return constant(node.expression)
    return isinstance(node, cst.SimpleString | cst.ConcatenatedString | cst.Integer | cst.Float) or dotted(node) in (
        "True",
        "False",
        "None",
    )


class _Rewriter(cst.CSTTransformer):
    def __init__(self, edits: Mapping[cst.CSTNode, Sequence[Edit]]) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        node = updated_node
        for edit in self._edits.get(original_node, ()):
            node = edit(node)
            if not isinstance(node, cst.CSTNode):
                break
        return node


class Edits:
    """Edits by node, carried out in one pass, inner ones first."""

    def __init__(self) -> None:
        self._edits: dict[cst.CSTNode, list[Edit]] = {}

    def __bool__(self) -> bool:
        return bool(self._edits)

    def touches(self, tree: Tree, node: cst.CSTNode) -> bool:
        """Whether a node or a statement around it is edited."""
        return node in self._edits or any(
            n in self._edits
            for n in tree.above(node)
            if isinstance(n, cst.BaseSmallStatement | cst.SimpleStatementLine | cst.BaseCompoundStatement)
        )

    def add(self, node: cst.CSTNode, edit: Edit) -> None:
        """Replaces a node by what `edit` makes of it."""
        self._edits.setdefault(node, []).append(edit)

    def put(self, node: cst.CSTNode, new: cst.CSTNode) -> None:
        """Replaces a node."""
        self.add(node, lambda _: new)

    def drop(self, node: cst.CSTNode) -> None:
        """Removes a node."""
        self.add(node, lambda _: cst.RemoveFromParent())

    def instead(self, line: cst.CSTNode, new: Sequence[Any]) -> None:
        """Several statements in the place of one."""
        self.add(line, lambda _: cst.FlattenSentinel(new))

    def before(self, line: cst.CSTNode, new: Any) -> None:
        """A statement before another one, under the comments and blank lines that stand there."""
        self.add(
            line,
            lambda n: cst.FlattenSentinel([new.with_changes(leading_lines=n.leading_lines), n.with_changes(leading_lines=[])]),
        )

    def after(self, line: cst.CSTNode, new: Sequence[Any]) -> None:
        """Statements after another one."""
        self.add(line, lambda n: cst.FlattenSentinel([n, *new]))

    def open_with(self, block: cst.CSTNode, new: Sequence[Any]) -> None:
        """Statements at the beginning of a block."""
        self.add(block, lambda n: n.with_changes(body=[*new, *n.body]))

    def made(self, module: cst.Module) -> cst.Module:
        """The module with all edits carried out."""
        return cst.ensure_type(module.visit(_Rewriter(self._edits)), cst.Module) if self._edits else module


def expression(text: str) -> cst.BaseExpression:
    """A parsed expression."""
    return cst.parse_expression(text)


def statements(tree: Tree, text: str) -> list[Any]:
    """Parsed statements in the file's own newline style, indented as the text says."""
    module = cst.parse_module(text, tree.module.config_for_parsing)
    if module.default_indent != tree.module.default_indent:  # LibCST leaves the usual indentation out of the blocks
        edits = Edits()
        for block in walk(module, cst.IndentedBlock):
            edits.add(block, lambda n: n.with_changes(indent=n.indent or module.default_indent))
        module = edits.made(module)
    return [_plain(s) for s in module.body]


def _plain(line: Any) -> Any:
    """A statement whose blank lines hold no indentation."""
    return line.with_changes(leading_lines=[e if e.comment else e.with_changes(indent=False) for e in line.leading_lines])


def drop_statement(tree: Tree, edits: Edits, small: cst.CSTNode) -> None:
    """Removes one simple statement; its line where it stands alone, a `pass` where a block would be left empty.

    Comments above the line stay: they move to the next statement of the block.
    """
    line = tree.parent(small)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) > 1:
        edits.drop(small)
        return
    block = tree.parent(line)
    body: Sequence[Any] = getattr(block, "body", ())
    if isinstance(block, cst.IndentedBlock) and len(body) == 1:
        edits.add(line, lambda n: n.with_changes(body=[cst.Pass()]))
        return
    comments = [e for e in line.leading_lines if e.comment]
    place = next((i for i, s in enumerate(body) if s is line), None)
    if comments and place is not None and place + 1 < len(body):
        after = body[place + 1]
        edits.add(after, lambda n: n.with_changes(leading_lines=[*line.leading_lines, *n.leading_lines]))
    edits.drop(line)
