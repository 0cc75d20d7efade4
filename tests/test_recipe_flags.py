"""The lists of flags inside recipes are what the parsers say."""

import re

from dstune.catalog import flags
from dstune.catalog.rules import rules


def listed(cause: str) -> set[str]:
    pattern = next(p for w in rules()[cause].ways for p in w.texts.get("log", ()) if "unrecognized arguments" in p)
    return set(re.search(r"--\(\?:no-\)\?\(\?:([\w|-]+)\)", pattern)[1].split("|"))  # type: ignore[index]


def test_removed_flags() -> None:
    newest = list(flags.tables())[-1]
    gone = {n for t in flags.tables().values() for n in t if not flags._has(newest, n)}
    assert listed("vllm-removed-flag") - {"engine-use-ray", "max-context-len-to-capture"} == gone


def test_flags_of_the_newest() -> None:
    newest = flags.tables()[list(flags.tables())[-1]]
    assert listed("vllm-too-old-for-flag") == set(newest) - {"help"}
