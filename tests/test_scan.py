"""One pass over dirty, big, packed and broken texts."""

import gzip
import io
import random
from pathlib import Path

import pytest

from dstune.catalog.signatures import log_facts, signature, signatures
from dstune.errors import UnobservableError
from dstune.readers import decoded, read_files, recognise, without_comments
from dstune.readers.scan import KEEP, Scanner, blocks, clean, open_log

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.02 GiB is free."


def test_line_numbers_and_groups() -> None:
    rows = [signature("c", 0, 0, "log", r"needle (?P<size_mib>[\d.]+ GiB)")]
    text = "a\nb\nneedle 2.00 GiB x\nc\nneedle 1 GiB\n"
    hits, _ = Scanner(rows).scan([(1, text)], "log", "f")
    assert [(h.line, h.groups["size_mib"]) for h in hits] == [(3, 2048.0), (5, 1024.0)]


def test_line_numbers_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dstune.readers.scan.BLOCK", 100)
    lines = [f"line {i} " + "x" * random.Random(i).randrange(60) for i in range(400)]
    lines[250] = "here is the needle"
    rows = [signature("c", 0, 0, "log", "the needle")]
    hits, _ = Scanner(rows).scan(blocks(io.BytesIO("\n".join(lines).encode())), "log", "f")
    assert [h.line for h in hits] == [251]


def test_multiline_expression() -> None:
    rows = [signature("c", 0, 0, "log", r"first thing\n.*second thing")]
    hits, _ = Scanner(rows).scan([(1, "x\nfirst thing\nthen second thing\n")], "log", "f")
    assert [h.line for h in hits] == [2]


def test_repeated_line_is_bounded() -> None:
    rows = [signature("c", 0, 0, "log", "needle")]
    hits, _ = Scanner(rows).scan([(1, "needle\n" * 5000)], "log", "f")
    assert len(hits) == KEEP


def test_clean_keeps_line_numbers() -> None:
    assert clean("\x1b[31mred\x1b[0m\r\nbar 1%\rbar 2%\nend\0") == "red\nbar 1% bar 2%\nend "


@pytest.mark.parametrize("form", ["plain", "crlf", "gz", "utf16", "ansi", "prefix", "junk"])
def test_same_cause_in_every_dress(form: str, tmp_path: Path) -> None:
    text = f"start\n{OOM}\nend\n"
    data = text.encode()
    name = "server.log"
    if form == "crlf":
        data = text.replace("\n", "\r\n").encode()
    elif form == "gz":
        name, data = "server.log.gz", gzip.compress(data)
    elif form == "utf16":
        data = text.encode("utf-16")
    elif form == "ansi":
        data = text.replace("CUDA", "\x1b[31mCUDA\x1b[0m").encode()
    elif form == "prefix":
        data = "".join(f"web-1  | 2026-11-30T10:00:00.123Z (EngineCore pid=7) {line}\n" for line in text.splitlines()).encode()
    elif form == "junk":
        data = b"\xff\xfe\x80 junk\n".replace(b"\xff\xfe", b"\xfa\xfb") + data
    path = tmp_path / name
    path.write_bytes(data)
    seen, _ = read_files([str(path)])
    assert seen.first("log", "oom_tried_mib") == 2048
    line = next(seen.find("log", "oom_tried_mib")).line
    assert line == (3 if form == "junk" else 2)


def test_standard_input() -> None:
    seen, _ = read_files(["-"], stdin=io.BytesIO(OOM.encode()))
    assert seen.first("log", "oom_total_mib") == pytest.approx(23.65 * 1024)


def test_binary_and_missing_are_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\x7fELF" + bytes(500))
    with pytest.raises(UnobservableError, match="binary"):
        read_files([str(tmp_path / "a.log")])
    with pytest.raises(UnobservableError, match="cannot be read"):
        read_files([str(tmp_path / "none.log")])
    with pytest.raises(UnobservableError, match="folder"):
        read_files([str(tmp_path)])


def test_gb18030_is_read() -> None:
    assert decoded("显存不足".encode("gb18030"), "x") == "显存不足"


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("app.py", "", "app"), ("x/Dockerfile.gpu", "", "dockerfile"), ("compose.prod.yaml", "", "compose"), ("run.sh", "", "command"),
        ("a.yaml", "services:\n  x:\n", "config"), ("<stdin>", "services:\n  x:\n", "compose"), ("<stdin>", "FROM python:3.11\n", "dockerfile"),
        ("<stdin>", "vllm serve m --dtype half\n", "command"), ("<stdin>", "import torch\nx=1\n", "app"), ("<stdin>", OOM, "log"),
        ("<stdin>", "docker run --gpus all img\n", "command"), ("notes.txt", "hello", "log"),
    ],
)  # fmt: skip
def test_recognise(path: str, text: str, kind: str) -> None:
    assert recognise(path, text) == kind


def test_comments_are_no_code() -> None:
    text = 'x = "# not a comment"  # token=hf_secret\n# use_cache=False\ny = 1\n'
    assert without_comments("app", text) == 'x = "# not a comment"\n\ny = 1\n'
    assert without_comments("command", "run --a # b\n#!x\n") == "run --a \n#!x\n"


def test_the_real_table_scans_each_kind() -> None:
    assert {"log"} <= {s.kind for s in signatures()}
    assert open_log(__file__).read(3) == b'"""'
