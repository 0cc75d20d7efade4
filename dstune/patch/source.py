"""A user's file as it is read: its bytes, its encoding and line ends, and the diff to another text. Nothing is written here."""

from __future__ import annotations

import difflib
import os
import stat
from dataclasses import dataclass, field

from dstune.errors import DstuneError, Exit
from dstune.lang import say

_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


@dataclass(frozen=True, slots=True)
class Source:
    """A file as it was read. `text` has `\\n` endings and no byte order mark; `lines` keeps the bytes of every line.

    `real` is where symlinks lead. A file that does not exist yet has `data` None.
    """

    path: str
    real: str
    data: bytes | None
    text: str
    encoding: str = "utf-8"
    mark: bytes = b""
    newline: bytes = b"\n"
    lines: tuple[bytes, ...] = field(default=(), repr=False)

    def encoded(self, text: str) -> bytes:
        """The bytes of an edited text: unchanged lines keep theirs exactly, new ones get the file's ending and encoding."""
        if self.data is None:
            return text.encode()
        if text == self.text:
            return self.data
        old, new = self.text.split("\n"), text.split("\n")
        out: list[bytes] = []
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag == "equal":
                out += self.lines[i1:i2]
            else:
                out += [line.encode(self.encoding, _errors(self.encoding)) + self.newline for line in new[j1:j2]]
        feed = "\n".encode(self.encoding)
        body = [line if line.endswith(feed) else line + self.newline for line in out[:-1]]  # a line that was the last one
        last = out[-1]
        return (
            self.mark
            + b"".join(body)
            + (last.removesuffix(self.newline) if last.endswith(self.newline) else last.removesuffix(feed))
        )


def _errors(encoding: str) -> str:
    return "surrogatepass" if encoding.startswith("utf-16") else "surrogateescape"


def read(path: str) -> Source:
    """The file and how its text is stored. Raises `DstuneError` for what is no text file that could be changed."""
    real = os.path.realpath(path)
    try:
        kind = os.stat(real).st_mode
        if stat.S_ISDIR(kind) or not stat.S_ISREG(kind):
            raise DstuneError(
                say(f"{path} is no regular file", f"{path} 不是普通文件"),
                "",
                say("name a file", "请指定文件"),
                Exit.UNOBSERVABLE,
            )
        with open(real, "rb") as f:
            data = f.read()
    except OSError as error:
        raise DstuneError(
            say(f"{path} cannot be read", f"无法读取 {path}"),
            error.strerror or str(error),
            say("check the path", "检查路径"),
            Exit.UNOBSERVABLE,
        ) from None
    return decode(path, real, data)


def decode(path: str, real: str, data: bytes) -> Source:
    """UTF-8 (with or without mark), UTF-16 by its mark, else GB18030; bytes that are none of these travel as surrogates."""
    mark, encoding = next(((m, e) for m, e in _MARKS if data.startswith(m)), (b"", ""))
    body = data[len(mark) :]
    if encoding in ("", "utf-8") and b"\0" in body:
        raise DstuneError(
            say(f"{path} is a binary file", f"{path} 是二进制文件"),
            "",
            say("only text files are changed", "只修改文本文件"),
            Exit.UNOBSERVABLE,
        )
    if not encoding:
        encoding = next((e for e in ("utf-8", "gb18030") if _reads(body, e)), "utf-8")
    feed, carriage = "\n".encode(encoding), "\r".encode(encoding)
    if encoding.startswith("utf-16"):
        if len(body) % 2:
            raise DstuneError(
                say(f"{path} is a damaged UTF-16 file", f"{path} 是损坏的 UTF-16 文件"), "", "", Exit.UNOBSERVABLE
            )
        lines = [part.encode(encoding, _errors(encoding)) for part in body.decode(encoding, _errors(encoding)).split("\n")]
    else:
        lines = body.split(feed)
    errors = _errors(encoding)
    returns = sum(line.endswith(carriage) for line in lines[:-1])
    text = [
        (line.removesuffix(carriage) if n < len(lines) - 1 else line).decode(encoding, errors) for n, line in enumerate(lines)
    ]
    kept = [*(line + feed for line in lines[:-1]), lines[-1]]
    newline = carriage + feed if returns * 2 > len(lines) - 1 else feed
    return Source(path, real, data, "\n".join(text), encoding, mark, newline, tuple(kept))


def _reads(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def diff(path: str, before: str, after: str, context: int = 3) -> str:
    """A unified diff of two texts with `\\n` endings; "" where they are equal. `patch -p0` takes it."""
    old, new = before.split("\n"), after.split("\n")
    out: list[str] = []
    for line in difflib.unified_diff(_ended(old), _ended(new), path, path, n=context):
        text = line.removesuffix("\n")
        out.append(text)
        if not line.endswith("\n"):
            out.append("\\ No newline at end of file")
    return "\n".join(out)


def _ended(lines: list[str]) -> list[str]:
    ended = [line + "\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended
