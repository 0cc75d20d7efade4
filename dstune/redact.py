"""Takes secrets and names of people and machines out of texts before they are shown or stored."""

import getpass
import re
import socket
from functools import cache

_RULES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("hf_",), r"\b(hf_)[A-Za-z0-9]{16,}", r"\1<redacted>"),
    (
        ("sk-", "ghp_", "gho_", "gsk_", "nvapi-", "aiza", "github_pat_", "glpat-", "xoxb-", "xoxp-", "akia", "ms-"),
        r"\b(sk-|ghp_|gho_|gsk_|nvapi-|AIza|github_pat_|glpat-|xox[bp]-|AKIA|ms-(?=[0-9a-f]{8}-))[A-Za-z0-9_\-]{8,}",
        r"\1<redacted>",
    ),
    (("bearer", "basic"), r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", r"\1 <redacted>"),
    (
        ("key", "token", "secret", "passw", "-pass", "_pass"),
        (
            r"(?i)((?:(?:api|access|secret|private)[_-]?key|token|secret|passw(?:or)?d|[_-]pass)[\"']?\s*[=:]\s*\[?[\"']?)"
            r"(?!none\b|null\b|true\b|false\b|empty\b|os\.|\$|\{|<|\d{1,9}\b)([^\s\"',;)}\]]{6,})"
        ),
        r"\1<redacted>",
    ),
    (
        ("--api-key", "--token", "--hf-token", "--password"),
        r"(?i)(--(?:api-key|token|hf-token|password)(?:[ =]|[\"']\s*,\s*)[\"']?)(?![\"']?\$|<)([^\s\"',\])}]+)",
        r"\1<redacted>",
    ),
    (("-u", "--user"), r"(\s(?:-u|--user)[ =][\"']?[^\s:\"'$<]+:)(?!\d+\b|\$)[^\s\"']+", r"\1<redacted>"),
    (("auth",), r"""(?i)(\bauth\s*=\s*\[?\(\s*["'][^"']*["']\s*,\s*["'])[^"']+""", r"\1<redacted>"),
    (("key",), r"""(?i)(\bkey\s*=\s*["'])(?=[\w-]*\d)[\w-]{16,}(?=["'])""", r"\1<redacted>"),
    (("://",), r"(?i)([a-z0-9+.-]://)[^/\s:@]+:[^/\s@]+@", r"\1<redacted>@"),
    (
        ("/home/", "/users/", ":\\users\\"),
        r"(/home/|/Users/|[A-Za-z]:\\Users\\)(?!user\b|ubuntu\b|<)[^/\\\s\"':]+",
        r"\1<user>",
    ),
    (("@",), r"(?<![\w.+-])([.+-]*)\b[\w.+-]+@[\w-]+\.[\w.-]*[a-z]\b", r"\1<email>"),
    (("gpu-",), r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "GPU-<redacted>"),
)
"""(texts of which the text in lower case has one, what is found, what it becomes): most lines have none, and each search takes 10 to 30 us."""
_TOO_COMMON = frozenset(
    ("root", "user", "ubuntu", "admin", "localhost", "docker", "app", "host", "runner", "model", "main", "work")
)


_made = cache(re.compile)


@cache
def _own_names() -> re.Pattern[str] | None:
    names = []
    for read in (getpass.getuser, socket.gethostname):
        try:
            names.append(read())
        except (OSError, KeyError, ImportError):  # no passwd entry in a container
            continue
    names = [re.escape(n) for n in names if len(n) > 3 and n.lower() not in _TOO_COMMON]
    return re.compile(r"(?<![\w-])(?:" + "|".join(names) + r")(?![\w-])") if names else None


def redact(text: str) -> str:
    """The text without tokens, passwords, user names in paths, mail addresses, and this machine's own names."""
    lower = text.lower()
    for needles, pattern, to in _RULES:
        for needle in needles:
            if needle in lower:
                text = _made(pattern).sub(to, text)
                break
    own = _own_names()
    return own.sub("<name>", text) if own else text


_OBEYED = re.compile("\x1b(?!\\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text without what a terminal obeys (titles, clipboard, cursor, bell, C1, reversed writing); colours, tabs and line ends stay."""
    return _OBEYED.sub("\ufffd", text)


def hashed(text: str) -> str:
    """Eight hexadecimal digits that stand for an identifier (a GPU's uuid, a host), the same on every run."""
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:8]
