"""How much of a failure's text doctor needs: the recipes' firing examples and the real cases, each cut down as people paste them.

    python benchmarks/reduction.py [CAUSE …] [--kinds line,cut60,…] [--show] [--jobs N]

Every text that gives its cause first when it is whole is reduced:
    line    a single line that the finding cites, alone          cut80 cut60   that line, cut at a word after 80 % or 60 % of it
    head    exception class and first clause of the line         var           other sizes, quotes, paths and model names
    prefix  timestamps, compose, journald, engine prefixes       bare          without facts
    app     lines of code alone, without imports, `…` arguments, keywords in another order, values through variables
Per cause and kind: first / among the findings / undecided / silent / another cause first / another one first at high confidence.
A cause that is folded under the right one in the whole text counts as "among": it is the same failure, seen from its end.
Exit status 1 when `--fail-below SHARE` is given and the share of reductions that give the cause first is smaller.
"""

from __future__ import annotations

import argparse
import ast
import collections
import multiprocessing
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dstune.catalog.rules import rules
from dstune.diagnose import diagnose
from dstune.model import Diagnosis, Example
from tests.support import evidence_of
from tests.test_cases import KINDS, SHORT, cases

Verdict = str
ORDER = ("first", "among", "undecided", "silent", "other", "sure")
FILES = {"log": "server.log", "app": "app.py", "command": "launch.sh"}
PREFIXES = (
    "2025-11-30 21:03:11,482 ",
    "web-1  | ",
    "Nov 30 21:03:11 gpubox vllm[2817]: ",
    "(EngineCore pid=7) ERROR 11-30 21:03:11 [core.py:712] ",
)
_PORTS = {"11434", "8000", "8080", "7860", "30000", "5000", "8501", "1024", "2048", "4096", "8192"}
_SIZE = re.compile(r"(?<![\w.])(\d+\.\d+)(?= ?[KMG]i?B)")
_LONG = re.compile(r"(?<![\w.:#-])(?<!Error )(\d{4,9})(?![\w.:-])")
_HEX = re.compile(r"0x[0-9a-f]{4,}")
_PATH = re.compile(r"(?<![\w/:.<>~}])(?:~|/(?!/|v\d|api/|dev/))(?:[\w.@+-]+/){1,}(?=[\w.@+-]+)")
_REPO = re.compile(r"(?<![\w/.:@-])(?:[A-Za-z][\w-]+)/(?=[\w.-]*\d)[A-Z][\w.-]+(?![\w/:])")
_QUOTED = re.compile(
    r"(?<!\w)(?<!File )(?<![:=(\[] )(?<![:=(\[{,])(?:\"(?!(?:GET|POST) )([^\"\n{}]{2,60})\"|`([^`\n]{2,60})`|“([^”\n]{2,60})”)(?!\w)"
)
_CLASS = re.compile(r"(?:^|[\s|\]])((?:[a-zA-Z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Warning))(?:: )(.+)")


def seen(example: Example) -> Diagnosis:
    """Doctor's answer to texts and facts."""
    return diagnose(evidence_of(example))


def sources() -> Iterator[tuple[str, str, set[str], Example]]:
    """(where from, cause, right answers, example) of every firing example and every real case."""
    for cause, rule in rules().items():
        for number, example in enumerate(rule.examples):
            if example.expect == "fires" and example.texts:
                yield f"{cause}[{number}]", cause, {cause}, example
    for name, case in cases().items():
        facts = {SHORT.get(k, k): v for k, v in (case.get("facts") or {}).items()}
        texts = {k: case[k] for k in KINDS if case.get(k)}
        if texts:
            yield name, case["cause_id"], {case["cause_id"], *case.get("accept", ())}, Example("fires", facts, texts)


def cut(line: str, share: float) -> str:
    """The line up to the last word that ends within `share` of it."""
    at = int(len(line) * share)
    space = line.rfind(" ", 0, at + 1)
    return line[: space if space > 12 else at].rstrip()


def head(line: str) -> str:
    """`HFValidationError: Repo id must be in the form` of a line that names an exception; "" for others."""
    m = _CLASS.search(line)
    if not m:
        return ""
    clause = re.split(r"(?<=\w)[.;:,](?= |$)|['\"`(<{]", m[2], maxsplit=1)[0].strip()
    return f"{m[1].rsplit('.', 1)[-1]}: {clause}" if len(clause) >= 12 else ""


def varied(text: str) -> str:
    """Other sizes, long numbers and addresses, single quotes, `<path>/file` and `<model>`."""
    text = _SIZE.sub(lambda m: f"{float(m[1]) * 1.03:.2f}", text)
    text = _LONG.sub(lambda m: m[1] if m[1] in _PORTS else str(int(m[1]) + 3), text)
    text = _HEX.sub("0x7f1c2a30", text)
    text = _QUOTED.sub(lambda m: f"'{m[1] or m[2] or m[3]}'", text)
    return _REPO.sub("<model>", _PATH.sub("<path>/", text))


def of_text(text: str, lines: list[int]) -> Iterator[tuple[str, str]]:
    """Reductions of a log."""
    rows = text.splitlines()
    yield "var", varied(text)
    for prefix in PREFIXES:
        yield "prefix", "\n".join(prefix + row if row.strip() else row for row in rows)
    for at in lines:
        row = rows[at - 1].strip() if at <= len(rows) else ""
        if not row:
            continue
        for kind, small in (("line", row), ("cut80", cut(row, 0.8)), ("cut60", cut(row, 0.6)), ("head", head(row))):
            if len(small) >= 16:
                yield kind, small
        yield "line-var", varied(row)


class _Dots(ast.NodeTransformer):
    """Positional arguments that are no literals become `...`."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        node.args = [a if isinstance(a, ast.Constant | ast.Call | ast.Starred) else ast.Constant(...) for a in node.args]
        return node


class _Turned(ast.NodeTransformer):
    """Keyword arguments in the opposite order."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        node.keywords = node.keywords[::-1]
        return node


class _Named(ast.NodeTransformer):
    """Literal keyword arguments of calls go through variables set before."""

    def __init__(self) -> None:
        self.set: dict[str, ast.expr] = {}

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        for keyword in node.keywords:
            if keyword.arg and isinstance(keyword.value, ast.Constant) and keyword.value.value is not ...:
                name = f"{keyword.arg.upper()}_{len(self.set)}"
                self.set[name] = keyword.value
                keyword.value = ast.Name(name)
        return node


def of_code(text: str, lines: list[int]) -> Iterator[tuple[str, str]]:
    """Reductions of a Python program."""
    rows = text.splitlines()
    for at in lines:
        if at <= len(rows) and len(rows[at - 1].strip()) >= 12:
            yield "app-line", rows[at - 1].strip()
    kept = "\n".join(r for r in rows if not re.match(r"\s*(?:import|from) \w", r))
    if kept != "\n".join(rows) and kept.strip():
        yield "app-no-import", kept
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    named = _Named()
    for kind, change in (("app-dots", _Dots()), ("app-turned", _Turned()), ("app-vars", named)):
        new = change.visit(ast.parse(text))
        if ast.dump(new) == ast.dump(tree):
            continue
        before = "".join(f"{n} = {ast.unparse(v)}\n" for n, v in named.set.items()) if change is named else ""
        yield kind, before + ast.unparse(ast.fix_missing_locations(new))


def reductions(example: Example, cited: dict[str, list[int]]) -> Iterator[tuple[str, Example]]:
    """(kind, smaller example), each once."""
    known: set[str] = set()
    for kind, text in example.texts.items():
        makers = {"log": of_text, "any": of_text, "app": of_code}
        if kind == "command":
            small = [("command-var", varied(text)), ("command-line", " ".join(text.replace("\\\n", " ").split()))]
        elif kind in makers:
            small = list(makers[kind](text, cited.get(FILES["log" if kind == "any" else kind], [])))
        else:
            small = []
        for name, new in small:
            if new not in known and new.strip() != text.strip():
                known.add(new)
                texts = {kind: new} if name in ("line", "cut80", "cut60", "head", "line-var") else {**example.texts, kind: new}
                yield name, Example("fires", example.facts, texts)
    if example.facts:
        yield "bare", Example("fires", {}, example.texts)


def verdict(right: set[str], folded: set[str], got: Diagnosis) -> Verdict:
    """One of ORDER."""
    first = got.findings[0] if got.findings else None
    if first and first.cause in right:
        return "first"
    if right & {f.cause for f in got.findings} or (first and first.cause in folded):
        return "among"
    if first:
        return "sure" if first.confidence == "high" and first.severity == "error" else "other"
    return "undecided" if right & {u.cause for u in got.unknown} else "silent"


def judge(item: tuple[str, str, set[str], Example]) -> list[tuple[str, str, str, str, str, str]]:
    """(cause, where, kind, verdict, what came, text) of all reductions of one source."""
    where, cause, right, example = item
    whole = seen(example)
    if not whole.findings or whole.findings[0].cause not in right:
        return []
    cited: dict[str, list[int]] = collections.defaultdict(list)
    for cite in whole.findings[0].evidence:
        if cite.line is not None and cite.line not in cited[cite.source]:
            cited[cite.source].append(cite.line)
    folded = {f.cause for f in whole.findings if f.because or f.confidence == "high"}
    rows = []
    for kind, small in reductions(example, cited):
        got = seen(small)
        came = ", ".join(f"{f.cause}:{f.confidence}" for f in got.findings[:3])
        rows.append((cause, where, kind, verdict(right, folded, got), came, "\n".join(small.texts.values())))
    return rows


def table(rows: list[tuple[str, str, str, str, str, str]], by: int) -> None:
    """Prints counts per value of column `by`, worst first."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in rows:
        counts[row[by]][row[3]] += 1
    print(f"{'':44}{'all':>6}" + "".join(f"{o:>10}" for o in ORDER))
    for key, c in sorted(counts.items(), key=lambda kv: kv[1]["first"] / kv[1].total()):
        print(f"{key:44}{c.total():6}" + "".join(f"{c[o]:10}" for o in ORDER))


def main() -> int:
    """Runs the command line."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("causes", nargs="*")
    ask.add_argument("--kinds", default="")
    ask.add_argument("--show", action="store_true", help="print the texts that do not give the cause first")
    ask.add_argument("--jobs", type=int, default=2)
    ask.add_argument("--fail-below", type=float, default=0.0)
    given = ask.parse_args()
    items = [s for s in sources() if not given.causes or s[1] in given.causes]
    with multiprocessing.Pool(given.jobs) as pool:
        rows = [r for part in pool.imap(judge, items, chunksize=8) for r in part]
    if given.kinds:
        rows = [r for r in rows if r[2] in given.kinds.split(",")]
    table(rows, 0)
    print()
    table(rows, 2)
    if given.show:
        for _, where, kind, result, came, text in rows:
            if result not in ("first", "among"):
                print(f"\n{result} {kind} {where} -> {came or '-'}\n    " + text.replace("\n", "\n    "))
    first = sum(r[3] == "first" for r in rows)
    sure = sum(r[3] == "sure" for r in rows)
    print(f"\n{len(rows)} reductions: {first / max(len(rows), 1):.3f} give the cause first, {sure} another cause for certain")
    return int(first < given.fail_below * len(rows))


if __name__ == "__main__":
    raise SystemExit(main())
