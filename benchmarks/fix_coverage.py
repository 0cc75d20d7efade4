"""What `dstune fix` writes of what the recipes say: every cause whose remedy is a file's change, tried on the recipes' own examples.

    python benchmarks/fix_coverage.py            the causes that it does not write, and the sums
    python benchmarks/fix_coverage.py --all      every cause

A cause counts as written when one of its examples with a file in it (program, script, compose file, Dockerfile, configuration), or one of the
tests' edits and corpus, comes back changed. Of the examples of such causes, those whose file stays as it is are counted by the reason that
`fix` gives the person.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from dstune.catalog.rules import rules
from dstune.cli.fixes import AUTOMATIC, Wish, automatic, carry_out
from dstune.derive import derive
from dstune.diagnose import diagnose
from dstune.model import Diagnosis, Document, Evidence, Example, Rule
from dstune.readers import read_documents
from tests.support import FILES, container_kind, evidence_of

WRITTEN = "written"
TESTED = Path(__file__).parent.parent / "tests" / "edits"


def documents(example: Example) -> list[Document]:
    """The files of an example that can be changed."""
    found = []
    for kind, text in example.texts.items():
        if kind in ("log", "any"):
            continue
        name, reader = container_kind(text) if kind == "container" else FILES[kind]
        found.append(Document(name, reader, text))
    return found


def tried(rule: Rule, example: Example) -> bool:
    """Whether the example's files come back changed by this cause alone."""
    return attempt(rule, example) == WRITTEN


def attempt(rule: Rule, example: Example) -> str:
    """`WRITTEN` where the example's files come back changed by this cause alone, else why they do not."""
    files = documents(example)
    rest = replace(example, texts={k: v for k, v in example.texts.items() if k in ("log", "any")})
    beside = evidence_of(rest)

    def judge(now: list[Document]) -> tuple[Evidence, Diagnosis]:
        seen = derive(read_documents(now).merged(beside))
        return seen, diagnose(seen, [rule])

    outcome = carry_out(files, judge, Wish(only=frozenset((rule.cause,))))  # type: ignore[arg-type]
    if any(outcome.texts[d.path] != d.text for d in files):
        return WRITTEN
    return next(
        (re.sub(r"needs .*", "needs a fact that nobody gave", h.reason) for h in outcome.hands),
        "a guess: nothing is said or written",
    )


def state(rule: Rule) -> str:
    """What happens with the remedies of a cause."""
    fixes = [f for f in rule.fixes if f.kind in AUTOMATIC]
    if not fixes:
        return "other"  # the host's, the model's or a person's
    able = [f for f in fixes if automatic(f)]
    if not able:
        return "by hand" if all(f.safety == "display" for f in fixes) else "no edit"
    examples = with_files(rule)
    if any(tried(rule, e) for e in examples):
        return WRITTEN
    if any(f.edit and (TESTED / f"{f.edit}.txt").exists() for f in able):
        return "written (tests/edits)"
    return "not written" if examples else "has an edit, and no example with a file"


def with_files(rule: Rule) -> list[Example]:
    """The examples of a cause with a file that can be changed."""
    return [e for e in rule.examples if e.expect == "fires" and documents(e)]


def main() -> None:
    """Prints the causes by what happens, and the sums."""
    found = {cause: state(rule) for cause, rule in sorted(rules().items())}
    for cause, what in found.items():
        if "--all" in sys.argv or what in ("no edit", "not written"):
            print(f"{what:40} {cause}")
    for what, number in Counter(found.values()).most_common():
        print(f"{number:5} {what}")
    able = [r for cause, r in rules().items() if found[cause] not in ("other", "by hand", "no edit")]
    print("their examples with a file:")
    for what, number in Counter(attempt(r, e) for r in able for e in with_files(r)).most_common():
        print(f"{number:5} {what}")


if __name__ == "__main__":
    main()
