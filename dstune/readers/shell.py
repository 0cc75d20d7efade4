"""Splits shell text into commands and words that know where they stand, and notices slips (a lost backslash, a quoted tilde).

Not a shell: what people write in launch scripts, systemd units, Windows batch files and pastes. Placeholders such as `<model>` and `…` are words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Word:
    """A word: its value (unquoted, simple variables filled in), and its place in the text (offsets, 1-based line)."""

    text: str
    start: int
    end: int
    line: int
    quote: str = ""
    plain: bool = True
    """Whether the characters between start and end (inside the quotes) are the value itself, so that they may be replaced."""


@dataclass(slots=True)
class Command:
    """Words of one command, the assignments before it, and how it ended ("\\n", ";", "|", "&&"…)."""

    words: list[Word]
    env: dict[str, Word] = field(default_factory=dict)
    end: str = "\n"
    lines: int = 1


@dataclass(frozen=True, slots=True)
class Slip:
    """A slip of the pen: `kind` is a fact of the family `command`."""

    kind: str
    line: int
    value: str = ""


_ASSIGN = re.compile(r"(?!ExecStart)[A-Za-z_]\w*\+?=")
_BLANK = " \t\r\f\v\u00a0\u3000\u200b"
_STOP = _BLANK + "\n;|&<>'\"\\$"
_PLACEHOLDER = re.compile(r"<[A-Za-z0-9_一-鿿][^<>\n|&;]{0,80}>")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_PROMPT = re.compile(
    r"(?m)^(?:[ \t]*(?:\([\w.-]+\)[ \t]*)?(?:[\w.-]+@[\w.-]+[:~ ][^\n$#]{0,60}[$#]|PS [A-Z]:[^>\n]*>|[A-Z]:\\[^>\n]*>|[$❯%])[ \t]+)(?=\S)"
)
_SUPERVISED = re.compile(r"(?m)^command[ \t]*=[ \t]*|^[ \t]*;[^\n]*|^(?!command)[\w.]+[ \t]*=[^\n]*(?:\n[ \t]+\S[^\n]*)*")
"""What is no command in a configuration of supervisord: the key before one, comments, the other keys with their further lines."""
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_ODD = {
    "\u2013": "\u2013", "\u2014": "\u2014", "\u2012": "\u2012", "\u2212": "\u2212", "\uff0d": "\uff0d",
    "\u201c": "\u201c", "\u201d": "\u201d", "\u2018": "\u2018", "\u2019": "\u2019",
    "\u00a0": "no-break space", "\u3000": "full-width space", "\u200b": "zero-width space",
}  # fmt: skip
_LONGEST = 4096
"""Characters of a variable that is filled in: 40 lines of `X2="$X1$X1$X1$X1"` would fill any memory."""
_JOIN = {"\\": "\\", "^": "^", "`": "`"}


def joiner(text: str) -> str:
    """The character that continues a line here: `\\`, `^` (Windows cmd) or a backtick (PowerShell)."""
    counts = {c: len(re.findall(rf"(?m)(?<=\s){re.escape(c)}[ \t]*$", text)) for c in _JOIN}
    best = max(counts, key=lambda c: counts[c])
    return best if counts[best] else "\\"


def commands(text: str) -> list[Command]:
    """The commands of a text, in order. Continued lines are one command; comments and here-documents are none."""
    return _Lexer(text).run()


def is_supervisor(text: str) -> bool:
    """Whether a text is a configuration of supervisord."""
    return bool(re.search(r"(?m)^\[program:[^\]\n]+\]", text))


def heredocs(text: str) -> list[tuple[int, int]]:
    """(start, end) of the bodies of here-documents, without the line that ends them: text of the script's, no command of its own."""
    lexer = _Lexer(text)
    lexer.run()
    return lexer.bodies


class _Lexer:
    def __init__(self, text: str) -> None:
        self.original = text
        self.text = (_SUPERVISED if is_supervisor(text) else _PROMPT).sub(lambda m: " " * len(m[0]), text)
        self.joiner = joiner(text)
        self.at, self.line = 0, 1
        self.found: list[Command] = []
        self.words: list[Word] = []
        self.lines = 1
        self.variables: dict[str, str] = {}
        self.pending: list[str] = []
        self.bodies: list[tuple[int, int]] = []

    def run(self) -> list[Command]:
        text = self.text
        while self.at < len(text):
            c = text[self.at]
            if c == "\n":
                self._finish("\n")
                self._newline()
            elif c in _BLANK:
                self.at += 1
            elif self._continued():
                pass
            elif c == "#" and (self.at == 0 or text[self.at - 1] in " \t\n;&|"):
                self.at = _end(text, self.at)
            elif c in ";&|" or (c in "()" and not self.words):
                self._operator()
            elif c in "<>" or (
                c.isdigit() and re.match(r"\d?(?:>>?|<)&?", text[self.at :]) and text[self.at : self.at + 2][1:] in (">", "<")
            ):
                self._redirection()
            else:
                self._word()
        self._finish("\n")
        return self.found

    def _newline(self) -> None:
        self.at += 1
        self.line += 1
        for name in self.pending:  # bodies of here-documents
            begin = last = self.at
            while self.at < len(self.text):
                end = _end(self.text, self.at)
                body = self.text[self.at : end]
                last, self.at, self.line = self.at, min(end + 1, len(self.text)), self.line + 1
                if body.strip() == name:
                    break
            else:
                last = len(self.text)
            self.bodies.append((begin, last))
        self.pending = []

    def _continued(self) -> bool:
        """Steps over a continuation (and blanks behind it, which a shell would not forgive)."""
        if self.text[self.at] != self.joiner and self.text[self.at] != "\\":
            return False
        found = re.compile(r".[ \t]*\r?\n").match(self.text, self.at)
        if not found or (self.text[self.at] != "\\" and self.text[self.at - 1 : self.at] not in (" ", "\t")):
            return False
        self.at = found.end()
        self.line += 1
        self.lines += 1
        return True

    def _operator(self) -> None:
        found = re.compile(r"&&|\|\||[;&|()]").match(self.text, self.at)
        assert found
        if self.text[self.at - 1 : self.at] == ">" or found[0] in "()":
            self.at += 1
            return
        self._finish(found[0])
        self.at = found.end()

    def _redirection(self) -> None:
        if (placeholder := _PLACEHOLDER.match(self.text, self.at)) and placeholder[0].count(" ") < 8:
            self._word()
            return
        if heredoc := _HEREDOC.match(self.text, self.at):
            self.pending.append(heredoc[2])
            self.at = heredoc.end()
            return
        found = re.compile(r"\d?(?:>>?|<)&?\d?-?[ \t]*").match(self.text, self.at)
        assert found
        self.at = found.end()
        if not re.search(r"&\d", found[0]) and self.at < len(self.text) and self.text[self.at] not in "\n;&|":
            self._word(keep=False)

    def _word(self, keep: bool = True) -> None:
        text, start, line = self.text, self.at, self.line
        value: list[str] = []
        plain, quote = True, ""
        while self.at < len(text):
            c = text[self.at]
            if c in _BLANK or c in "\n;|":
                break
            if c == "&" and text[self.at - 1 : self.at] != ">":
                break
            if c in "<>":
                placeholder = _PLACEHOLDER.match(text, self.at)
                if not placeholder:
                    break
                value.append(placeholder[0])
                self.at = placeholder.end()
                continue
            if c == "'" or (c == '"'):
                piece, simple = self._quoted(c)
                quote = c if self.at - start == len(piece) + 2 and not value else quote
                value.append(self._filled(piece) if c == '"' else piece)
                plain = plain and simple and bool(quote)
                continue
            if c == "$" and text[self.at + 1 : self.at + 2] == "(":
                closing = _balanced(text, self.at + 1)
                value.append(text[self.at : closing])
                self.line += text.count("\n", self.at, closing)
                self.at, plain = closing, False
                continue
            if c == "\\" and self.joiner == "\\":
                if text[self.at + 1 : self.at + 2] in ("\n", "\r", ""):
                    break
                value.append(text[self.at + 1])
                self.at, plain = self.at + 2, False
                continue
            end = self.at + 1
            while end < len(text) and text[end] not in _STOP:
                end += 1
            if c == "$":
                variable = _VARIABLE.match(text, self.at)
                end = variable.end() if variable else end
                filled = self._filled(text[self.at : end])
                plain = plain and filled == text[self.at : end]
                value.append(filled)
            else:
                value.append(text[self.at : end])
            self.at = end
        if self.at == start:  # a character nothing above takes
            self.at += 1
            return
        if quote and self.at - start != len("".join(value)) + 2:
            quote = quote if text[start] == quote == text[self.at - 1] else ""
        if keep:
            self.words.append(Word("".join(value), start, self.at, line, quote, plain))

    def _quoted(self, mark: str) -> tuple[str, bool]:
        """The text between quotes and whether it holds no escapes; a quote that never closes ends with its line."""
        text, at = self.text, self.at + 1
        out: list[str] = []
        simple = True
        while at < len(text) and text[at] != mark:
            if text[at] == "\\" and mark == '"' and at + 1 < len(text) and text[at + 1] in '"\\$`\n':
                out.append("" if text[at + 1] == "\n" else text[at + 1])
                self.line += text[at + 1] == "\n"
                at, simple = at + 2, False
                continue
            out.append(text[at])
            at += 1
        if at >= len(text):
            end = _end(text, self.at)
            piece = text[self.at + 1 : end]
            self.at = end
            return piece, False
        self.line += "".join(out).count("\n")
        self.at = at + 1
        return "".join(out), simple and "\n" not in "".join(out)

    def _filled(self, text: str) -> str:
        def one(found: re.Match[str]) -> str:
            name = found[1] or found[3]
            return self.variables.get(name, found[2] if found[2] is not None else found[0])

        return _VARIABLE.sub(one, text)

    def _finish(self, end: str) -> None:
        words, self.words, lines, self.lines = self.words, [], self.lines, 1
        if not words:
            return
        env: dict[str, Word] = {}
        exported = words[0].text in ("export", "set", "setx", "declare", "local", "Environment", "ENV") or words[
            0
        ].text.startswith("$env:")
        rest = words[1:] if exported and not words[0].text.startswith("$env:") else words
        while rest and (found := _ASSIGN.match(rest[0].text)):
            env[found[0].rstrip("+=")] = rest[0]
            rest = rest[1:]
        for name, word in env.items():
            value = word.text.partition("=")[2]
            if (exported or not rest) and len(value) <= _LONGEST:
                self.variables[name] = value
        self.found.append(Command(rest if not exported else [words[0], *rest], env, end, lines))


def _end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found


def _balanced(text: str, at: int) -> int:
    """The offset behind the bracket that closes the one at `at` (the line's end where none does)."""
    depth = 0
    for i in range(at, len(text)):
        if text[i] == "(":
            depth += 1
        elif text[i] == ")":
            depth -= 1
            if depth == 0:
                return i + 1
    return _end(text, at)


_OPTION = re.compile(r"[ \t]*--?[A-Za-z][\w-]*(?:[ \t=]|$)")


def slips(text: str) -> Iterator[Slip]:
    """Slips in the text. Only what a shell would take wrongly, or what no shell reads as it looks."""
    mark = joiner(text)
    end = re.escape(mark)
    lines = _PROMPT.sub(lambda m: " " * len(m[0]), text).split("\n")
    in_command = False
    quiet = _heredoc_lines(lines)
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip("\r")
        after = lines[number].rstrip("\r") if number < len(lines) else ""
        if number in quiet:
            continue
        comment = line.lstrip().startswith("#")
        continues = bool(re.search(rf"(?:^|\s){end}$", line)) and not comment
        if not comment and re.search(rf"\s{end}[ \t]+$", line) and after.strip():
            yield Slip("space_after_backslash", number)
            continues = True
        if in_command and not comment and line.strip() and not continues and _OPTION.match(after):
            yield Slip("lost_backslash", number, after.strip().split()[0])
            continues = True
        if in_command and not line.strip() and _OPTION.match(after):
            yield Slip("lost_backslash", number, after.strip().split()[0])
            continues = True
        if in_command and comment and any(_OPTION.match(x) for x in lines[number : number + 3]):
            yield Slip("comment_in_continuation", number)
            continues = True
        elif continues and re.search(rf"\s{end}\s+#", line):
            yield Slip("comment_in_continuation", number)
        if not comment and (found := re.search(rf"(?<=\s)--?[A-Za-z][^\n#]*\s{end}[ \t]+#", line)) and _OPTION.match(after):
            yield Slip("comment_in_continuation", number, found[0][:40])
            continues = True
        if not comment:
            yield from _characters(line, number)
        in_command = continues


_STRANGE = re.compile("(?:^|\\s)([\u2013\u2014\u2012\u2212\uff0d])\\w|([\u201c\u201d\u2018\u2019\u00a0\u3000\u200b])")


def _heredoc_lines(lines: list[str]) -> set[int]:
    """Numbers of the lines inside here-documents."""
    inside: set[int] = set()
    name = ""
    for number, line in enumerate(lines, 1):
        if name:
            inside.add(number)
            if line.strip() == name:
                name = ""
        elif found := _HEREDOC.search(line):
            name = found[2]
    return inside


def _characters(line: str, number: int) -> Iterator[Slip]:
    code = re.sub(r"(^|\s)#.*$", "", line)
    if found := re.search(r"(?:^|\s)[\"']~/|=[\"']?~/(?!.*\bexport\b)|[\"']~/[^\"']*:[/\w]", code):
        word = re.search(r"\S*~/\S*", code)
        before = code[: found.start() + 1]
        if not re.search(r"(?:^|\s)(?:export\s+)?[A-Za-z_]\w*=~?$", code[: code.find("~")]) and not before.strip().startswith(
            "alias"
        ):
            yield Slip("quoted_tilde", number, word[0] if word else "~/")
    if re.search(r"(?:^|\s)(?:--?\w|vllm|docker|podman|python|llama|sglang|ollama)", code):
        for match in _STRANGE.finditer(code):
            character = match[1] or match[2]
            if match[1] or not re.search(r"[一-鿿]", code[max(0, match.start() - 1) : match.end() + 1]):
                yield Slip("odd_character", number, _ODD[character])
                break
