"""What a text only quotes: prompts and answers that a server logs, source code, commits, passed tests. Messages in them befell nobody here."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import Any

from dstune.readers.scan_sieve import automaton
from dstune.readers.scan_text import cleaned

LONGEST = 1 << 20
"""Longer texts are a server's own log: nobody pastes that much source code or that many names of tests."""

_STRING = rb"""(?:'(?P<a>[^'\\\n]*(?:\\.[^'\\\n]*)*)|"(?P<b>[^"\\\n]*(?:\\.[^"\\\n]*)*))"""
"""A string as Python's repr, Go's %q and JSON write it, up to its end or that of the line."""
_CONTENT = rb"""content["']?[:=] ?\[?%(s)s"""
_ROLE = rb"""role["']?[:=] ?["'](?:"""
_ASKS, _ANSWERS = _ROLE + rb"user|system|developer|tool)", _ROLE + rb"assistant)"
_PARTS = (
    (rb"""type["']: ?["'](?:input_)?text["'], ?["']text["']: ?%(s)s""", True),
    (rb"""type["']: ?["']output_text["'], ?["']text["']: ?%(s)s""", False),
)
_LOGGED = tuple(
    (marker, tuple((re.compile(expression % {b"s": _STRING}), asked) for expression, asked in rows))
    for marker, *rows in (
        (
            b"prompt",
            (rb"prompt(?:: |=|[\"']: ?)\[?%(s)s", True),
        ),  # vLLM and LMDeploy (repr), Ollama (%q), bodies of /completion
        (b'inputs"', (rb'inputs": ?%(s)s', True)),  # bodies of TGI's /generate
        (b"GenerateReqInput(", (rb"(?<=[(, ])text=%(s)s", True), (rb"'text': %(s)s", False)),  # SGLang --log-requests
        (b"Generated response ", (rb"Generated response [^\n]{1,120}?: output: %(s)s", False)),  # vLLM --enable-log-outputs
        # messages of the OpenAI API in the log of any program, as JSON or as classes, and data sets of instructions
        (
            b"role",
            (_ASKS + rb"""["'], ?["']?""" + _CONTENT, True),
            (_ANSWERS + rb"""["'], ?["']?""" + _CONTENT, False),
            (_CONTENT + rb"""["'], ?["']?""" + _ASKS, True),
            (_CONTENT + rb"""["'], ?["']?""" + _ANSWERS, False),
        ),
        # LangChain
        (b"Message(content=", (rb"(?:Human|System|Tool)Message\(content=%(s)s", True), (rb"AIMessage\(content=%(s)s", False)),
        # parts of a message
        (b'text"', *_PARTS),
        (b"text'", *_PARTS),
        (b'"question"', (rb'"question": ?%(s)s', True)),  # its answer may be a program's own error
        (b'"instruction"', (rb'"(?:instruction|input)": ?%(s)s', True)),
    )
)
"""A text that must be there, and what stands around the string, and whether the server was asked it (else it is an answer)."""
_OF_ERRORS = re.compile(rb"[Ee]rror|ERROR|[Ee]xception|Traceback|[Ff]ail(?:ed|ure|s)|out of memory|\xe6\x8a\xa5\xe9\x94\x99")
"""Words of an answer that explains a message. Other answers stay as they are: rules look for garbage and endless words in them."""

_TEMPLATES = tuple(
    (marker, re.compile(begin), re.compile(end))
    for marker, begin, end in (
        (b"<|im_start|>", rb"<\|im_start\|>(?:user|system|tool)(?:\n|\\n)", rb"<\|im_end\|>"),  # ChatML
        (b"<|end_header_id|>", rb"(?:user|system|ipython)<\|end_header_id\|>", rb"<\|eot_id\|>"),  # Llama 3
        (b"<start_of_turn>", rb"<start_of_turn>user", rb"<end_of_turn>"),  # Gemma
        (b"<|user|>", rb"<\|(?:user|system)\|>", rb"<\|end\|>|</s>|<\|assistant\|>"),  # Phi-3, Zephyr, GLM
        (b"[/INST]", rb"\[INST\]", rb"\[/INST\]"),  # Llama 2, Mistral
        (
            b"### ",
            rb"(?m)^### (?:Instruction|Human|User|Input):",
            rb"(?m)^### (?:Response|Assistant|Answer)\b",
        ),  # Alpaca, Vicuna
        ("<｜User｜>".encode(), "<｜User｜>".encode(), "<｜Assistant｜>".encode()),  # DeepSeek
        (b"Prompt after formatting:", rb"Prompt after formatting:", rb"> Finished chain\."),  # LangChain with verbose=True
    )
)
"""A text that must be there, where a prompt begins that is printed as it is, and where it ends. One without its end stays."""


def own_words(data: bytes) -> bytes:
    """Whole lines, clean and without the words of logged prompts."""
    return unprompted(cleaned(data))


_MARKERS = (*(marker for marker, _ in _LOGGED), *(marker for marker, _, _ in _TEMPLATES))


@cache
def _marked() -> Any:
    """All markers at once: one after the other they cost 8 ms a megabyte, so 2."""
    return automaton(_MARKERS)


def unprompted(data: bytes) -> bytes:
    """Whole clean lines without the words of logged prompts and of answers about errors; every line keeps its number."""
    if not (there := {_MARKERS[number] for number, _, _ in _marked().find_matches_as_indexes(data, overlapping=True)}):
        return data
    for marker, rows in _LOGGED:
        if marker in there and marker in data:
            for pattern, asked in rows:
                data = pattern.sub(_question if asked else _answer, data)
    for marker, begin, end in _TEMPLATES:
        if marker in there and marker in data:
            data = _unsaid(data, begin, end)
    return data


def _question(match: re.Match[bytes]) -> bytes:
    first, last = match.span("b" if match["a"] is None else "a")
    whole, at = match[0], match.start()
    return whole[: first - at] + (b"..." if last > first else b"") + whole[last - at :]


def _answer(match: re.Match[bytes]) -> bytes:
    return _question(match) if _OF_ERRORS.search(match[0]) else match[0]


def _unsaid(data: bytes, begin: re.Pattern[bytes], end: re.Pattern[bytes]) -> bytes:
    """Without what stands between a beginning and the end that comes before the next beginning."""
    kept, at = [], 0
    for here, then in pairwise([*begin.finditer(data), None]):
        stop = end.search(data, here.end(), then.start() if then else len(data)) if here else None
        if here and stop:
            kept += [data[at : here.end()], b"..." + b"\n" * data.count(b"\n", here.end(), stop.start())]
            at = stop.start()
    return b"".join([*kept, data[at:]])


_CODE = r"(?:raise|except|assert|return|if|elif|def|class|import|from|print|log|logger)\b|[#\"'*>+-]|//"
_THEN = ("esterday", "ast night", "ast week", "ast month", "ast year", " ago", "昨天", "前天", "上周", "上次", "以前", "之前")
_PAST = rf"(?:{'|'.join(_THEN)})"
_MET = r"(?:\b(?:I|we|We|he|she|they) (?:saw|got|had|hit|met)\b|(?<!没)(?<!没有)(?:遇到|碰到|见过|报过))"
_NOW = r"(?:\b(?:today|now|still|again|[Ss]ince (?:yesterday|last))\b|今天|现在(?!已|好|正常|没)|仍|还是|又)"
_QUOTES = (
    # a hunk of a diff
    (("@@ -",), re.compile(r"(?m)^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@[^\n]*\n(?:[ +\\-][^\n]*\n?)*")),
    # grep over sources and documents; a logger's or a compiler's `file.py:12: words` is none
    (
        (":",),
        re.compile(
            rf"(?m)^(?:[^\s:]*/)?[\w.-]+\.(?:(?:pyi?|cc?|cpp|cuh?|h|hpp|go|rs|jsx?|tsx?|sh):(?:\d+[:-])?(?:[ \t]{{2,}}|{_CODE})|(?:md|rst):(?:\d+[:-])?(?!\s))[^\n]*"
        ),
    ),
    # tests that passed, by pytest and unittest
    (("::",), re.compile(r"(?m)^(?=[^\n]*(?:PASSED|SKIPPED|XFAIL))[^\n]*\.py::[^\n]*")),
    ((" ... ",), re.compile(r"(?m)^test_\w+ \([\w.]+\)[^\n]*\.\.\. (?:ok|skipped)\b[^\n]*")),
    # git log --oneline; a log whose lines begin with the id of a request says how grave each one is
    (
        ("\n",),
        re.compile(
            r"(?m)(?:^(?=\d*[a-f])[0-9a-f]{7,12} (?:\([^)\n]*\) )?(?!(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b)[^\W\d_][^\n]*(?:\n|\Z)){2,}"
        ),
    ),
    # what a person remembers; what goes on is no memory
    (_THEN, re.compile(rf"(?m)^(?![^\n]*{_NOW})[^\n:：]{{0,40}}(?:{_PAST}[^\n]*{_MET}|{_MET}[^\n:：]*{_PAST})[^\n]*")),
    # the line of a program that waits for a message; a traceback shows none
    (("except",), re.compile(r"(?m)^[ \t]*except\b[^\n]*:[^\n]*$")),
)
"""Texts of which one must be there, and lines that show what stands elsewhere."""
_TALK = re.compile(
    r"(?m)^(?P<q>[ \t]*(?:Q|Question|User|Human|You|问|用户|提问)\d*[ ]?[:>：][ \t]*)(?P<asked>\S[^\n]*)"
    r"(?P<a>\n(?:[ \t]*\n)?[ \t]*(?:A|Answer|Assistant|AI|Bot|答|回答|助手)\d*[ ]?[:>：][ \t]*)?(?P<said>(?(a)[^\n]*))"
)
"""A line that somebody asks, and the line of the answer below it."""
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
    for markers, pattern in _QUOTES:
        if any(marker in text for marker in markers):
            text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    return _TALK.sub(_talked, text)


def _talked(match: re.Match[str]) -> str:
    """Question and answer without their words. An answer to a question about something else may be the program's own error."""
    about = all(_OF_ERRORS.search(match[part].encode("utf-8", "surrogatepass")) for part in ("asked", "said"))
    return match["q"] + "..." + (match["a"] or "") + ("..." if about else match["said"])
