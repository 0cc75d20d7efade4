"""What the names in a program mean: imports, assignments by scope, calls with their keywords, constants."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dstune.readers.app_source import Source

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
USUAL = {"gr": "gradio", "st": "streamlit", "sgl": "sglang", "sglang": "sglang"}
BUILT = {
    "LLM": (
        "vllm",
        frozenset(
            ("gpu_memory_utilization", "tensor_parallel_size", "quantization", "max_model_len", "enforce_eager", "dtype")
        ),
    ),
    "AsyncEngineArgs": ("vllm", frozenset(("model",))),
    "EngineArgs": ("vllm", frozenset(("model",))),
    "VLLM": ("langchain_community", frozenset(("vllm_kwargs", "tensor_parallel_size", "max_new_tokens", "trust_remote_code"))),
    "Llama": ("llama_cpp", frozenset(("n_ctx", "n_gpu_layers"))),
}
"""Classes that fragments without imports call by these names, with keywords that no other class of that name takes."""


class Missing:
    """No constant."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(slots=True)
class Assigned:
    """A value given to a name. `index`: position when a tuple is unpacked; `how`: "" | iter | aug | with."""

    value: ast.expr
    node: ast.AST
    index: int | None = None
    how: str = ""


class Names:
    """One program's names. Everything is found by one walk; questions are answered lazily."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.imports: dict[str, str] = {}
        self.modules: set[str] = set()
        self.parent: dict[ast.AST, ast.AST] = {}
        self.assigned: dict[tuple[ast.AST | None, str], list[Assigned]] = {}
        self.functions: dict[str, list[Function]] = {}
        self.lambdas: list[ast.Lambda] = []
        self.nodes: list[ast.AST] = []
        self.globals: dict[ast.AST, set[str]] = {}
        self._called: dict[str, list[ast.Call]] = {}
        self._defaults: dict[tuple[ast.AST, str], Any] = {}
        self._kinds: dict[tuple[int, int | None], str] = {}
        for tree in source.trees:
            self._walk(tree)
        for node in self.nodes:
            if isinstance(node, ast.Global):
                scope = self.scope(node)
                if scope is not None:
                    self.globals.setdefault(scope, set()).update(node.names)
        for node in self.nodes:
            self._note(node)
        self.guessed: set[str] = set()
        """Modules of a fragment without imports, known by the names that everybody gives them."""
        if not self.modules:
            own = {name for _, name in self.assigned}
            made = {n.name for n in self.nodes if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
            for node in self.nodes:
                name = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
                if name in USUAL and name not in own:
                    self.imports[name] = USUAL[name]
                    self.guessed.add(USUAL[name])
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILT:
                    module, words = BUILT[node.func.id]
                    if words & {k.arg for k in node.keywords} and node.func.id not in own | made:
                        self.imports[node.func.id] = f"{module}.{node.func.id}"
                        self.guessed.add(module)

    # -- one walk ------------------------------------------------------------------------------------------------------------

    def _walk(self, tree: ast.AST) -> None:
        stack = [tree]
        while stack:
            node = stack.pop()
            self.nodes.append(node)
            for child in reversed(list(ast.iter_child_nodes(node))):
                self.parent[child] = node
                stack.append(child)

    def _note(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    self.modules.add(alias.name)
                    self.imports[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
            case ast.ImportFrom(module=module, names=names):
                if module:
                    self.modules.add(module)
                for alias in names:
                    self.imports[alias.asname or alias.name] = f"{module or ''}.{alias.name}".lstrip(".")
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
                self._called.setdefault(called, []).append(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions.setdefault(node.name, []).append(node)
            case ast.Lambda():
                self.lambdas.append(node)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, node)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._assign(target, value, node)
            case ast.AugAssign(target=target, value=value):
                self._assign(target, value, node, how="aug")
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, value, node)
            case (
                ast.For(target=target, iter=it)
                | ast.AsyncFor(target=target, iter=it)
                | ast.comprehension(target=target, iter=it)
            ):
                self._assign(target, it, node, how="iter")
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, item.context_expr, node, how="with")

    def _assign(self, target: ast.expr, value: ast.expr, node: ast.AST, index: int | None = None, how: str = "") -> None:
        match target:
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                for i, element in enumerate(elts):
                    if isinstance(value, ast.Tuple) and len(value.elts) == len(elts) and not how:
                        self._assign(element, value.elts[i], node)
                    else:
                        self._assign(element, value, node, i, how)
            case ast.Name(id=name):
                scope = self.scope(node)
                if scope is not None and name in self.globals.get(scope, ()):
                    scope = None
                self.assigned.setdefault((scope, name), []).append(Assigned(value, node, index, how))
            case ast.Attribute(attr=attr):
                self.assigned.setdefault((None, f".{attr}"), []).append(Assigned(value, node, index, how))
            case ast.Starred(value=inner):
                self._assign(inner, value, node, index, how)

    # -- places --------------------------------------------------------------------------------------------------------------

    def scope(self, node: ast.AST) -> ast.AST | None:
        """The function that a node is in, None for the module (class bodies count as the module)."""
        above = self.parent.get(node)
        while above is not None and not isinstance(above, (*FUNCTIONS, ast.Lambda)):
            above = self.parent.get(above)
        if isinstance(above, ast.Lambda):
            return self.scope(above)
        return above

    def chain(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes above, nearest first."""
        above = self.parent.get(node)
        while above is not None:
            yield above
            above = self.parent.get(above)

    def inside(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        """The nearest node above of these kinds, in the same function."""
        for above in self.chain(node):
            if isinstance(above, kinds):
                return above
            if isinstance(above, FUNCTIONS):
                return None
        return None

    def line(self, number: int) -> str:
        """The text of a line."""
        return self.source.lines[number - 1] if 0 < number <= len(self.source.lines) else ""

    # -- names ---------------------------------------------------------------------------------------------------------------

    def find(self, name: str, at: ast.AST) -> list[Assigned]:
        """What a name was given, most probable first: the last before `at` in its scope, then outer scopes."""
        row, scope = getattr(at, "lineno", 1 << 30), self.scope(at)
        while True:
            rows = self.assigned.get((scope, name), [])
            rows = [r for r in rows if not _within(at, r.node, r.how)]
            if rows:
                before = (
                    [r for r in rows if getattr(r.node, "lineno", getattr(r.value, "lineno", 0)) <= row]
                    if scope is not None or self.scope(at) is None
                    else rows
                )
                return sorted(before or rows, key=lambda r: getattr(r.value, "lineno", 0), reverse=True)
            if scope is None:
                return []
            if self._is_parameter(scope, name):
                return []
            scope = self.scope(scope)

    @staticmethod
    def _is_parameter(scope: ast.AST, name: str) -> bool:
        if not isinstance(scope, FUNCTIONS):
            return False
        a = scope.args
        return any(p.arg == name for p in (*a.posonlyargs, *a.args, *a.kwonlyargs))

    def is_parameter(self, name: str, at: ast.AST) -> bool:
        """Whether the name is a parameter of the function around `at` (or of an outer one)."""
        scope = self.scope(at)
        while scope is not None:
            if self._is_parameter(scope, name):
                return True
            if (scope, name) in self.assigned:
                return False
            scope = self.scope(scope)
        return False

    def dotted(self, node: ast.AST) -> str:
        """`a.b.c` of a chain of names, imports resolved; "" for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            parts.append(self.imports.get(node.id, node.id))
            return ".".join(reversed(parts))
        if isinstance(node, ast.Call):
            parts.append("()")
            return ".".join(reversed(parts))
        if isinstance(node, ast.Subscript):
            parts.append("[]")
            return ".".join(reversed(parts))
        return ""

    def const(self, node: ast.AST | None, depth: int = 6) -> Any:
        """The constant that an expression is, `MISSING` where it is none or more than one is possible."""
        if node is None or depth < 0:
            return MISSING
        match node:
            case ast.Constant(value=value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.const(operand, depth - 1)
                return -value if isinstance(value, int | float) and not isinstance(value, bool) else MISSING
            case ast.BinOp(left=left, op=op, right=right):
                return _arithmetic(op, self.const(left, depth - 1), self.const(right, depth - 1))
            case ast.Attribute():
                full = self.dotted(node)
                if full.startswith("torch.") and full.count(".") == 1:
                    return full[6:]
                if isinstance(node.value, ast.Name) and node.value.id in (
                    "self",
                    "cls",
                    "args",
                    "config",
                    "cfg",
                    "settings",
                    "Config",
                    "CONFIG",
                ):
                    return self._single(
                        self.assigned.get((None, f".{node.attr}"), []) or self.assigned.get((None, node.attr), []), depth
                    )
                return MISSING
            case ast.Name(id=name):
                if name in self.imports:
                    full = self.imports[name]
                    return full[6:] if re.fullmatch(r"torch\.(?:b?float\d*|half)", full) else MISSING
                if self.is_parameter(name, node) and not self._own(name, node):
                    return self._default(name, node, depth)
                return self._single(self.find(name, node), depth)
            case ast.JoinedStr(values=values):
                parts = [self.const(v.value if isinstance(v, ast.FormattedValue) else v, depth - 1) for v in values]
                return MISSING if any(p is MISSING for p in parts) else "".join(str(p) for p in parts)
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(k.arg for k in keywords):
                return {k.arg: self.const(k.value, depth - 1) for k in keywords}
            case ast.Call(func=func, args=args) if (
                self.dotted(func) in ("torch.device", "str", "int", "float", "pathlib.Path", "os.path.expanduser") and args
            ):
                return self.const(args[0], depth - 1)
            case ast.Call(func=func, args=[_, default]) if self.dotted(func) in ("os.environ.get", "os.getenv"):
                return self.const(default, depth - 1)
            case ast.Call(func=ast.Attribute(value=value, attr="rstrip" | "strip"), args=args):
                inner = self.const(value, depth - 1)
                return (
                    inner.rstrip(self.const(args[0]) if args else None)
                    if isinstance(inner, str) and (not args or isinstance(self.const(args[0]), str))
                    else MISSING
                )
            case ast.List(elts=elts) | ast.Tuple(elts=elts):
                items: list[Any] = [self.const(e, depth - 1) for e in elts]
                return MISSING if any(i is MISSING for i in items) else items
            case ast.Dict(keys=keys, values=vs):
                return {
                    str(self.const(k, depth - 1)): self.const(v, depth - 1)
                    for k, v in zip(keys, vs, strict=True)
                    if k is not None
                }
            case ast.BoolOp(op=ast.Or(), values=[*_, last]):
                return self.const(last, depth - 1)
            case ast.Subscript(value=value, slice=key):
                table, wanted = self.const(value, depth - 1), self.const(key, depth - 1)
                if isinstance(table, dict) and wanted is not MISSING:
                    return table.get(str(wanted), MISSING)
        return MISSING

    def _own(self, name: str, node: ast.AST) -> bool:
        return any((s, name) in self.assigned for s in [self.scope(node)])

    def _single(self, rows: list[Assigned], depth: int) -> Any:
        rows = [r for r in rows if r.how in ("", "with")]
        if not rows or rows[0].index is not None:
            return MISSING
        first = self.const(rows[0].value, depth - 1)
        if first is MISSING or len(rows) == 1:
            return first
        conditional = any(self.inside(r.node, ast.If, ast.Try, ast.For, ast.While) is not None for r in rows)
        if conditional and any(self.const(r.value, depth - 1) != first for r in rows[1:]):
            return MISSING
        return first

    def _default(self, name: str, node: ast.AST, depth: int) -> Any:
        """The default of a parameter, as long as no call in this file gives another value."""
        scope = self.scope(node)
        while scope is not None and not self._is_parameter(scope, name):
            scope = self.scope(scope)
        if not isinstance(scope, FUNCTIONS):
            return MISSING
        a = scope.args
        positional = [*a.posonlyargs, *a.args]
        defaults: dict[str, ast.expr] = {
            p.arg: d for p, d in zip(positional[len(positional) - len(a.defaults) :], a.defaults, strict=True)
        }
        defaults.update({p.arg: d for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d is not None})
        key = (scope, name)
        if key not in self._defaults:
            self._defaults[key] = MISSING  # a function that hands its parameter on to itself gives no constant
            values = [self.const(g, depth - 1) for g in self._given(scope, name, [p.arg for p in positional])]
            same = bool(values) and all(v == values[0] for v in values)
            self._defaults[key] = (values[0] if same else MISSING) if values else self.const(defaults.get(name), depth - 1)
        return self._defaults[key]

    def _given(self, function: Function, name: str, order: list[str]) -> list[ast.expr]:
        """What calls in this file pass for a parameter."""
        found: list[ast.expr] = []
        place = order.index(name) - (order[0] in ("self", "cls")) if name in order else -1
        above = self.parent.get(function)
        names = [function.name]
        if function.name == "__init__" and isinstance(above, ast.ClassDef):
            names = [above.name]
        for node in (n for called in names for n in self._called.get(called, ())):
            found += [k.value for k in node.keywords if k.arg == name]
            found += node.args[place : place + 1] if place >= 0 else []
        return found

    def kind(self, node: ast.AST | None, index: int | None = None, depth: int = 12) -> str:
        """What an expression holds; `app_index.Index` knows."""
        raise NotImplementedError

    def own(self, function: ast.AST) -> Iterator[ast.AST]:
        """Nodes of a function without those of functions inside it."""
        stack = list(ast.iter_child_nodes(function))
        while stack:
            node = stack.pop(0)
            yield node
            if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                stack = list(ast.iter_child_nodes(node)) + stack


def _within(at: ast.AST, node: ast.AST, how: str) -> bool:
    """Whether a use stands inside the assignment that would give it its value (so that it means an earlier one)."""
    if how in ("iter", "with"):
        return False
    row, column = getattr(at, "lineno", -1), getattr(at, "col_offset", 0)
    first, last = getattr(node, "lineno", -2), getattr(node, "end_lineno", -2)
    if not first <= row <= last:
        return False
    return (first, getattr(node, "col_offset", 0)) <= (row, column) and (row, column) < (
        last,
        getattr(node, "end_col_offset", 0),
    )


def _arithmetic(op: ast.operator, a: Any, b: Any) -> Any:
    if isinstance(a, str) and isinstance(b, str) and isinstance(op, ast.Add):
        return a + b
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in (a, b)):
        return MISSING
    try:
        match op:
            case ast.Add():
                return a + b
            case ast.Sub():
                return a - b
            case ast.Mult():
                return a * b
            case ast.Div():
                return a / b
            case ast.FloorDiv():
                return a // b
            case ast.Pow() if abs(b) < 40:
                return a**b
    except (ArithmeticError, ValueError):
        pass
    return MISSING
