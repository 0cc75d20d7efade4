"""Every recipe is tested by its own examples, and by what every recipe must have."""

import re
from collections.abc import Callable

import pytest

from dstune import lang
from dstune.catalog.rules import conditions, rules
from dstune.catalog.signatures import letters, signatures
from dstune.catalog.vocabulary import terms
from dstune.expr import parse
from dstune.lang import REMARK
from dstune.model import Example, Rule
from dstune.report.text import commands
from tests.support import judged

RULES = list(rules().values())
EXAMPLES = [(r, i) for r in RULES for i in range(len(r.examples))]
IDS = [f"{r.cause}-{i}-{r.examples[i].expect}" for r, i in EXAMPLES]
KINDS, SAFETIES = ("flag", "code", "install", "host", "model"), ("live", "restart", "display")


def by_rule(check: Callable[[Rule], None]) -> Callable[[], None]:
    """One test over all recipes that names each one that fails: a test for each would cost more than the check."""

    def test() -> None:
        wrong = []
        for rule in RULES:
            try:
                check(rule)
            except AssertionError as error:
                wrong.append(f"{rule.cause}: {error}")
        assert not wrong, "\n".join(wrong)

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return test


@pytest.mark.parametrize(("rule", "number"), EXAMPLES, ids=IDS)
def test_example(rule: Rule, number: int) -> None:
    example = rule.examples[number]
    fired = [f.cause for f in judged(example, rule).findings]
    assert fired == ([rule.cause] if example.expect == "fires" else [])


@by_rule
def test_fires_and_stays_quiet(rule: Rule) -> None:
    assert {e.expect for e in rule.examples} == {"fires", "quiet"}, "a recipe needs an example that fires and a near miss"


@by_rule
def test_complete(rule: Rule) -> None:
    assert rule.ways, "a recipe needs a way to fire"
    assert rule.severity in ("error", "warning", "info")
    assert rule.sources, "a recipe needs a source"
    assert rule.verify or rule.consequence or rule.severity == "info", "how does a person see that it is cured?"
    for texts in (rule.title, rule.message, rule.why, *(f.title for f in rule.fixes)):
        assert texts.get("en", "").strip(), f"English is missing: {texts}"
        assert re.search(r"[一-鿿]", texts.get("zh", "")), f"Chinese is missing: {texts}"
    for fix in rule.fixes:
        assert fix.kind in KINDS
        assert fix.safety in SAFETIES
        assert fix.set or fix.edit or fix.run or fix.reason, f"a fix must say what to do: {fix.title}"
    if rule.consequence:
        assert rule.needs.get("en"), "a consequence says what to fetch next"
        assert rule.needs.get("zh")


@by_rule
def test_vocabulary(rule: Rule) -> None:
    known = terms()
    for condition in conditions(rule):
        for name in parse(condition).names:
            assert name.startswith("hit.") or name in known, f"{name} is not in the vocabulary"
    for way in rule.ways:
        groups = {g for ps in way.texts.values() for p in ps for g in re.compile(p).groupindex}
        for name in (n for c in (way.when, way.unless) if c for n in parse(c).names if n.startswith("hit.")):
            assert name[4:] in groups, f"{name}: no such group in the way's expressions"
    for fix in rule.fixes:
        for key in fix.set:
            assert key in known, f"fix sets {key}, which no engine recipe declares"
    for text in (*rule.message.values(), *rule.why.values()):
        for name in re.findall(r"\{([a-z_]\w*\.\w+)", text):
            assert name.startswith("hit.") or name in known, f"message names {name}, which is not in the vocabulary"


@by_rule
def test_explains_known_causes(rule: Rule) -> None:
    known = set(rules())
    assert set(rule.explains) <= known, f"explains what is no recipe: {set(rule.explains) - known}"
    assert rule.cause not in rule.explains


def test_signatures_have_literals() -> None:
    assert len(signatures()) >= len(RULES) // 2
    for s in signatures():
        assert min(letters(text) for text, _ in s.literals) >= 4


INDENTED = re.compile(r"\(\?:(?:[^()]*\|)?\[ \\t\][+*]\[\^\\n\]\*\\n[^()]*\)(?:\{|\*|\+)")


@by_rule
def test_repeated_lines_match_one_way(rule: Rule) -> None:
    """`(?:[ \\t]+[^\\n]*\\n){0,8}` splits each indented line in as many ways as it has blanks: minutes on one large module."""
    for way in rule.ways:
        for patterns in way.texts.values():
            for pattern in patterns:
                assert not INDENTED.search(pattern), pattern


def test_the_check_of_repeated_lines_finds_them() -> None:
    assert INDENTED.search(r"def f:\n(?:[ \t]+[^\n]*\n|[ \t]*\n){0,8}?x")
    assert INDENTED.search(r"(?:[ \t]*[^\n]*\n){0,6}?x")
    assert not INDENTED.search(r"(?:(?:[ \t][^\n]*)?\n){0,8}?x")


@by_rule
def test_a_named_word_keeps_its_letters(rule: Rule) -> None:
    """Before a group of any word, `.{0,2}` takes the word's first letters as well as its quotes."""
    for way in rule.ways:
        for patterns in way.texts.values():
            for pattern in patterns:
                assert not re.search(r"(?<!\\)\.(?:\{\d,\d\}|\?)\(\?P<\w+>\[", pattern), pattern


@pytest.mark.parametrize(
    "line",
    [
        "The model `{}` does not exist.",
        "{{'message': 'The model `{}` does not exist.', 'code': 404}}",
        r'{{"error":"model \"{}\" not found, try pulling it first"}}',
        "ollama._types.ResponseError: model '{}' not found (status code: 404)",
        "Unknown model: {}",
        "Error: model {} is not loaded",
    ],
)
@pytest.mark.parametrize("model", ["deepseek-r1", "Qwen/Qwen3-8B", "/models/m"])
def test_the_model_that_is_not_served_is_named_whole(line: str, model: str) -> None:
    rule = rules()["served-model-name-mismatch"]
    [found] = judged(Example("fires", texts={"log": line.format(model)}), rule).findings
    assert f"does not know the model {model}." in found.message


@by_rule
def test_commands_have_real_line_ends(rule: Rule) -> None:
    """A TOML text in single quotes keeps `\\n` as it is typed."""
    for fix in rule.fixes:
        assert not re.search(r"\\n\w", re.sub(r"""'[^']*'|"[^"]*\"""", "", fix.run)), fix.run


PROSE = re.compile(
    r"\b(?:the|or|of|in|to|an?|is|it|its|with|and|for|not|then|before|after|this|only|one|when|where|names?|needs?|shows?|without|instead|same"
    r"|other|from|until|who|which|keep|first|returns|prints|weights|server|than)\b(?![-_=./:])"
)


@by_rule
def test_remarks_exist_in_chinese(rule: Rule) -> None:
    """What stands behind a `#` of a command is read like any other text."""
    for fix in rule.fixes:
        words = REMARK.findall(fix.run)
        for english, chinese in fix.remarks.items():
            assert english in words, english
            assert re.search("[\u4e00-\u9fff]|：|，", chinese), chinese
        for english in words:
            assert english in fix.remarks or not PROSE.search(english), english


def test_commands_speak_the_language() -> None:
    fix = next(f for f in next(r for r in RULES if r.cause == "vllm-quant-flag-mismatch").fixes if f.remarks)
    english = commands(fix)
    lang.use("zh")
    chinese = commands(fix)
    assert english != chinese
    assert [line.split("#")[0] for line in english] == [line.split("#")[0] for line in chinese]
    assert "不带 --quantization" in "\n".join(chinese)
