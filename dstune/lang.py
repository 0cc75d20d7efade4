"""English or Chinese: one process speaks one language.

`say(en, zh)` stands where the words are used, so that both texts change together.
"""

import os
import re
import sys
from collections.abc import Mapping

_language = "en"


def detect(argv: list[str], env: Mapping[str, str]) -> str:
    """Language of `--lang X`, else of LC_ALL, LC_MESSAGES, LANG (first one set, as in POSIX)."""
    for here, after in zip(argv, [*argv[1:], ""], strict=False):
        if here == "--lang" and after in ("en", "zh"):
            return after
        if here in ("--lang=en", "--lang=zh"):
            return here[-2:]
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if value := env.get(name):
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


def use(language: str) -> None:
    """Speak `language` ("en" or "zh") from now on."""
    global _language
    _language = language


def current() -> str:
    """The language in use."""
    return _language


def say(en: str, zh: str) -> str:
    """The text in the language in use."""
    return zh if _language == "zh" else en


def pick(texts: Mapping[str, str] | str) -> str:
    """One text out of `{"en": …, "zh": …}`; English where the other is missing."""
    if isinstance(texts, str):
        return texts
    return texts.get(_language) or texts.get("en", "")


REMARK = re.compile(r"(?m)(?:^|(?<=\s))#(?!!)[ ]?(.*)$")
"""Words behind a `#` of a command that is shown."""


def remarked(commands: str, chinese: Mapping[str, str]) -> str:
    """Commands with the words behind their `#` in the language in use."""
    if _language != "zh" or not chinese:
        return commands
    return REMARK.sub(lambda m: f"# {chinese[m[1]]}" if m[1] in chinese else m[0], commands)


use(detect(sys.argv[1:], os.environ))
