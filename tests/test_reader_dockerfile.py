"""Dockerfiles: base, CUDA, install order, form, and the start command changed in place."""

import pytest

from dstune.model import Document, Fact
from dstune.readers import dockerfile


def facts(text: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for item in dockerfile.read(Document("Dockerfile", "dockerfile", text)):
        if isinstance(item, Fact):
            found.setdefault(f"{item.subject}.{item.name}", item.value)
    return found


def test_base_and_driver_floor() -> None:
    found = facts("ARG CUDA=12.8.0\nFROM nvidia/cuda:${CUDA}-runtime-ubuntu22.04 AS base\nFROM base\nUSER app\n")
    assert (found["dockerfile.base_cuda"], found["dockerfile.driver_min"], found["dockerfile.root"]) == (
        "12.8",
        "525.60.13",
        False,
    )
    assert "dockerfile.base_end_of_life" not in found
    assert facts("FROM nvidia/cuda:12.1.0-base-ubuntu22.04\n")["dockerfile.base_end_of_life"] is True
    assert facts("FROM python:3.11-slim\n")["dockerfile.base_floating"] is False
    assert facts("FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime\n")["dockerfile.base_cuda"] == "12.4"


@pytest.mark.parametrize(
    ("base", "cuda"),
    [
        ("vllm/vllm-openai:v0.20.0", "13.0"), ("vllm/vllm-openai:v0.20.0-cu129", "12.9"), ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai-rocm:v0.20.0", None), ("python:0.20.0", None),
    ],
)  # fmt: skip
def test_cuda_of_an_engines_release(base: str, cuda: str | None) -> None:
    assert facts(f"FROM {base}\n").get("dockerfile.base_cuda") == cuda


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        (["RUN pip install vllm==0.6.3", "RUN pip install torch==2.1.0"], "2.1.0"),
        (["RUN pip install vllm", "RUN pip install torch --index-url https://download.pytorch.org/whl/cu121"], "12.1"),
        (["RUN pip install torch==2.1.0", "RUN pip install vllm==0.6.3"], None),
        (["RUN pip install vllm torch==2.4.0"], None),
        (["RUN pip install vllm", "RUN pip install torchvision pandas"], None),
    ],
)
def test_torch_under_vllm(lines: list[str], version: str | None) -> None:
    assert facts("FROM python:3.11\n" + "\n".join(lines) + "\n").get("requirements.torch_after_vllm") == version


@pytest.mark.parametrize(
    ("line", "cuda"),
    [("pip install torch==2.6.0 --index-url https://download.pytorch.org/whl/cu124", "12.4"), ("pip install torch==2.6.0+cu118", "11.8"),
     ("pip install https://x/whl/cu121/torch-2.3.1%2Bcu121-cp311-cp311-linux_x86_64.whl", "12.1"), ("pip3 install torch==2.6.0", None)],
)  # fmt: skip
def test_wheel_cuda(line: str, cuda: str | None) -> None:
    assert facts(f"FROM python:3.11\nRUN {line}\n").get("requirements.torch_cuda") == cuda


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("FROM a:1\nCOPY -r . /app\n", "copy_recursive", 2),
        ("FROM a:1\nRUN apt-get update && \\\n    apt-get install git\n", "apt_without_yes", 2),
        ("FROM a:1\nRUN pip install a \\\n    b\n    c\n", "broken_run", 4),
        ("FROM a:1\nRUN apt-get update &&\n    apt-get install -y git\n", "broken_run", 2),
        ("FROM a:1\nCMD ['python', 'app.py']\n", "exec_form_invalid", 2),
        ("FROM a:1\nCOPY .cache/huggingface /root/.cache/huggingface\n", "bakes_model", 2),
        ("FROM a:1\nRUN huggingface-cli download org/m\n", "bakes_model", 2),
        ("FROM a:1\nRUNN echo\n", "unknown_instruction", 2),
    ],
)
def test_faults(text: str, name: str, line: int) -> None:
    items = [f for f in dockerfile.read(Document("Dockerfile", "dockerfile", text)) if isinstance(f, Fact) and f.name == name]
    assert [f.line for f in items[:1]] == [line]


def test_what_is_right_is_no_fault() -> None:
    text = """# syntax=docker/dockerfile:1
FROM python:3.11-slim@sha256:0123
RUN apt-get update && apt-get install -y --no-install-recommends \\
    # a comment inside an instruction is legal
    git \\

    curl && rm -rf /var/lib/apt/lists/*
RUN --mount=type=cache,target=/root/.cache pip install torch==2.6.0
RUN <<EOF
pip install x
apt-get install -y y
EOF
COPY --chown=app:app src/ models.py /app/
HEALTHCHECK CMD curl -f localhost:8000/health
USER app
CMD ["python", "app.py"]
"""
    found = facts(text)
    faults = (
        "broken_run",
        "unknown_instruction",
        "copy_recursive",
        "bakes_model",
        "apt_without_yes",
        "exec_form_invalid",
        "base_end_of_life",
    )
    assert not [k for k in found if k.partition(".")[2] in faults]
    assert found["dockerfile.root"] is False


def test_what_it_starts() -> None:
    found = facts('FROM vllm/vllm-openai:v0.6.3\nENV HF_HOME=/hf\nCMD ["--model", "m", "--max-model-len", "4096"]\n')
    assert (found["vllm.max_model_len"], found["vllm.version"], found["env.hf_home"]) == (4096, "0.6.3", "/hf")
    assert facts('FROM a:1\nENTRYPOINT ["sh", "-c", "vllm serve m --port 9"]\n')["vllm.port"] == 9
    assert facts("FROM a:1\nCMD uvicorn app:app --workers 2\n")["web.workers"] == 2


def test_command_behind_the_entry_point_of_the_base() -> None:
    server = 'CMD ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]\n'
    assert facts("FROM vllm/vllm-openai:v0.6.3\n" + server)["docker.repeats_entrypoint"] == "vllm serve"
    assert "docker.repeats_entrypoint" not in facts('FROM vllm/vllm-openai:v0.6.3\nENTRYPOINT ["python3"]\n' + server)
    assert "docker.repeats_entrypoint" not in facts('FROM vllm/vllm-openai:v0.6.3\nCMD ["--model", "m"]\n')


@pytest.mark.parametrize(
    ("old", "settings", "new"),
    [
        (
            'CMD ["--model", "m", "--max-num-seqs", "256"]',
            {"vllm.max_num_seqs": 64},
            'CMD ["--model", "m", "--max-num-seqs", "64"]',
        ),
        (
            'ENTRYPOINT ["vllm", "serve"]\nCMD ["m"]',
            {"vllm.dtype": "half"},
            'ENTRYPOINT ["vllm", "serve", "--dtype", "half"]\nCMD ["m"]',
        ),
        (
            "CMD vllm serve m \\\n    --dtype half",
            {"vllm.max_num_seqs": 8},
            "CMD vllm serve m \\\n    --dtype half \\\n    --max-num-seqs 8",
        ),
        ("ENV HF_HOME=/a B=c", {"env.hf_home": "/b"}, "ENV HF_HOME=/b B=c"),
    ],
)
def test_write(old: str, settings: dict[str, object], new: str) -> None:
    head, tail = "FROM vllm/vllm-openai:v0.6.3\n# kept\n", "\nEXPOSE 1\n"
    assert dockerfile.write(head + old + tail, settings) == head + new + tail  # type: ignore[arg-type]


def test_write_base() -> None:
    text = "FROM node:20 AS ui\nFROM nvidia/cuda:12.1.0-base-ubuntu22.04 AS app\n"
    assert dockerfile.write(text, {"dockerfile.base": "nvidia/cuda:12.8.1-base-ubuntu22.04"}) == text.replace(
        "12.1.0", "12.8.1"
    )
