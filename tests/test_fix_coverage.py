"""Examples of the recipes that hold the file to change: `fix` changes it, by that cause alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from dstune.catalog.rules import rules
from dstune.model import Example, Rule

PATH = Path(__file__).parent.parent / "benchmarks" / "fix_coverage.py"
NOTE = "with the file that is changed"
CASES = [(r, e) for r in rules().values() for e in r.examples if e.expect == "fires" and e.note == NOTE]
spec = importlib.util.spec_from_file_location("fix_coverage", PATH)
assert spec is not None
assert spec.loader is not None
coverage = importlib.util.module_from_spec(spec)
spec.loader.exec_module(coverage)


@pytest.mark.parametrize(("rule", "example"), CASES, ids=[r.cause for r, _ in CASES])
def test_the_file_of_an_example_is_changed(rule: Rule, example: Example) -> None:
    assert coverage.tried(rule, example)


def test_remedies_in_files_have_an_example_with_one() -> None:
    """The causes whose remedy is an edit that nothing shows yet are few, and known by name."""
    bare = {c for c, r in rules().items() if coverage.state(r) == "has an edit, and no example with a file"}
    assert bare <= {"vllm-no-cache-blocks", "kv-cache-preallocation-too-large"}
