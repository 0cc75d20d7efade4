"""The closed vocabulary, both ways: what is emitted is declared, what is declared is read by somebody."""

import json
import re
from pathlib import Path

import pytest

from dstune.catalog.rules import conditions, rules
from dstune.catalog.signatures import log_facts
from dstune.catalog.vocabulary import normalise, said, terms, to_mib, to_number, typed
from dstune.derive import derive
from dstune.expr import Version, parse
from dstune.model import Evidence, Fact, Gap, family_of, from_json
from dstune.readers import read_files
from dstune.report.evidence import _TITLES as SHOWN_BY_PROBE
from dstune.report.health import FAMILIES as SHOWN_BY_DOCTOR

ROOT = Path(__file__).parents[1]
CORPUS = [
    p for folder in ("examples", "tests/apps", "tests/pastes", "tests/logs", "tests/edits") for p in sorted((ROOT / folder).rglob("*"))
    if p.is_file() and p.suffix in (".py", ".log", ".txt", ".sh", ".yaml", ".yml", ".json", ".ipynb", "") and p.stat().st_size < 300_000
]  # fmt: skip
SAME_PACKAGE = {n for n in terms() if n.startswith("python.")}  # a requirement line says of a package what the probe says
BY_SETTINGS = {name for name, term in terms().items() if term.engine}


def undeclared(facts: tuple[Fact, ...]) -> set[str]:
    return {f"{family_of(f.subject)}.{f.name}" for f in facts} - set(terms())


def test_readers_emit_only_declared_facts() -> None:
    found: set[str] = set()
    read = 0
    for path in CORPUS:
        seen, _ = read_files([str(path)])
        found |= undeclared(derive(seen).facts)
        read += len(seen.facts)
    assert read > 500, "the corpus must be worth the test"
    assert found == set()


@pytest.mark.parametrize("path", sorted((ROOT / "tests/evidence").rglob("ev.json")), ids=lambda p: p.parent.name)
def test_recorded_facts_are_declared(path: Path) -> None:
    evidence = from_json(Evidence, json.loads(path.read_text(encoding="utf-8")))
    assert undeclared(derive(evidence).facts) == set()


def test_facts_written_out_in_the_code_are_declared() -> None:
    wrong = set()
    for path in sorted((ROOT / "dstune").rglob("*.py")):
        for family, name in re.findall(r'Fact\(\s*"([a-z_]+)\d*", "([a-z_0-9]+)"', path.read_text(encoding="utf-8")):
            if f"{family}.{name}" not in terms():
                wrong.add(f"{path.name}: {family}.{name}")
    assert wrong == set()


def test_log_facts_set_declared_names() -> None:
    for row in log_facts():
        groups = re.compile(row["log"]).groupindex
        for name, group in row["set"].items():
            subject, _, rest = name.partition(".")
            assert f"{family_of(subject)}.{rest}" in terms(), f"{name} is set by a log line and not declared"
            if isinstance(group, str) and group not in groups:
                assert normalise(f"{family_of(subject)}.{rest}", group) is not None, (
                    f"{name}: {group!r} is neither a group nor a value"
                )


def test_declared_facts_are_read() -> None:
    """By a rule, by the code that plans, derives and renders, or by `dstune probe` and `dstune doctor`, which show their families whole."""
    read = {n for r in rules().values() for c in conditions(r) for n in parse(c).names}
    read |= {
        n
        for r in rules().values()
        for t in (*r.message.values(), *r.why.values(), *r.title.values())
        for n in re.findall(r"\{([a-z_]\w*\.\w+)", t)
    }
    code = "\n".join(
        p.read_text(encoding="utf-8")
        for p in sorted((ROOT / "dstune").rglob("*.py"))
        if p.parts[-2] not in ("probes", "readers")
    )
    unread = {
        name for name, term in terms().items()
        if name not in read and name.replace("requirements.", "python.") not in SAME_PACKAGE and not term.engine and name.partition(".")[0] not in (*SHOWN_BY_PROBE, *SHOWN_BY_DOCTOR) and f'"{name.partition(".")[2]}"' not in code
    }  # fmt: skip
    assert unread == set(), f"declared and read by nobody: {sorted(unread)}"


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("14.50 GiB", 14848),
        ("8110MiB", 8110),
        ("24 GB", 24576),
        ("512", 512),
        ("216.00 MiB", 216),
        ("1,024 KiB", 1),
        ("2147483648 bytes", 2048),
        ("x", None),
    ],
)
def test_sizes(text: str, mib: float | None) -> None:
    assert to_mib(text) == mib


def test_numbers_and_prose() -> None:
    assert to_number("1,234 tokens") == 1234
    assert to_number("0.92") == 0.92
    assert normalise("driver.version", "460.56 loaded, 460.73.01 installed") == "460.56 loaded, 460.73.01 installed"
    assert typed("driver.version", "460.56 loaded") < Version("460.73")
    assert normalise("container_toolkit.installed", "missing") is False
    assert normalise("container_toolkit.installed", "installed") is True
    assert normalise("container.inside", "yes") is True
    assert normalise("gpu.memory_total_mib", "24 GB") == 24576
    assert normalise("driver.version", "unknown") is None
    assert str(typed("container.image_cuda", "13.0.2")) == "13.0", "a patch version is no newer CUDA"


def test_said_facts() -> None:
    items = said({"gpu.name": "Tesla T4", "gpu1.name": "L4", "nonsense.x": 1, "driver.version": "none at all"})
    facts = [i for i in items if isinstance(i, Fact)]
    assert [(f.subject, f.value) for f in facts] == [("gpu0", "Tesla T4"), ("gpu1", "L4")]
    assert [g.name for g in items if isinstance(g, Gap)] == ["x", "version"]
