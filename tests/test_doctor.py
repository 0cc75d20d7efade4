"""What doctor takes from this host beside the files it is given."""

import os
from pathlib import Path

import pytest

from dstune.cli.doctor import _environments, _not_of_others, _same_environment, _same_machine, left_out
from dstune.cli.options import waits
from dstune.model import Document, Evidence, Fact, Gap

LOG = """Traceback (most recent call last):
  File "/home/li/venv/lib/python3.11/site-packages/transformers/modeling_utils.py", line 1, in from_pretrained
torch.OutOfMemoryError: CUDA out of memory."""


def host(executable: str) -> Evidence:
    return Evidence((
        Fact("python", "executable", executable), Fact("python", "transformers", "5.1.0"), Fact("torch", "build", "2.11.0"),
        Fact("python1", "executable", "/home/li/venv/bin/python3"), Fact("python1", "transformers", "4.40.0"), Fact("host", "os", "linux"),
    ))  # fmt: skip


def names(evidence: Evidence) -> set[str]:
    return {f.subject for f in evidence.facts}


def test_packages_of_another_environment_say_nothing_about_the_log() -> None:
    named = _environments([Document("server.log", "log", LOG)])
    assert named == {"/home/li/venv"}
    kept = _same_environment(host("/opt/other/bin/python3"), named)
    assert names(kept) == {"python1", "host"}
    assert kept.first("python", "transformers") == "4.40.0"


def test_packages_of_a_machine_without_a_card_say_nothing_about_a_log_with_one() -> None:
    table = Evidence((Fact("gpu0", "name", "NVIDIA GeForce RTX 3090", "log", line=8),))
    bare = host("/opt/bin/python3").plus([Fact("gpu", "count", 0, "/sys/bus/pci/devices")])
    assert names(_same_machine(bare, table)) == {"host", "gpu"}
    assert names(_same_machine(bare, Evidence())) == names(bare)
    here = host("/opt/bin/python3").plus([Fact("gpu", "count", 1, "nvml")])
    assert names(_same_machine(here, table)) == names(here)


@pytest.mark.parametrize(
    ("reason", "paths", "told"),
    [
        ("libnvidia-ml.so.1 is not on the loader path", ["<stdin>", "-"], False),
        ("libnvidia-ml.so.1 is not on the loader path", ["path.d", "so", "oad"], False),
        ("no services in x/compose.yaml", ["compose.yaml"], False),
        ("no services in compose.yaml", ["compose.yaml"], True),
        ("app.py:3-9 is no Python that can be parsed", ["app.py"], True),
        ("<stdin> is cut off", ["<stdin>", "-"], True),
    ],
)
def test_only_gaps_of_the_named_files_are_told(reason: str, paths: list[str], told: bool) -> None:
    assert bool(left_out(Evidence(gaps=(Gap("x", "*", reason, ""),)), paths)) == told


def test_the_logs_own_environment_stays() -> None:
    named = _environments([Document("server.log", "log", LOG)])
    assert "python" in names(_same_environment(host("/home/li/venv/bin/python"), named))


def test_without_a_traceback_everything_stays() -> None:
    assert _environments([Document("server.log", "log", "Killed")]) == frozenset()
    assert names(_same_environment(host("/opt/other/bin/python3"), frozenset())) == {"python", "python1", "torch", "host"}


def test_a_path_in_a_program_is_no_traceback() -> None:
    assert _environments([Document("app.py", "app", LOG)]) == frozenset()


def test_what_another_server_has_installed_says_nothing_about_a_program() -> None:
    seen = host("/srv/other/bin/python").plus(
        [Fact("python", "role", "server", "x"), Fact("server", "command", "/srv/other/bin/python -m vllm.serve", "proc")]
    )
    others = names(_not_of_others(seen, ["/home/u/app.py"]))
    assert others == {"python1", "host", "server"}
    assert names(_not_of_others(seen, [])) == names(seen)
    started = Fact("server1", "command", "/srv/other/bin/python app.py --port 1", "proc")
    here, there = (Fact("server1", "working_directory", folder, "proc") for folder in ("/home/u", "/home/v"))
    assert names(_not_of_others(seen.plus([started, here]), ["/home/u/app.py"])) == names(seen) | {"server1"}
    assert "python" not in names(_not_of_others(seen.plus([started, there]), ["/home/u/app.py"]))


def test_a_named_pipe_is_told_to_be_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe, file = tmp_path / "server.log", tmp_path / "other.log"
    os.mkfifo(pipe)
    file.write_text("a line\n")
    waits([str(file), str(tmp_path / "missing"), "/dev/fd/0"])
    assert capsys.readouterr() == ("", "")
    waits([str(pipe)])
    said = capsys.readouterr()
    assert said.err.count(str(pipe)) == said.err.count("\n") == 1
    assert not said.out
