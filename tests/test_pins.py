"""Versions written into requirements files, `pip install` lines and Dockerfiles."""

import pytest

from dstune.readers.pins import pinned, torch_trio

REQUIREMENTS = (
    "# web\ngradio==4.33.0  # the page\nPydantic>=2\n\n-r more.txt\ntransformers[torch]>=4.40 ; python_version>'3.8'\n"
)
DOCKERFILE = """FROM python:3.11-slim
RUN pip install torch==2.6.0 --index-url https://download.pytorch.org/whl/cu124
RUN --mount=type=cache,target=/root/.cache/pip \\
    pip install --no-cache-dir gradio==4.33.0 \\
    "pydantic>=2"
CMD ["python", "app.py"]
"""


@pytest.mark.parametrize(
    ("kind", "text", "wanted", "after"),
    [
        ("config", REQUIREMENTS, {"pydantic": "==2.10.6"}, REQUIREMENTS.replace("Pydantic>=2", "Pydantic==2.10.6")),
        ("config", REQUIREMENTS, {"starlette": "<0.39"}, REQUIREMENTS + "starlette<0.39\n"),
        ("config", REQUIREMENTS, {"transformers": "4.51.3"}, REQUIREMENTS.replace("[torch]>=4.40", "[torch]==4.51.3")),
        ("config", REQUIREMENTS, {"gradio": None}, REQUIREMENTS.replace("gradio==4.33.0  # the page\n", "")),
        ("dockerfile", DOCKERFILE, {"pydantic": "==2.10.6"}, DOCKERFILE.replace('"pydantic>=2"', "pydantic==2.10.6")),
        (
            "dockerfile",
            DOCKERFILE,
            {"starlette": "<0.39"},
            DOCKERFILE.replace('"pydantic>=2"', "\"pydantic>=2\" 'starlette<0.39'"),
        ),
        (
            "command",
            "set -e\npip install gradio transformers\n",
            {"gradio": "<5"},
            "set -e\npip install 'gradio<5' transformers\n",
        ),
        ("command", "python app.py\n", {"gradio": "<5"}, "python app.py\n"),
    ],
)
def test_pinned(kind: str, text: str, wanted: dict[str, str], after: str) -> None:
    assert pinned(kind, text, wanted) == after
    assert pinned(kind, after, wanted) == after


def test_the_trio_of_one_torch() -> None:
    text = "torch==2.6.0+cu124\ntorchvision==0.19.1\ntorchaudio\n"
    after = "torch==2.6.0+cu124\ntorchvision==0.21.0+cu124\ntorchaudio==2.6.0+cu124\n"
    assert torch_trio("config", text) == after
    assert torch_trio("config", after) == after
    assert torch_trio("config", "# torch==2.6.0\ntorchvision\n") == "# torch==2.6.0\ntorchvision\n"
    line = "pip install torch==2.5.1 torchvision==0.15.0 --index-url https://download.pytorch.org/whl/cu121\n"
    assert torch_trio("command", line) == line.replace("0.15.0", "0.20.1")
