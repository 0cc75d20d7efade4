"""Code edits: golden before/after pairs in tests/edits, and what must hold for all of them on any program."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dstune.readers.app_edit import edited, edits, keyword_set
from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_notebook import in_cells, is_notebook

FOLDER = Path(__file__).parent / "edits"


def cases() -> list[tuple[str, str, Context, str, str]]:
    """(edit, title, context, before, after) of every `==` block: `-- becomes` holds the text after, `-- stays` means untouched."""
    found = []
    for path in sorted(FOLDER.glob("*.txt")):
        for block in re.split(r"(?m)^== ", path.read_text(encoding="utf-8"))[1:]:
            title, _, rest = block.partition("\n")
            name, _, options = title.partition(" {")
            before, stays, tail = re.split(r"(?m)^-- (becomes|stays)\n", rest)
            given_ = json.loads("{" + options) if options else {}
            context = Context(given_.get("versions", {}), given_.get("settings", {}), (), tuple(given_.get("texts", ())))
            found.append((path.stem, name, context, before, tail if stays == "becomes" else before))
    return found


CASES = cases()
IDS = [f"{c[0]}: {c[1]}" for c in CASES]


@pytest.mark.parametrize(("name", "title", "context", "before", "after"), CASES, ids=IDS)
def test_golden(name: str, title: str, context: Context, before: str, after: str) -> None:
    assert (edited(before, name, context) or before) == after


@pytest.mark.parametrize(("name", "title", "context", "before", "after"), CASES, ids=IDS)
def test_twice_changes_nothing_more(name: str, title: str, context: Context, before: str, after: str) -> None:
    once = edited(before, name, context) or before
    ast.parse(once)
    assert (edited(once, name, context) or once) == once


def test_every_edit_has_a_case_that_changes_something() -> None:
    assert set(edits()) == {name for name, _, _, before, after in CASES if before != after}


NOISE = [
    "x = [1,2,  3] # odd   spacing\n", "def helper(a,b = 2 , *c):\n\n    return   {a :b}\n", '"""text with # and \'quotes\'"""\n', "\n\n\n",
    "if True :\n\tpass\n", "class  K( object ):\n    y : int=3\n    def m(self): return self . y\n", "z = lambda q :q+1 ; w = z( 1 )\n",
    "names = ('a'\n     'b')  # 注释\n", "s = f\"{x!r:>10} {'n' }\"\n", "try :\n    import  json\nexcept ImportError as e :\n    json=None\n",
    "t = requests.get('http://example.com').json( )\n", "assert  x , 'no'\n",
]  # fmt: skip


def filled(text: str) -> Counter[str]:
    """The lines that hold something (an import may stand somewhere else, and blank lines with it). New lines are indented as the
    file's first indented line is, tabs where that has tabs.
    """
    return Counter(line.replace("\t", "    ") for line in text.split("\n") if line.strip())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    case=st.sampled_from([c for c in CASES if c[3] != c[4]]),
    before=st.lists(st.sampled_from(NOISE), max_size=4),
    after=st.lists(st.sampled_from(NOISE), max_size=4),
)
def test_unrelated_code_keeps_its_bytes(case: tuple[str, str, Context, str, str], before: list[str], after: list[str]) -> None:
    """Code around a program, whatever its style, comes back byte for byte; the edit does the same as without it."""
    name, _, context, text, wanted = case
    assume(name != "main-guard")  # it indents what follows
    assume(name != "stream-endpoint" or not any("import  json" in part for part in [*before, *after]))  # there already
    head, tail = "".join(before), "".join(after)
    out = edited(head + text + tail, name, context)
    assert out is not None
    ast.parse(out)
    assert out.endswith(tail)
    for part in before:
        assert part in out
    assert filled(out) == filled(head + wanted + tail)
    assert (edited(out, name, context) or out) == out


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(NOISE), min_size=1, max_size=6), name=st.sampled_from(sorted(edits())))
def test_foreign_code_is_left_alone(parts: list[str], name: str) -> None:
    assert edited("".join(parts), name, Context()) is None


@settings(max_examples=60, deadline=None)
@given(
    args=st.lists(
        st.sampled_from(["ids", "max_new_tokens=64", "temperature=0.6", "top_p=0.95", "**inputs"]), unique=True, max_size=5
    ),
    style=st.sampled_from(["({})", "(\n    {},\n)", "(\n    {}\n)", "( {} )", "(\n    {},  # last\n)"]),
    key=st.sampled_from(["top_k", "repetition_penalty"]),
    number=st.integers(1, 99),
)
def test_a_keyword_goes_in_and_out_again(args: list[str], style: str, key: str, number: int) -> None:
    """Adding a keyword and taking it away gives the same bytes, in each way of laying out a call."""
    args = sorted(args, key=lambda a: ("=" in a, a.startswith("*")))
    joint = ",\n    " if "\n" in style else ", "
    text = f"out = model.generate{style.format(joint.join(args)) if args else '()'}\ninputs = tokenizer(x)\n"
    ast.parse(text)
    there = keyword_set(text, f"generate.{key}", str(number))
    assert there is not None
    assert f"{key}={number}" in there
    assert keyword_set(there, f"generate.{key}", str(number)) is None
    assert keyword_set(there, f"generate.{key}", None) == text


def notebook(*cells: str, **style: Any) -> str:
    made: list[dict[str, Any]] = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": c.splitlines(keepends=True)}
        for c in cells
    ]
    made.insert(1, {"cell_type": "markdown", "metadata": {}, "source": ["# 说明"]})
    return (
        json.dumps(
            {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, **{"indent": 1, "ensure_ascii": False, **style}
        )
        + "\n"
    )


@pytest.mark.parametrize("style", [{}, {"indent": 2}, {"ensure_ascii": True}, {"indent": None}])
def test_a_notebook_changes_in_its_cells_only(style: dict[str, Any]) -> None:
    """Magics, shell cells, markdown and the layout of the JSON stay."""
    cells = (
        "!pip install transformers\nfrom transformers import AutoModelForCausalLM",
        "%%bash\nmodel = AutoModelForCausalLM.from_pretrained('x')",
        "%time\nmodel = AutoModelForCausalLM.from_pretrained('m')  # 模型\nif x:\n    !nvidia-smi\n    pass\n",
        "",
        "out = model.generate(ids, max_new_tokens=9, use_cache=False)",
    )
    text = notebook(*cells, **style)
    assert is_notebook("a.ipynb", text)
    after = in_cells(text, lambda code: edited(code, "set-dtype"))
    changed = cells[2].replace("('m')", "('m', torch_dtype=\"auto\")")
    assert after == notebook(*cells[:2], changed, *cells[3:], **style)
    assert in_cells(after, lambda code: edited(code, "set-dtype")) is None


def test_a_notebook_whose_cells_would_mix_is_left_to_a_person() -> None:
    cells = ("from transformers import pipeline", "def f(x):\n    return 1", "y = 2")
    assert in_cells(notebook(*cells), lambda code: code.replace("# dstune cell 1\n", "")) is None
    assert in_cells("{not json", lambda code: code) is None
    odd = notebook(*cells).replace('"nbformat": 4', '"nbformat":  4')
    assert in_cells(odd, lambda code: code.replace("y = 2", "y = 3")) is None


def test_a_program_that_does_not_parse_is_left_alone() -> None:
    assert edited("model = AutoModelForCausalLM.from_pretrained('m'\n", "set-dtype") is None


def test_recipes_name_edits_that_exist() -> None:
    from dstune.catalog import load
    from dstune.readers import text_edit

    named = {fix["edit"] for recipe in load("symptoms").values() for fix in recipe.get("fix", ()) if "edit" in fix}
    assert named
    assert named <= {*edits(), *text_edit.EDITS}
