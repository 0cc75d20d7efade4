"""What a text only quotes: prompts and answers that a server logs, source code, commits, passed tests. Messages in them befell nobody here."""

from __future__ import annotations

import re

LONGEST = 1 << 20
"""Longer texts are a server's own log: nobody pastes that much source code or that many names of tests."""

_STRING = rb"""(?:'(?P<a>[^'\\\n]*(?:\\.[^'\\\n]*)*)|"(?P<b>[^"\\\n]*(?:\\.[^"\\\n]*)*))"""
"""A string as Python's repr, Go's %q and JSON write it, up to its end or that of the line."""
_ROLE = rb"""role["']: ?["'](?:%s)["'], ?["']content["']: ?"""
_LOGGED = tuple(
    (markers, re.compile(head + _STRING), asked)
    for markers, head, asked in (
        # vLLM and LMDeploy (repr), Ollama (%q)
        ((b"prompt: ", b"prompt="), rb"prompt(?:: |=)", True),
        ((b"GenerateReqInput(",), rb"(?<=[(, ])text=", True),  # SGLang --log-requests
        ((b"GenerateReqInput(",), rb"'text': ", False),
        ((b"Generated response ",), rb"Generated response [^\n]{1,120}?: output: ", False),  # vLLM --enable-log-outputs
        # messages of the OpenAI API in the log of any program, and data sets of instructions
        ((b"role",), _ROLE % b"user|system|developer|tool", True),
        ((b"role",), _ROLE % b"assistant", False),
        ((b"type",), rb"""type["']: ?["'](?:input_)?text["'], ?["']text["']: ?""", True),  # parts of a message
        ((b"output_text",), rb"""type["']: ?["']output_text["'], ?["']text["']: ?""", False),
        ((b'"instruction"',), rb'"(?:instruction|input)": ?', True),
    )
)
"""Texts of which one must be there, what stands before the string, and whether the server was asked it (else it is an answer)."""
_OF_ERRORS = re.compile(rb"[Ee]rror|ERROR|[Ee]xception|Traceback|[Ff]ail(?:ed|ure|s)|out of memory|\xe6\x8a\xa5\xe9\x94\x99")
"""Words of an answer that explains a message. Other answers stay as they are: rules look for garbage and endless words in them."""


def unprompted(data: bytes) -> bytes:
    """Whole lines without the words of logged prompts and of answers about errors."""
    for markers, pattern, asked in _LOGGED:
        if any(marker in data for marker in markers):
            data = pattern.sub(_question if asked else _answer, data)
    return data


def _question(match: re.Match[bytes]) -> bytes:
    said = match["a"] if match["a"] is not None else match["b"]
    return match[0][: len(match[0]) - len(said)] + (b"..." if said else b"")


def _answer(match: re.Match[bytes]) -> bytes:
    return _question(match) if _OF_ERRORS.search(match[0]) else match[0]


_CODE = r"(?:raise|except|assert|return|if|elif|def|class|import|from|print|log|logger)\b|[#\"'*>+-]|//"
_QUOTES = (
    # a hunk of a diff
    ("@@ -", re.compile(r"(?m)^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@[^\n]*\n(?:[ +\\-][^\n]*\n?)*")),
    # grep over sources and documents; a logger's or a compiler's `file.py:12: words` is none
    (
        ":",
        re.compile(
            rf"(?m)^(?:[^\s:]*/)?[\w.-]+\.(?:(?:pyi?|cc?|cpp|cuh?|h|hpp|go|rs|jsx?|tsx?|sh):(?:\d+[:-])?(?:[ \t]{{2,}}|{_CODE})|(?:md|rst):(?:\d+[:-])?(?!\s))[^\n]*"
        ),
    ),
    # tests that passed, by pytest and unittest
    ("::", re.compile(r"(?m)^(?=[^\n]*(?:PASSED|SKIPPED|XFAIL))[^\n]*\.py::[^\n]*")),
    (" ... ", re.compile(r"(?m)^test_\w+ \([\w.]+\)[^\n]*\.\.\. (?:ok|skipped)\b[^\n]*")),
    # git log --oneline; a log whose lines begin with the id of a request says how grave each one is
    (
        "\n",
        re.compile(
            r"(?m)(?:^(?=\d*[a-f])[0-9a-f]{7,12} (?:\([^)\n]*\) )?(?!(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b)[^\W\d_][^\n]*(?:\n|\Z)){2,}"
        ),
    ),
    # the line of a program that waits for a message; a traceback shows none
    ("except", re.compile(r"(?m)^[ \t]*except\b[^\n]*:[^\n]*$")),
)
"""A text that must be there, and lines that show what stands elsewhere."""
_ABOUT = re.compile(
    r"(?i)(?:^|/)(?:(?:README|CHANGELOG|CHANGES|HISTORY|NEWS|RELEASE_?NOTES|CONTRIBUTING|FAQ|TROUBLESHOOTING)[^/]*\.(?:md|rst|adoc)"
    r"|(?:README|CHANGELOG|RELEASE_?NOTES|CONTRIBUTING)(?:\.txt)?|docs?/[^\n]*\.(?:md|rst|adoc))$"
)


def describes(path: str) -> bool:
    """Whether a file tells of a program, by its name: a README, a changelog, a page of documentation."""
    return _ABOUT.search(path) is not None


def unquoted(text: str) -> str:
    """The text without what it only quotes; every line keeps its number."""
    data = text.encode("utf-8", "surrogatepass")
    if (own := unprompted(data)) is not data:
        text = own.decode("utf-8", "surrogatepass")
    if len(text) > LONGEST:
        return text
    for needed, pattern in _QUOTES:
        if needed in text:
            text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    return text
