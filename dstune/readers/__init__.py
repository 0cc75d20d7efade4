"""Users' files and pastes → settings, facts and hits, with file and line.

`READERS` maps a kind to the module that has `read(document) -> facts and gaps`; a kind's writer, where it has one (all but app and log), is the `write` of the same module:
`write(text, {"vllm.max_num_seqs": 64, "vllm.quantization": None}) -> text` puts declared settings where they live and leaves every other
character alone; None takes a setting out; a setting that has no place in the text (another engine's, no command) is left out, so an unchanged
text means that nothing could be set.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import IO

from dstune.errors import UnobservableError
from dstune.lang import say
from dstune.model import Document, Evidence, Fact, Gap, Hit, family_of
from dstune.readers.scan import BLOCK, blocks, clean, open_log, scanner

READERS: dict[str, str] = {
    "app": "dstune.readers.app",
    "command": "dstune.readers.command",
    "compose": "dstune.readers.compose",
    "dockerfile": "dstune.readers.dockerfile",
    "config": "dstune.readers.config",
    "log": "dstune.readers.paste",
}
TEXT_KIND = {"compose": "container", "dockerfile": "container"}
"""The kind of text that signatures call these files."""
WHOLE = 8 << 20
"""Files above 8 MB are read as logs, block by block: no source or configuration is that long."""

_BY_NAME = (
    (re.compile(r"(^|/)(Dockerfile|Containerfile)[^/]*$|\.dockerfile$", re.I), "dockerfile"),
    (re.compile(r"(^|/)[^/]*compose[^/]*\.ya?ml$", re.I), "compose"),
    (re.compile(r"\.(py|pyw|ipynb)$", re.I), "app"),
    (re.compile(r"\.(sh|bash|zsh|cmd|bat|ps1|service)$|(^|/)Makefile$", re.I), "command"),
    (re.compile(r"\.(ya?ml|json|toml|ini|cfg|conf|env)$|(^|/)\.env|(^|/)requirements[^/]*\.txt$", re.I), "config"),
    (re.compile(r"\.(log|out|err)(\.\d+)?(\.gz)?$", re.I), "log"),
)
_BY_CONTENT = (
    (re.compile(r"\A\s*(?:#[^\n]*\n\s*)*FROM\s+\S+", re.I), "dockerfile"),
    (re.compile(r"^services:\s*$", re.M), "compose"),
    (re.compile(r"\A#!.*\bpython"), "app"),
    (re.compile(r"\A#!.*\b(?:ba|z|da)?sh\b"), "command"),
    (re.compile(r"^Traceback \(most recent call last\)|^(?:INFO|ERROR|WARNING)\b|\d\d:\d\d:\d\d", re.M), "log"),
    (re.compile(r"^(?:import \w+|from [\w.]+ import )", re.M), "app"),
    (
        re.compile(
            r"\A\s*(?:\$ |export |sudo )?(?:[A-Z_]+=\S+ +)*(?:vllm serve|python3? -m (?:vllm|sglang)|docker (?:run|compose)|podman run"
            r"|llama-server|\./llama|sglang serve|transformers serve|ollama )"
        ),
        "command",
    ),
)


def recognise(path: str, text: str) -> str:
    """The kind of a file by its name, else by its content; what nothing recognises is a log."""
    for pattern, kind in _BY_NAME:
        if pattern.search(path):
            return kind
    head = text[:20_000]
    return next((kind for pattern, kind in _BY_CONTENT if pattern.search(head)), "log")


def read_files(
    paths: Sequence[str],
    kinds: dict[str, str] | None = None,
    stdin: IO[bytes] | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> tuple[Evidence, list[Document]]:
    """Evidence of all files, and the ones that were read whole. `-` is standard input; `kinds` overrides recognition by path.

    Raises `UnobservableError` for a file that cannot be read or is empty of text.
    """
    evidence, documents = Evidence(), []
    for path in paths:
        forced = (kinds or {}).get(path)
        found, document = _read_one(path, forced, stdin or sys.stdin.buffer, progress)
        if document is not None:
            documents.append(document)
        evidence = evidence.merged(_renumbered(found, evidence))
    return evidence, documents


def read_documents(documents: Iterable[Document]) -> Evidence:
    """Evidence of documents that are in memory, as `read_files` gives it of files."""
    evidence = Evidence()
    for document in documents:
        evidence = evidence.merged(_renumbered(read_document(document), evidence))
    return evidence


def _read_one(
    path: str, forced: str | None, stdin: IO[bytes], progress: Callable[[str, int], None] | None
) -> tuple[Evidence, Document | None]:
    name = "<stdin>" if path == "-" else path
    if path != "-" and os.path.isdir(path):
        raise UnobservableError(
            f"{path} is a folder", say("files are read, not folders", "这里要的是文件"), f"dstune doctor {path}/*"
        )
    size = 0 if path == "-" else _size(path)
    report = (lambda done: progress(name, done)) if progress else None
    with stdin if path == "-" else open_log(path) as stream:
        if size <= WHOLE and forced in (None, *READERS):
            head = stream.read(WHOLE + 1)
            if len(head) <= WHOLE:
                return _read_whole(name, decoded(head, name), forced)
            hits, facts = scanner("log").scan(blocks(_Joined(head, stream), report), "log", name)
        else:
            hits, facts = scanner("log").scan(blocks(stream, report), "log", name)
    return Evidence(tuple(facts), (), tuple(hits)), None


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError as error:
        raise UnobservableError(f"{path} cannot be read", error.strerror or str(error), "check the path") from None


class _Joined:
    """A stream with bytes put back in front of it."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = head, rest

    def read(self, n: int) -> bytes:
        """Up to `n` bytes."""
        if self._head:
            out, self._head = self._head[:n], self._head[n:]
            return out
        return self._rest.read(n)


def decoded(data: bytes, name: str) -> str:
    """Text of a file's bytes: UTF-8, UTF-16 by its mark, GB18030 where it is not UTF-8. Raises for a binary."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    if data[:4] == b"\x7fELF" or (data and data[:65536].count(0) > len(data[:65536]) // 8):
        raise UnobservableError(
            f"{name} is a binary file", "", say("give a log, a source file or a configuration", "请给日志、源码或配置文件")
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    try:
        return data.decode("gb18030")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _read_whole(name: str, text: str, forced: str | None) -> tuple[Evidence, Document]:
    kind = forced or recognise(name, text)
    text = clean(text) if kind == "log" else text
    document = Document(name, kind, text)
    return read_document(document), document


def read_document(document: Document) -> Evidence:
    """Facts, gaps and hits of one document."""
    text_kind = TEXT_KIND.get(document.kind, document.kind)
    text = document.text if text_kind == "log" else without_comments(document.kind, document.text)
    hits, facts = scanner(text_kind).scan([(1, text)], text_kind, document.path)
    gaps: list[Gap] = []
    module = importlib.import_module(READERS[document.kind])
    for item in module.read(document):
        if isinstance(item, Gap):
            gaps.append(item)
        else:
            facts.append(item)
    if text_kind == "command":  # people paste the output below the command, and the command above the output
        more, extra = scanner("log").scan([(1, text)], "log", document.path)
        hits += [h for h in more if h.kind == "log"]
        facts += extra
    return Evidence(tuple(facts), tuple(gaps), tuple(_unique(hits)))


def _unique(hits: Iterable[Hit]) -> list[Hit]:
    seen: dict[tuple[str, int, int, int], Hit] = {}
    for hit in hits:
        seen.setdefault((hit.cause, hit.way, hit.part, hit.line), hit)
    return list(seen.values())


def without_comments(kind: str, text: str) -> str:
    """The text with comments blanked and every line where it was: commented-out code is not code."""
    if kind == "app":
        return _python_without_comments(text)
    mark = r"(?m)(^|(?<=\s))#(?!!).*$"
    return re.sub(mark, "", text)


def _python_without_comments(text: str) -> str:
    import io
    import tokenize

    lines = text.splitlines(keepends=True)
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                ending = lines[row - 1][len(lines[row - 1].rstrip("\r\n")) :]
                lines[row - 1] = lines[row - 1][:column].rstrip() + ending
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return re.sub(r"(?m)(^|\s)#.*$", r"\1", text)
    return "".join(lines)


def _renumbered(new: Evidence, old: Evidence) -> Evidence:
    """Subjects of file families get their own number per file, so that two apps stay two (`app`, `app1`)."""
    moved: dict[str, str] = {}
    for subject in dict.fromkeys(f.subject for f in new.facts):
        family = family_of(subject)
        if family not in PER_FILE:
            continue
        taken = {*old.subjects(family), *moved.values()}
        name, number = subject, 0
        while name in taken:
            number += 1
            name = f"{family}{number}"
        moved[subject] = name
    if all(a == b for a, b in moved.items()):
        return new
    return Evidence(
        tuple(replace(f, subject=moved.get(f.subject, f.subject)) for f in new.facts), new.gaps, new.hits, new.origin
    )


PER_FILE = frozenset(("app", "generate", "transformers", "gradio", "client", "dockerfile", "compose", "tokenizer", "docker", "requirements"))


def with_subject(facts: Iterable[Fact], subject: str) -> list[Fact]:
    """The facts under another subject."""
    return [replace(f, subject=subject) for f in facts]
