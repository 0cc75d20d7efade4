"""Files keep their bytes, are written all or none, and come back."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstune import patch
from dstune.errors import DstuneError
from dstune.patch import Change, decode, diff, read


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    assert not list(tmp_path.rglob(".dstune-*")), "temporary files stay behind"


ENCODINGS = {
    "utf-8": ("utf-8", b""), "mark": ("utf-8", b"\xef\xbb\xbf"), "utf-16-le": ("utf-16-le", b"\xff\xfe"), "utf-16-be": ("utf-16-be", b"\xfe\xff"),
    "gb18030": ("gb18030", b""),
}  # fmt: skip


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_only_edited_lines_change_their_bytes(name: str, end: str, final: bool) -> None:
    encoding, mark = ENCODINGS[name]
    lines = ["a = 1\t# 注释", "b = 2", "", "c = '中文'"]

    def stored(some: list[str]) -> bytes:
        return mark + (end.join(some) + (end if final else "")).encode(encoding)

    source = decode("x.py", "x.py", stored(lines))
    assert source.text == "\n".join(lines) + ("\n" if final else "")
    assert source.encoded(source.text) == stored(lines)
    after = ["a = 1\t# 注释", "b = 3  # 改", "new = 1", "", "c = '中文'"]
    assert source.encoded("\n".join(after) + ("\n" if final else "")) == stored(after)


def test_mixed_endings_stay_where_they_were() -> None:
    source = decode("x", "x", b"a\r\nb\nc\r\nd\r\n")
    assert source.encoded("a\nb\nc\nnew\nd\n") == b"a\r\nb\nc\r\nnew\r\nd\r\n"


def test_bytes_that_no_encoding_reads_stay() -> None:
    data = b"a = '\xff\xfe\x80'\nb = 1\n"
    source = decode("x", "x", data)
    assert source.encoded(source.text.replace("b = 1", "b = 2")) == data.replace(b"b = 1", b"b = 2")


@given(data=st.binary(max_size=60).filter(lambda b: b"\0" not in b), tail=st.sampled_from([b"", b"\n", b"\r\n", b"\r"]))
def test_any_text_file_round_trips(data: bytes, tail: bytes) -> None:
    try:
        source = decode("x", "x", data + tail)
    except DstuneError:
        return  # damaged UTF-16
    assert source.encoded(source.text) == data + tail
    assert b"".join([source.mark, *source.lines]) == data + tail


@given(
    old=st.lists(st.sampled_from(["a", "b", "", "c"]), max_size=8),
    new=st.lists(st.sampled_from(["a", "b", "", "d"]), max_size=8),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_an_edit_is_encoded_whole(old: list[str], new: list[str], end: str) -> None:
    source = decode("x", "x", end.join(old).encode())
    wanted = end.join(new) if len(old) > 1 else "\n".join(new)  # a file without a line end gets \n
    assert source.encoded("\n".join(new)) == wanted.encode()


def test_a_diff_can_be_applied(tmp_path: Path) -> None:
    before, after = "a\nb\nc\nlast", "a\nB\nc\nlast\n"
    (tmp_path / "f.txt").write_text(before)
    done = subprocess.run(
        ["git", "apply", "-p0", "-"], input=diff("f.txt", before, after) + "\n", text=True, cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "f.txt").read_text() == after
    assert diff("f", before, before) == ""


def files(tmp_path: Path, *names: str) -> list[patch.Source]:
    for name in names:
        (tmp_path / name).write_text(f"{name} old\n")
    return [read(str(tmp_path / name)) for name in names]


def new(sources: list[patch.Source]) -> list[Change]:
    return [Change(s, s.data.replace(b"old", b"new")) for s in sources if s.data]


def test_written_with_mode_and_taken_back(tmp_path: Path) -> None:
    sources = files(tmp_path, "a", "b")
    os.chmod(tmp_path / "a", 0o751)
    number = patch.write(new(sources), {"command": "fix"})
    assert (tmp_path / "a").read_text() == "a new\n"
    assert stat.S_IMODE(os.stat(tmp_path / "a").st_mode) == 0o751
    assert stat.S_IMODE(os.stat(Path(patch.store()) / number).st_mode) == 0o700
    manifest = patch.undo()
    assert manifest["id"] == number
    assert [(tmp_path / n).read_text() for n in "ab"] == ["a old\n", "b old\n"]
    assert stat.S_IMODE(os.stat(tmp_path / "a").st_mode) == 0o751
    with pytest.raises(DstuneError, match="nothing to undo"):
        patch.undo()
    with pytest.raises(DstuneError, match="undone already"):
        patch.undo(number)


def test_undo_goes_back_one_fix_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("1")
    for text in ("2", "3"):
        patch.write([Change(read(str(path)), text.encode())])
    patch.undo()
    assert path.read_text() == "2"
    patch.undo()
    assert path.read_text() == "1"
    assert [bool(m["undone"]) for m in patch.backups()] == [True, True]


def test_a_symlink_stays_and_its_target_changes(tmp_path: Path) -> None:
    [source] = files(tmp_path, "real")
    (tmp_path / "link").symlink_to("real")
    patch.write(new([read(str(tmp_path / "link"))]))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "real new\n"
    assert source.real == str(tmp_path / "real")


def test_a_new_file_is_made_and_undone(tmp_path: Path) -> None:
    path = str(tmp_path / "made")
    patch.write([Change(patch.Source(path, path, None, ""), b"text\n")])
    assert (tmp_path / "made").read_text() == "text\n"
    patch.undo()
    assert not (tmp_path / "made").exists()


def test_refuses_a_file_that_changed_meanwhile(tmp_path: Path) -> None:
    sources = files(tmp_path, "a", "b")
    (tmp_path / "b").write_text("b edited\n")
    with pytest.raises(DstuneError) as error:
        patch.write(new(sources))
    assert "changed since" in error.value.why
    assert (tmp_path / "a").read_text() == "a old\n"
    assert patch.backups() == []


def test_refuses_read_only(tmp_path: Path) -> None:
    sources = files(tmp_path, "a", "b")
    os.chmod(tmp_path / "b", 0o444)
    with pytest.raises(DstuneError) as error:
        patch.write(new(sources))
    assert "read-only" in error.value.why
    assert (tmp_path / "a").read_text() == "a old\n"


@pytest.mark.parametrize("what", ["folder", "fifo", "missing", "binary"])
def test_refuses_what_is_no_text_file(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    {
        "folder": path.mkdir,
        "fifo": lambda: os.mkfifo(path),
        "missing": lambda: None,
        "binary": lambda: path.write_bytes(b"\x7fELF\0\0"),
    }[what]()
    with pytest.raises(DstuneError):
        read(str(path))


@pytest.mark.parametrize("fails_at", ["fsync", "rename"])
@pytest.mark.parametrize("links", [True, False])
def test_a_failure_in_the_middle_puts_all_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str, links: bool
) -> None:
    """The second file fails (the disk is full): the first is as it was, to the inode where links exist, and no backup is left."""
    sources = files(tmp_path, "a", "b", "c")
    inode = os.stat(tmp_path / "a").st_ino
    count = {"n": 0}
    real_replace, real_fsync = os.replace, os.fsync

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "b"))

    def replace(a: str, b: str) -> None:
        count["n"] += fails_at == "rename"
        full() if fails_at == "rename" and count["n"] == 2 else real_replace(a, b)

    def fsync(handle: int) -> None:
        count["n"] += fails_at == "fsync"
        full() if fails_at == "fsync" and count["n"] == 2 else real_fsync(handle)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    if not links:
        monkeypatch.setattr(os, "link", full)
    with pytest.raises(DstuneError) as error:
        patch.write(new(sources))
    assert "No space left" in error.value.why
    assert [(tmp_path / n).read_text() for n in "abc"] == ["a old\n", "b old\n", "c old\n"]
    assert not links or os.stat(tmp_path / "a").st_ino == inode
    assert patch.backups() == []


def test_no_room_for_the_backup_means_no_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = files(tmp_path, "a")
    (tmp_path / "state").write_text("a file where a folder should be")
    with pytest.raises(DstuneError, match="no backup"):
        patch.write(new(sources))
    assert (tmp_path / "a").read_text() == "a old\n"


def test_undo_refuses_an_edited_file_and_forces_with_the_edit_kept(tmp_path: Path) -> None:
    sources = files(tmp_path, "a", "b")
    number = patch.write(new(sources))
    (tmp_path / "b").write_text("mine\n")
    with pytest.raises(DstuneError, match="changed after the fix"):
        patch.undo()
    assert (tmp_path / "a").read_text() == "a new\n"
    patch.undo(number, force=True)
    assert [(tmp_path / n).read_text() for n in "ab"] == ["a old\n", "b old\n"]
    assert (Path(patch.store()) / number / "1.edited").read_text() == "mine\n"


def test_undo_refuses_a_damaged_backup(tmp_path: Path) -> None:
    number = patch.write(new(files(tmp_path, "a")))
    (Path(patch.store()) / number / "0.old").write_text("rubbish")
    with pytest.raises(DstuneError, match="damaged"):
        patch.undo()
    assert (tmp_path / "a").read_text() == "a new\n"


def test_undo_brings_back_a_deleted_file_by_force(tmp_path: Path) -> None:
    patch.write(new(files(tmp_path, "a")))
    (tmp_path / "a").unlink()
    with pytest.raises(DstuneError):
        patch.undo()
    patch.undo(force=True)
    assert (tmp_path / "a").read_text() == "a old\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_between_two_files_leaves_both_old(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / "a.py", tmp_path / "b.py"]
    for path in paths:
        path.write_text("old\n")
    swap = patch._swap

    def struck(*item: Any) -> None:
        swap(*item)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(patch, "_swap", struck)
    with pytest.raises(SystemExit) as ended:
        patch.replace([Change(patch.read(str(p)), b"new\n") for p in paths])
    assert ended.value.code == 128 + number
    assert [p.read_text() for p in paths] == ["old\n", "old\n"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.py", "b.py"]
    assert signal.getsignal(number) is signal.SIG_DFL
