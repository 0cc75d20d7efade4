"""Files made to hurt: each is answered within seconds, in bounded memory, and what was not read is said."""

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dstune.errors import UnobservableError
from dstune.model import Evidence
from dstune.readers import read_files

LAUGH = 'a: &a ["lol","lol","lol","lol","lol","lol","lol","lol","lol"]\n' + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)
)
OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
UNREAD = {
    "laugh-compose.yaml": LAUGH + "services:\n  web:\n    image: vllm/vllm-openai\n    environment: *m\n",
    "laugh.yaml": LAUGH,
    "deep.yaml": "[" * 10_000 + "]" * 10_000,
    "deep-compose.yaml": "services:\n  web: " + "{a: " * 10_000 + "}" * 10_000,
    "steps.yaml": "\n".join(" " * i + "a:" for i in range(3000)),
    "long.yaml": "a: " + "b " * 400_000,
    "digits.yaml": "max-model-len: " + "9" * 10_000,
    "deep.json": "[" * 100_000 + "]" * 100_000,
    "deep.toml": "a = " + "[" * 10_000 + "]" * 10_000,
    "digits.toml": "max_model_len = " + "9" * 10_000,
    "dots.toml": ".".join(["a"] * 20_000) + " = 1\n",
    "table.py": "x = [" + "1," * 500_000 + "]",
    "digits.py": "x = " + "9" * 1_000_000,
    "brackets.py": "x = " + "(" * 10_000 + ")" * 10_000,
    "words.sh": "vllm serve " + "a " * 400_000,
}
READ = {
    "cycle.yaml": "a: &a\n  b: *a\n",
    "Dockerfile": "FROM python:3.12\n" + "RUN a \\\n" * 100_000,
    "Dockerfile.huge": "FROM python:3.12\nRUN " + "a " * 100_000,
    "variables.sh": 'X0="$A$A"\n' + "".join(f'X{i}="{f"$X{i - 1}" * 8}"\n' for i in range(1, 40)) + "vllm serve $X39\n",
    "numbers.sh": f"vllm serve m --max-model-len {'9' * 5000} --gpu-memory-utilization nan --swap-space 1e400 --port -1\n",
    "sizes.sh": "docker run --gpus all --shm-size 1.2.3g --memory . vllm/vllm-openai --model m\n",
    "cells.ipynb": '{"cells":' * 20_000,
    "text.pyw": "import torch\nx = " + "+".join(["1"] * 20_000),
}


def read(path: Path, data: str | bytes) -> Evidence:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    began = time.process_time()
    evidence, _ = read_files([str(path)])
    assert time.process_time() - began < 10
    return evidence


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_too_much_is_a_gap(name: str, tmp_path: Path) -> None:
    assert [g for g in read(tmp_path / name, UNREAD[name]).gaps if name in g.reason]


@pytest.mark.parametrize("name", READ)
def test_what_is_odd_is_read(name: str, tmp_path: Path) -> None:
    evidence = read(tmp_path / name, READ[name])
    numbers = [f.value for f in evidence.facts if isinstance(f.value, int | float)]
    json.dumps(numbers, allow_nan=False)
    assert all(abs(n) < 1e18 for n in numbers)


def test_a_notebook_with_pictures_is_read(tmp_path: Path) -> None:
    cell = {
        "cell_type": "code",
        "source": "import gradio as gr\ngr.Interface(f).launch()",
        "outputs": [{"png": "A" * 5_000_000}],
    }
    evidence = read(tmp_path / "run.ipynb", json.dumps({"cells": [cell], "nbformat": 4}))
    assert not evidence.gaps
    assert evidence.subjects("app")


def test_an_archive_that_breaks_off_is_read_up_to_there(tmp_path: Path) -> None:
    lines = "".join(f"INFO {i * 7919 % 10007} fine\n" for i in range(5000))
    packed = gzip.compress((OOM + lines).encode())
    for number, data in enumerate((packed[: len(packed) // 2], packed[:-200] + b"x" * 200)):
        evidence = read(tmp_path / f"{number}.log.gz", data)
        assert evidence.hits
        assert [g for g in evidence.gaps if f"{number}.log.gz" in g.reason]


def test_archive_of_nothing(tmp_path: Path) -> None:
    for data in (b"\x1f\x8b", gzip.compress(b"x" * 1000)[:11]):
        with pytest.raises(UnobservableError, match=r"web\.log\.gz"):
            read(tmp_path / "web.log.gz", data)


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/urandom"])
def test_devices_without_end(name: str) -> None:
    if not Path(name).exists():
        pytest.skip("no such device here")
    with pytest.raises(UnobservableError, match="binary"):
        read_files([name])


def test_a_big_file_of_nul_is_binary(tmp_path: Path) -> None:
    with (tmp_path / "core.log").open("wb") as f:
        f.truncate(1 << 30)
    with pytest.raises(UnobservableError, match="binary"):
        read_files([str(tmp_path / "core.log")])


def test_doctor_says_what_it_did_not_read(run_dstune, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "deep.json"
    path.write_text(UNREAD["deep.json"])
    assert "Not read:" in run_dstune("doctor", "--no-host", str(path)).stdout
    assert "deep.json" in json.loads(run_dstune("doctor", "--no-host", "--json", str(path)).stdout)["notes"][0]


@pytest.mark.parametrize(
    "data",
    [
        "[" * 100_000,
        '{"facts": [{"subject": 5, "name": null, "value": {}}]}',
        '{"facts": [{"subject": "gpu0", "name": "x", "value": {}}]}',
        "5",
        "",
    ],
)
@pytest.mark.parametrize("option", ["--evidence", "--facts", "--run"])
def test_saved_files_that_are_none(option: str, data: str, run_dstune, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "saved.json"
    path.write_text(data)
    done = run_dstune("doctor", "--no-host", option, str(path))
    assert (done.returncode, "Traceback" in done.stderr) in (
        ((2, False),) if option != "--facts" or "facts" not in data else ((0, False),)
    )
    assert done.returncode == 0 or str(path) in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"i\x01\x00\x00\x00", b"\xff" * 1000], ids=["empty", "cut", "noise"])
def test_a_damaged_cache_is_made_anew(damage: bytes, run_dstune, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    app = ("doctor", "--no-host", "examples/gradio-naive/app.py")
    first = run_dstune(*app, XDG_CACHE_HOME=str(tmp_path))
    kept = list((tmp_path / "dstune").glob("*.bin"))
    assert kept
    for file in kept:
        file.write_bytes(damage)
    again = run_dstune(*app, XDG_CACHE_HOME=str(tmp_path))
    assert (again.stdout, again.returncode) == (first.stdout, first.returncode)


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-"])
def test_closed_streams(closed: str) -> None:
    line = f"{sys.executable} -m dstune doctor --no-host examples/gradio-naive/app.py {closed}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_doctor_says_that_a_document_was_not_searched(run_dstune, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "README.md"
    path.write_text(OOM)
    (tmp_path / "app.py").write_text("print(1)\n")
    alone = run_dstune("doctor", "--no-host", str(path))
    assert "Not searched" in alone.stdout
    assert alone.returncode == 3, "nothing was looked at"
    both = run_dstune("doctor", "--no-host", str(path), str(tmp_path / "app.py"))
    assert "Not searched" in both.stdout
    assert both.returncode == 0, "a README beside the program is no fault"
    assert run_dstune("doctor", "--no-host", "--log", str(path)).returncode == 1
