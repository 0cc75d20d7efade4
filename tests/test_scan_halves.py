"""Two processes over one big file find what one finds."""

import io
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dstune.catalog.signatures import signatures
from dstune.readers import read_files, scan_halves
from dstune.readers.scan import blocks, scanner
from dstune.readers.scan_facts import LineFacts
from dstune.readers.scan_halves import scan_halves as both
from dstune.readers.scan_pass import Pass, joined

LOGS = Path(__file__).parent / "logs"


def mixed(seed: int, size: int) -> str:
    """Pieces of real logs, one after the other and line by line in between, numbers changed."""
    source = random.Random(seed)
    texts = [f.read_text(errors="replace").split("\n") for f in sorted(LOGS.rglob("*.log"))]
    lines: list[str] = []
    length = 0
    while length < size:
        chosen = [source.choice(texts) for _ in range(3)]
        starts = [source.randrange(len(t)) for t in chosen]
        new = [t[at : at + 12] for t, at in zip(chosen, starts, strict=True)]
        run = new[0] if source.random() < 0.6 else [line for three in zip(*new, strict=False) for line in three]
        if source.random() < 0.1:
            run = [f"\x1b[3{i % 8}m{line}\x1b[0m\r" for i, line in enumerate(run)]
        run = [re.sub(r"\d\d+", lambda m: str(source.randrange(10 ** len(m[0]))), line, count=2) for line in run]
        lines += run
        length += sum(len(line) + 1 for line in run)
    return "\n".join(lines)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dstune.readers.scan_halves.BIG", 1)


@pytest.mark.parametrize("seed", range(3))
def test_halves_find_what_the_whole_holds(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(mixed(seed, 600_000), newline="")
    found = both(str(path), "server.log")
    assert found == scanner("log").scan(blocks(io.BytesIO(path.read_bytes())), "log", "server.log")
    assert found is not None
    assert len(found[0]) > 300
    assert len(found[1]) > 10


def halves(text: bytes, cut: int) -> Any:
    """As two processes do it, in one."""
    scan = scanner("log")
    parts = []
    for begin, end in ((0, cut), (cut, len(text))):
        run = Pass(scan, "log", "f", text[:begin])
        run.block(1, text[begin:end])
        part = run.part(text[end:])
        part.lines = text.count(b"\n", begin, end)
        parts.append(part)
    parts[1].facts = LineFacts.of_plain(parts[1].facts.plain())
    whole = joined(*parts)
    return [hit for _, _, hit in whole.hits], whole.facts.found("f")


def test_every_cut_of_a_short_log() -> None:
    """Expressions that reach over line ends, facts by each `keep`, hits by the dozen: at every line end."""
    text = (
        "INFO Model loading took 3.5 GiB\nRuntimeError: CUDA error: an illegal memory access was encountered\n"
        "INFO Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 41.5 tokens/s, Running: 3 reqs, Waiting: 9 reqs, GPU KV cache usage: 99.1%, Prefix cache hit rate: 4.0%\n"
        "Loading checkpoint shards: 100%\nPOST /v1/x 200\n\nLoading checkpoint shards: 100%\n"
        "INFO Engine 000: Avg prompt throughput: 11.0 tokens/s, Avg generation throughput: 4.5 tokens/s, Running: 30 reqs, Waiting: 0 reqs, GPU KV cache usage: 9.1%, Prefix cache hit rate: 8.0%\n"
        "INFO Loading model weights took 14.2 GiB\nINFO Model loading took 9.5 GiB\n"
    ) + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n" * 30  # fmt: skip
    data = text.encode()
    expected = scanner("log").scan([(1, data)], "log", "f")
    assert any(h.groups for h in expected[0])
    assert {f.name for f in expected[1]} >= {"waiting", "kv_usage_pct", "prefix_hit_pct"}
    for cut in (m.end() for m in re.finditer(b"\n", data)):
        assert halves(data, cut) == expected, cut


def test_facts_of_any_order_join() -> None:
    """Values that are kept as last, first or highest, of one name too, cut anywhere."""
    rows = [number for number, s in enumerate(signatures()) if not s.cause]
    scan = scanner("log")
    by_keep = [number for number, s in enumerate(scan.rows) if not s.cause]
    assert rows
    source = random.Random(7)
    for _ in range(300):
        events = [(source.choice(by_keep[:60]), float(source.randrange(5))) for _ in range(6)]
        cut = source.randrange(7)
        whole, first, then = (LineFacts(scan, set()) for _ in range(3))
        for line, (row, value) in enumerate(events, 1):
            names = Counter(("server.a", "server.b")[row % 2 :])
            whole.keep(row, line, "", dict.fromkeys(names, value))
            (first if line <= cut else then).keep(row, line if line <= cut else line - cut, "", dict.fromkeys(names, value))
        first.join(LineFacts.of_plain(then.plain()), cut)
        assert first.found("f") == whole.found("f")


def test_a_child_that_fails_leaves_the_file_to_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(mixed(9, 100_000))
    expected, _ = read_files([str(path)], {str(path): "log"})
    monkeypatch.setattr("dstune.readers.WHOLE", 1000)
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert both(str(path), str(path)) is None
    monkeypatch.setattr("sys.executable", str(tmp_path / "none"))
    assert both(str(path), str(path)) is None
    found, documents = read_files([str(path)])
    assert not documents
    assert {(h.cause, h.line) for h in found.hits} == {(h.cause, h.line) for h in expected.hits if h.kind == "log"}


def test_an_interrupt_ends_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(mixed(9, 100_000))
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*args: Any, **more: Any) -> Any:
        started.append(popen(*args, **more))
        return started[-1]

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(scan_halves, "_half", interrupted)
    with pytest.raises(KeyboardInterrupt):
        both(str(path), "f")
    assert started[0].returncode not in (None, 0)


def test_the_second_process_ends_with_the_first(tmp_path: Path) -> None:
    """A first process that is killed closes the pipe that the second one watches."""

    path = tmp_path / "endless"

    os.mkfifo(path)
    command = [sys.executable, "-P", "-m", "dstune.readers.scan_halves", "log", str(path), "0", "f"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        time.sleep(0.3)
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(30) == 1


@pytest.mark.parametrize("content", [b"", b"a line\n", b"\xff\xfea\0\n\0" * 50, b"x" * 3_000_000])
def test_files_for_one_process(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "small.log"
    path.write_bytes(content)
    assert content == b"a line\n" or both(str(path), "f") is None
