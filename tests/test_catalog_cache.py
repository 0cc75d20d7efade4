"""Parsed recipes are kept until anything that they were made of is another."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dstune import catalog


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`build()`: what `compiled` gives of one file; each time that it is made it is one more."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source, made = tmp_path / "a.toml", [0]
    source.write_text("x = 1")

    def once(name: str = "a") -> int:
        def count() -> int:
            made[0] += 1
            return made[0]

        found: int = catalog.compiled(name, [str(source)], count)
        return found

    return once


def test_made_once(build: Callable[..., int]) -> None:
    assert [build(), build()] == [1, 1]


def test_another_size_or_time_is_another_file(build: Callable[..., int], tmp_path: Path) -> None:
    build()
    (tmp_path / "a.toml").write_text("x = 12")
    assert build() == 2
    os.utime(tmp_path / "a.toml", ns=(5, 5))
    assert build() == 3


def test_other_code_makes_it_anew(build: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "rules.py"
    code.write_text("pass")
    monkeypatch.setattr(catalog, "_code", lambda: (str(code),))
    build()
    code.write_text("pass # another")
    assert build() == 2


def test_the_file_of_another_stamp_is_not_taken(
    build: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build()
    (kept,) = (tmp_path / "dstune").glob("a-*.bin")
    os.utime(tmp_path / "a.toml", ns=(5, 5))
    build()
    (other,) = {*(tmp_path / "dstune").glob("a-*.bin")} - {kept}
    os.replace(kept, other)  # as if both had one checksum
    assert build() == 3
