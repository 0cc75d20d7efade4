"""The import law of docs/architecture.md, over the syntax trees of all modules."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dstune"
RANKS = {
    "errors": 0, "model": 0, "lang": 0, "": 0,
    "expr": 1, "redact": 1,
    "catalog": 2, "derive": 3,
    "diagnose": 4, "verify": 4, "probes": 4, "readers": 4, "load": 4, "plan": 4, "render": 4.2, "patch": 4, "serving": 4.1, "report": 4.5,
    "tui": 5, "cli": 6, "__main__": 7,
}  # fmt: skip
ONLY_IN = {
    "pynvml": ("probes/nvidia",), "psutil": ("probes/host",), "textual": ("tui/",), "click": ("cli/",), "libcst": ("readers/app_edit",),
    "ruamel": ("readers/",), "ahocorasick_rs": ("readers/scan",), "jinja2": ("render/",),
}  # fmt: skip
NEVER = ("torch", "transformers", "flash_attn", "awq", "yaml", "requests", "httpx")
MODULES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py").replace("__init__", "")


def imported(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [node.module or ""] if node.module != "dstune" else [f"dstune.{a.name}" for a in node.names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    mine = room(path)
    assert mine in RANKS, f"{mine} has no rank"
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "dstune":
            theirs = (
                rest.split(".")[0]
                if (rest and (PACKAGE / rest.split(".")[0]).with_suffix("").exists())
                or (PACKAGE / f"{rest.split('.')[0]}.py").exists()
                else ""
            )
            assert theirs == mine or RANKS[theirs] < RANKS[mine], f"{path.name} ({mine}) imports {name}"
        assert top not in NEVER, f"{path.name} imports {top}"
        if top in ONLY_IN:
            where = str(path.relative_to(PACKAGE))
            assert any(where.startswith(prefix) for prefix in ONLY_IN[top]), f"{where} imports {top}"


def test_modules_stay_small() -> None:
    long = {p.name: n for p in MODULES if (n := len(p.read_text(encoding="utf-8").splitlines())) > 450}
    assert not long, f"over 450 lines: {long}"
