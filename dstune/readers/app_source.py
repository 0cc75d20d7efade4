"""Python source as people have it (file, notebook, snippet) → syntax trees with the line numbers of the text."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from dataclasses import dataclass, field

from dstune.model import Document, parse_json
from dstune.readers.app_edit_notebook import PYTHON_CELL, is_notebook


@dataclass(frozen=True, slots=True)
class Source:
    """Parsed pieces of one text. `lines` is what line numbers count; `lost` are (first, last) lines that no parser takes.

    `comments` is the prose of the file (comments and docstrings), which may excuse but never accuses.
    """

    path: str
    lines: list[str]
    trees: list[ast.Module]
    lost: list[tuple[int, int]] = field(default_factory=list)
    comments: str = ""
    requirements: str = ""
    notebook: bool = False
    too_long: bool = False


LARGEST = 600_000
"""Characters of code. A program of 450 kB takes 1.7 s of CPU, a table of as many numbers 250 MB; nobody writes that by hand."""
_MAGIC = re.compile(r"^\s*[%!?]|^\s*\S+\?\s*$")
_PIP = re.compile(r"^\s*[%!]\s*(?:sys\.executable\s+-m\s+)?(?:uv\s+)?pip3?\s+install\s+(.*)$", re.M)
_SCRIPT = re.compile(r"(?ms)^# /// script\s*$(.*?)^# ///\s*$")


def source_of(document: Document) -> Source:
    """The trees of a document. Never raises: what cannot be parsed stands in `lost`."""
    text, notebook = code_of(document)
    if text is None:
        return Source(document.path, [], [], [(1, document.text.rstrip().count("\n") + 1)], notebook=True)
    if len(text) > LARGEST:
        return Source(document.path, [], [], notebook=notebook, too_long=True)
    requirements = "\n".join(m[1] for m in _PIP.finditer(text)) + "\n" + "\n".join(m[1] for m in _SCRIPT.finditer(text))
    lines = text.splitlines()
    # magics and shell lines of notebooks become `pass` at their own depth, so that every line keeps its number
    code = _without_magics(lines)
    trees, lost = _parse(code)
    return Source(document.path, lines, trees, lost, _prose(lines), requirements, notebook)


def code_of(document: Document) -> tuple[str | None, bool]:
    """The code of a program or of a notebook's cells, and whether it is one; None of a notebook that is cut off."""
    text = document.text
    if is_notebook(document.path, text) or text.lstrip().startswith('{"cells"'):
        cells = _cells(text)
        if cells is not None:
            return cells, True
        if text.lstrip().startswith(("{", "[")):  # cut off, or JSON of another kind: the braces may well parse as Python
            return None, True
    return text, False


def _without_magics(lines: list[str]) -> list[str]:
    """Shell lines and magics of a notebook (with the lines they continue on) as `pass`."""
    found: list[str] = []
    continued = False
    for line in lines:
        magic = continued or (bool(_MAGIC.match(line)) and not line.lstrip().startswith("#"))
        found.append(re.sub(r"\S.*$", "" if continued else "pass", line) if magic else line)
        continued = magic and line.rstrip().endswith("\\")
    return found


def _cells(text: str) -> str | None:
    """Code cells of a notebook, joined."""
    try:
        cells = parse_json(text)["cells"]
        found = []
        for cell in cells:
            if cell.get("cell_type") == "code":
                body = cell.get("source", "")
                body = "".join(body) if isinstance(body, list) else str(body)
                if not body.lstrip().startswith("%%") or PYTHON_CELL.match(body.lstrip()):
                    found.append(body.rstrip("\n"))
        return "\n\n".join(found) + "\n"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _prose(lines: list[str]) -> str:
    found = [m[1] for line in lines if (m := re.search(r"#\s?(.*)$", line))]
    found += re.findall(r'"""([\s\S]*?)"""', "\n".join(lines))
    return "\n".join(found)


def _try(code: list[str], first: int) -> ast.Module | None:
    text = "\n".join(code)
    for form in (text, textwrap.dedent(text)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(form)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if first > 1:
            ast.increment_lineno(tree, first - 1)
        return tree
    return None


def _parse(code: list[str]) -> tuple[list[ast.Module], list[tuple[int, int]]]:
    """The whole text, else its largest pieces that parse, cut at the lines that a parser stops at."""
    whole = _try(code, 1)
    if whole is not None:
        return [whole], []
    trees: list[ast.Module] = []
    lost: list[tuple[int, int]] = []
    # cut where a new statement starts at the least depth; a block that fails alone is cut line by line
    blocks = _blocks(code)
    held: list[tuple[int, list[str]]] = []

    def flush() -> None:
        if held:
            body = [line for _, part in held for line in part]
            tree = _try(body, held[0][0])
            if tree is not None:
                trees.append(tree)
            else:
                for first, part in held:
                    alone = _try(part, first)
                    if alone is not None:
                        trees.append(alone)
        held.clear()

    for first, part in blocks:
        if _try(part, first) is not None:
            held.append((first, part))
            continue
        flush()
        for number, piece in _smaller(part, first):
            tree = _try(piece, number)
            if tree is not None:
                trees.append(tree)
            elif any(line.strip() for line in piece):
                lost.append((number, number + len(piece) - 1))
    flush()
    return trees, lost


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _blocks(code: list[str]) -> list[tuple[int, list[str]]]:
    """Statements of the least depth, each with what is indented below it; brackets stay together."""
    filled = [line for line in code if line.strip() and not line.lstrip().startswith("#")]
    least = min((_depth(line) for line in filled), default=0)
    found: list[tuple[int, list[str]]] = []
    open_ = 0
    for number, line in enumerate(code, 1):
        bare = re.sub(r"#.*$|\"[^\"\n]*\"|'[^'\n]*'", "", line)
        starts = (
            bool(line.strip())
            and _depth(line) <= least
            and not re.match(r"\s*(?:else|elif|except|finally)\b|\s*[)\]}]|\s*#", line)
        )
        decorated = bool(found) and found[-1][1][-1].lstrip().startswith("@")
        anew = starts and re.match(r"\s*(?:(?:async\s+)?def|class|import|from|while|return|with)\b", line)
        if not found or (starts and (open_ <= 0 or anew) and not decorated):
            found.append((number, [line]))
            open_ = 0
        else:
            found[-1][1].append(line)
        open_ += sum(bare.count(c) for c in "([{") - sum(bare.count(c) for c in ")]}")
    return found


def _smaller(part: list[str], first: int) -> list[tuple[int, list[str]]]:
    """A block that does not parse: completed if it only breaks off, else its body's statements, else its lines."""
    mended = _mended(part, first)
    if mended is not None:
        return [mended]
    if len(part) == 1:
        return [(first, part)]
    inner = _blocks(part[1:])
    found: list[tuple[int, list[str]]] = [(first, [part[0]])]
    for number, piece in inner:
        if _try(piece, 1) is not None or len(piece) == 1:
            found.append((first + number, piece))
        else:
            found.extend(
                _smaller(piece, first + number)
                if len(piece) < len(part) - 1
                else [(first + number + i, [p]) for i, p in enumerate(piece)]
            )
    return found


def _mended(part: list[str], first: int) -> tuple[int, list[str]] | None:
    """A block that breaks off (`def f():` without a body, an open bracket, a lone `, ...)`), closed."""
    body = list(part)
    while len(body) > 1 and not body[-1].strip():
        body.pop()
    last = body[-1]
    tries = [[*body, " " * (_depth(last) + 4) + "pass"]]
    bare = [re.sub(r",\s*\.\.\.\s*(?=[,)#]|$)", "", re.sub(r"\(\s*\.\.\.\s*,\s*", "(", line)) for line in body]
    tries.append(bare)
    tries.append([*bare[:-1], re.sub(r"\s*#.*$", "", bare[-1]).rstrip().rstrip(",") + _closing("\n".join(bare))])
    if re.match(r"\s*(?:else|elif|except|finally)\b", body[0]) and len(body) > 1:
        tries.append(["if 1:", *body[1:]])
    for attempt in tries:
        if _try(attempt, 1) is not None:
            return first, attempt
    return None


def _closing(text: str) -> str:
    """The brackets that a text leaves open, closed."""
    stack: list[str] = []
    pairs = {"(": ")", "[": "]", "{": "}"}
    for char in re.sub(r"#.*$|\"[^\"\n]*\"|'[^'\n]*'", "", text, flags=re.M):
        if char in pairs:
            stack.append(pairs[char])
        elif stack and char == stack[-1]:
            stack.pop()
    return "".join(reversed(stack))
