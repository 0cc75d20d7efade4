"""The condition language: three truth values, versions, and what it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstune.errors import RecipeError
from dstune.expr import UNKNOWN, Version, evaluate, parse

FACTS = {"a.x": 3, "a.zero": 0, "a.v": Version("12.4"), "g.name": "Tesla T4", "a.flag": True, "a.items": ["one", "two"]}


def look(name: str) -> object:
    return FACTS.get(name, UNKNOWN)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.x > 2", True), ("a.x > 2 and b.y", UNKNOWN), ("a.x > 5 and b.y", False), ("b.y and a.x > 5", False),
        ("a.x > 2 or b.y", True), ("a.x > 5 or b.y", UNKNOWN), ("not b.y", UNKNOWN), ("not a.zero", True),
        ("a.v >= '12.10'", False), ("a.v >= 12.4", True), ("a.v == '12.4.0'", True), ("a.v < '13'", True),
        ("'t4' in g.name", True), ("'A100' in g.name", False), ("'two' in a.items", True), ("g.name == 'tesla t4'", True),
        ("1 < a.x < 4", True), ("1 < a.x < 3", False), ("a.x * 2 + 1 == 7", True), ("a.x / a.zero > 1", UNKNOWN),
        ("b.y is unknown", True), ("a.x is unknown", False), ("b.y is not unknown", False), ("a.x in [1, 3]", True),
        ("g.name > 3", UNKNOWN), ("-a.x == -3", True), ("a.flag == true", UNKNOWN), ("a.flag == True", True),
    ],
)  # fmt: skip
def test_value(text: str, value: object) -> None:
    if text == "a.flag == true":
        with pytest.raises(RecipeError):
            parse(text)
        return
    assert evaluate(text, look) is value


@pytest.mark.parametrize(
    "text", ["len(a.x)", "a.x.y", "x", "lambda: 1", "a.x if a.y else 1", "[i for i in a.x]", "a.x[0]", "f'{a.x}'", "a.x =="]
)
def test_refuses(text: str) -> None:
    with pytest.raises(RecipeError):
        parse(text)


@given(st.sampled_from([True, False, UNKNOWN]), st.sampled_from([True, False, UNKNOWN]))
def test_and_or_are_kleene(p: object, q: object) -> None:
    def get(name: str) -> object:
        return p if name == "f.p" else q

    rank = {False: 0, UNKNOWN: 1, True: 2}
    assert rank[evaluate("f.p and f.q", get)] == min(rank[p], rank[q])
    assert rank[evaluate("f.p or f.q", get)] == max(rank[p], rank[q])


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_versions_order_as_padded_numbers(a: list[int], b: list[int]) -> None:
    left, right = Version(".".join(map(str, a)) + "+cu121"), Version("v" + ".".join(map(str, b)))
    pad = max(len(a), len(b))
    assert (left < right) == (a + [0] * (pad - len(a)) < b + [0] * (pad - len(b)))
