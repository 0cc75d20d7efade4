"""Users' files and pastes → settings, facts and hits, with file and line.

`READERS` maps a kind to the module that has `read(document) -> facts and gaps`; a kind's writer, where it has one (all but app and log), is the `write` of the same module:
`write(text, {"vllm.max_num_seqs": 64, "vllm.quantization": None}) -> text` puts declared settings where they live and leaves every other
character alone; None takes a setting out; a setting that has no place in the text (another engine's, no command) is left out, so an unchanged
text means that nothing could be set.
"""

from __future__ import annotations

import gzip
import importlib
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import IO

from dstune.errors import UnobservableError
from dstune.lang import say
from dstune.model import Document, Evidence, Fact, Gap, Hit, family_of
from dstune.readers.quoted import describes, unquoted
from dstune.readers.scan import blocks, clean, open_log, scanner
from dstune.readers.shell import is_supervisor
from dstune.readers.unwrap import unwrapped

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
PARSED = 400_000
"""Characters up to which launch scripts, Dockerfiles and compose files are parsed; 7 MB of words would take a minute and 600 MB."""
_NO_TEXT = bytes(c for c in range(32) if c not in b"\a\b\t\n\f\r\x1b") + b"\x7f"

_BY_NAME = (
    (re.compile(r"(^|/)Modelfile[^/]*$"), "config"),
    (re.compile(r"(^|/)(Dockerfile|Containerfile)[^/]*$|\.dockerfile$", re.I), "dockerfile"),
    (re.compile(r"(^|/)[^/]*compose[^/]*\.ya?ml$", re.I), "compose"),
    (re.compile(r"\.(py|pyw|ipynb)$", re.I), "app"),
    (re.compile(r"\.(sh|bash|zsh|cmd|bat|ps1|service)$|(^|/)Makefile$", re.I), "command"),
    (re.compile(r"\.(ya?ml|json|toml|ini|cfg|conf|env)$|(^|/)\.env|(^|/)requirements[^/]*\.txt$", re.I), "config"),
    (re.compile(r"\.(log|out|err)(\.\d+)?(\.gz)?$", re.I), "log"),
)
_MODELFILE = (
    r"(?=(?:[^\n]*\n)*?(?:PARAMETER|TEMPLATE|SYSTEM|ADAPTER|MESSAGE)\s)(?!(?:[^\n]*\n)*?(?:RUN|COPY|CMD|ENTRYPOINT|WORKDIR)\s)"
)
_BY_CONTENT = (
    (re.compile(r"\A\s*(?:#[^\n]*\n\s*)*FROM\s+\S+" + _MODELFILE), "config"),  # Ollama's, which begins as a Dockerfile does
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
_SERVICES = re.compile(
    r"^services:[ \t]*(?:#[^\n]*)?\n(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]+[\w.-]+:(?:[^\n]*\n)*?[ \t]+(?:image|build):", re.M
)
"""A compose file of any name: services that have an image."""


def recognise(path: str, text: str) -> str:
    """The kind of a file by its name, else by its content; what nothing recognises is a log."""
    for pattern, kind in _BY_NAME:
        if pattern.search(path):
            if kind == "config" and is_supervisor(text[:20_000]):
                return "command"
            return (
                "compose"
                if kind == "config" and _SERVICES.search(text[:20_000]) and re.search(r"\.ya?ml$", path, re.I)
                else kind
            )
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
            say(f"{path} is a folder", f"{path} 是文件夹"),
            say("files are read, not folders", "这里要的是文件"),
            f"dstune doctor {path.rstrip('/')}/*",
        )
    size = 0 if path == "-" else _size(path)
    report = (lambda done: progress(name, done)) if progress else None
    with stdin if path == "-" else open_log(path) as opened:
        stream = _Unpacked(opened, name)
        whole = size <= WHOLE and forced in (None, *READERS)
        head = stream.read(WHOLE + 1 if whole else _HEAD)
        if whole and len(head) <= WHOLE:
            found, document = _read_whole(name, decoded(head, name), forced)
            return found.plus(gaps=stream.gaps), document
        if _binary(head):
            raise _no_text(name)
        halves = None
        if path != "-" and not isinstance(opened, gzip.GzipFile):
            halves = importlib.import_module("dstune.readers.scan_halves").scan_halves(path, name, progress=report)
        hits, facts = halves or scanner("log").scan(blocks(_Joined(head, stream), report), "log", name)
    return Evidence(tuple(facts), tuple(stream.gaps), tuple(hits)), None


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError as error:
        raise UnobservableError(
            say(f"{path} cannot be read", f"无法读取 {path}"), error.strerror or str(error), say("check the path", "检查路径")
        ) from None


class _Unpacked:
    """A stream that ends where its archive is damaged or cut off; `gaps` says so. Raises `UnobservableError` where nothing is left."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream, self._name = stream, name
        self._any = False
        self.gaps: list[Gap] = []

    def read(self, n: int) -> bytes:
        """Up to `n` bytes."""
        if not isinstance(self._stream, gzip.GzipFile):
            return self._stream.read(n)
        parts: list[bytes] = []
        while n > 0 and not self.gaps:
            try:
                part = self._stream.read1(n)  # read() would lose what came before the damage
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                reason = say(f"the archive {self._name} is damaged: {error}", f"压缩文件 {self._name} 已损坏：{error}")
                if not (self._any or parts):
                    raise UnobservableError(reason, "", say("copy it again", "请重新复制该文件")) from None
                self.gaps.append(Gap("log", "*", reason, say("copy it again", "请重新复制该文件")))
                break
            if not part:
                break
            parts.append(part)
            n -= len(part)
        self._any = self._any or bool(parts)
        return b"".join(parts)


class _Joined:
    """A stream with bytes put back in front of it."""

    def __init__(self, head: bytes, rest: _Unpacked) -> None:
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
    if _binary(data):
        raise _no_text(name)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    try:
        return data.decode("gb18030")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


_HEAD = 1 << 16


def _binary(data: bytes) -> bool:
    """By the mark of a program, an eighth of NUL, or a sixteenth of characters that no text has (random bytes hold a tenth)."""
    head = data[:_HEAD]
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return False
    odd = len(head) - len(head.translate(None, _NO_TEXT)) - head.count(0)
    return head[:4] == b"\x7fELF" or head.count(0) > len(head) // 8 or odd > max(len(head) // 16, 64)


def _no_text(name: str) -> UnobservableError:
    return UnobservableError(
        say(f"{name} is a binary file", f"{name} 是二进制文件"),
        "",
        say("give a log, a source file or a configuration", "请给日志、源码或配置文件"),
    )


def _read_whole(name: str, text: str, forced: str | None) -> tuple[Evidence, Document]:
    kind = forced or recognise(name, text)
    if not forced and describes(name):
        return Evidence(), Document(name, kind, text)
    document = Document(name, kind, text)
    return read_document(document), document


def read_document(document: Document) -> Evidence:
    """Facts, gaps and hits of one document."""
    text_kind = TEXT_KIND.get(document.kind, document.kind)
    if text_kind == "log":
        document = replace(document, text=unquoted(clean(document.text)))
    text = unwrapped(document.text) if text_kind == "log" else without_comments(document.kind, _source(document))
    hits, facts = scanner(text_kind).scan([(1, text)], text_kind, document.path)
    gaps: list[Gap] = []
    if document.kind in ("command", "compose", "dockerfile") and len(text) > PARSED:
        gaps.append(
            Gap(
                TEXT_KIND.get(document.kind, "config"),
                "*",
                say(f"{document.path} is too long to be parsed", f"{document.path} 过长，未解析"),
            )
        )
    else:
        module = importlib.import_module(READERS[document.kind])
        for item in module.read(document):
            if isinstance(item, Gap):
                gaps.append(item)
            else:
                facts.append(item)
    if text_kind == "command":  # people paste the output below the command, and the command above the output
        more, extra = scanner("log").scan([(1, unwrapped(unquoted(text)))], "log", document.path)
        hits += [h for h in more if h.kind == "log"]
        facts += extra
    found = Evidence(tuple(facts), tuple(gaps), tuple(_unique(hits)))
    if document.kind == "app":
        from dstune.readers.notebook import outputs

        for output in outputs(document):
            found = found.merged(read_document(output))
    return found


def _source(document: Document) -> str:
    """The text of a file; of a notebook its code alone, in which its facts count lines too."""
    if document.kind != "app" or not document.text.lstrip().startswith("{"):
        return document.text
    from dstune.readers.app_source import code_of

    return code_of(document)[0] or ""


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


_WIDE = 50_000
"""Characters of a line that is tokenized: a number of 7 million digits would take 4 GB."""


def _python_without_comments(text: str) -> str:
    import io
    import tokenize

    lines = text.splitlines(keepends=True)
    if len(text) > WHOLE // 8 or any(len(line) > _WIDE for line in lines):
        return re.sub(r"(?m)(^|\s)#.*$", r"\1", text)
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


PER_FILE = frozenset(
    ("app", "generate", "transformers", "gradio", "client", "dockerfile", "compose", "tokenizer", "docker", "requirements")
)


def with_subject(facts: Iterable[Fact], subject: str) -> list[Fact]:
    """The facts under another subject."""
    return [replace(f, subject=subject) for f in facts]
