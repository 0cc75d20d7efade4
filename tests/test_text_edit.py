"""Edits of launch scripts, compose files and Dockerfiles: what they change, and that they leave the rest."""

import pytest

from dstune.catalog.rules import rules
from dstune.readers import app_edit, text_edit


@pytest.mark.parametrize(
    ("kind", "name", "before", "after"),
    [
        ("dockerfile", "dockerfile-copy-recursive", "FROM a\nCOPY -r . /app\nRUN cp -r a b\n", "FROM a\nCOPY . /app\nRUN cp -r a b\n"),
        ("dockerfile", "dockerfile-copy-recursive", "COPY --chown=a -r x /y\n", "COPY --chown=a x /y\n"),
        ("dockerfile", "dockerfile-apt-yes", "RUN apt-get update && apt-get install git\n", "RUN apt-get update && apt-get install -y git\n"),
        ("dockerfile", "dockerfile-apt-yes", "RUN apt install \\\n    git && x\n", "RUN apt install -y \\\n    git && x\n"),
        ("dockerfile", "dockerfile-apt-lists", "FROM a\nRUN apt-get update && apt-get install -y git\nRUN x\n", "FROM a\nRUN apt-get update && apt-get install -y git && rm -rf /var/lib/apt/lists/*\nRUN x\n"),
        ("dockerfile", "dockerfile-apt-lists", "FROM a\nRUN apt-get update \\\n && apt-get install -y \\\n    git \\\n    curl\n", "FROM a\nRUN apt-get update \\\n && apt-get install -y \\\n    git \\\n    curl \\\n && rm -rf /var/lib/apt/lists/*\n"),
        ("compose", "mount-model-cache", "services:\n  a:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model org/m\n    restart: always\n", "services:\n  a:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model org/m\n    volumes:\n      - ~/.cache/huggingface:/root/.cache/huggingface\n    restart: always\n"),
        ("compose", "mount-model-cache", "services:\n  a:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model org/m\n    volumes:\n      - x:/x # y\n\nvolumes:\n  x:\n", "services:\n  a:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model org/m\n    volumes:\n      - ~/.cache/huggingface:/root/.cache/huggingface\n      - x:/x # y\n\nvolumes:\n  x:\n"),
        ("command", "mount-model-cache", "docker run --gpus all \\\n  -p 8000:8000 \\\n  vllm/vllm-openai:v0.11.0 \\\n  --model org/m\n", "docker run --gpus all \\\n  -p 8000:8000 \\\n  -v ~/.cache/huggingface:/root/.cache/huggingface \\\n  vllm/vllm-openai:v0.11.0 \\\n  --model org/m\n"),
        ("command", "vllm-flag-spelling", "vllm serve m --gpu-memory-utilisation 0.9 --max-model_len 8192 --port 1\n", "vllm serve m --gpu-memory-utilization 0.9 --max-model_len 8192 --port 1\n"),
        ("dockerfile", "torch-cuda-build", "FROM a\nRUN pip install torch==2.6.0+cpu --index-url https://download.pytorch.org/whl/cpu\n", "FROM a\nRUN pip install torch==2.6.0\n"),
        ("config", "torch-trio", "torch==2.5.1\ntorchvision\n", "torch==2.5.1\ntorchvision==0.20.1\n"),
        ("dockerfile", "dockerfile-run-joined", "FROM a\nRUN pip install a \\\n    b\n    c\n    d\nCMD x\n", "FROM a\nRUN pip install a \\\n    b \\\n    c \\\n    d\nCMD x\n"),
        ("dockerfile", "dockerfile-run-joined", "FROM a\nRUN x &&\n    y\nCMD x\n", "FROM a\nRUN x && \\\n    y\nCMD x\n"),
        ("compose", "compose-declare-names", "services:\n  a:\n    image: x:1\n    networks: [n]\n", "services:\n  a:\n    image: x:1\n    networks: [n]\n\nnetworks:\n  n: {}\n"),
        ("compose", "compose-declare-names", "services:\n  a:\n    image: x:1\n    volumes: ['vol:/v']\nvolumes:\n  w: {}\n", "services:\n  a:\n    image: x:1\n    volumes: ['vol:/v']\nvolumes:\n  vol: {}\n  w: {}\n"),
        ("compose", "compose-drop-entry-point", "services:\n  a:\n    image: vllm/vllm-openai:v0.11.0 # x\n    command: vllm serve org/m --port 1\n", "services:\n  a:\n    image: vllm/vllm-openai:v0.11.0 # x\n    command: --model org/m --port 1\n"),
        ("compose", "compose-drop-entry-point", "services:\n  a:\n    image: vllm/vllm-openai:v0.11.0\n    command:\n      - vllm\n      - serve\n      - org/m\n      - --port\n      - '1'\n", "services:\n  a:\n    image: vllm/vllm-openai:v0.11.0\n    command:\n      - --model\n      - org/m\n      - --port\n      - '1'\n"),
        ("command", "shell-join-lines", "vllm serve m \\\n  --a 1\n  --b 2\n  --c 3\necho x\n", "vllm serve m \\\n  --a 1 \\\n  --b 2 \\\n  --c 3\necho x\n"),
        ("command", "shell-join-lines", "vllm serve m \\ \n  --a 1\n", "vllm serve m \\\n  --a 1\n"),
        ("command", "shell-join-lines", "vllm serve m \\\n\n  --a 1\n", "vllm serve m \\\n  --a 1\n"),
        ("command", "shell-join-lines", "vllm serve m \\\n  # note \\\n  --a 1 \\\n  --b 2\n", "# note\nvllm serve m \\\n  --a 1 \\\n  --b 2\n"),
        ("command", "shell-join-lines", "vllm serve m \\\n  --a 1 \\ # note\n  --b 2\n", "vllm serve m \\\n  --a 1 \\\n  --b 2\n"),
        ("command", "shell-home", "docker run -v \"~/.c:/c\" x --d=~/y\n", "docker run -v \"$HOME/.c:/c\" x --d=$HOME/y\n"),
        ("command", "vllm-openai-server", "python -m vllm.entrypoints.api_server --model m\n", "python -m vllm.entrypoints.openai.api_server --model m\n"),
        ("command", "hf-command", "# huggingface-cli download\nhuggingface-cli download org/m \\\n  --local-dir /m \\\n  --local-dir-use-symlinks False\n", "# huggingface-cli download\nhf download org/m \\\n  --local-dir /m\n"),
        ("command", "hf-command", "huggingface-cli login --token $T && huggingface-cli scan-cache\nhuggingface-cli lfs-enable-largefiles .\n", "hf auth login --token $T && hf cache ls\nhuggingface-cli lfs-enable-largefiles .\n"),
        ("dockerfile", "hf-command", "FROM a\nRUN huggingface-cli download --resume-download org/m\n", "FROM a\nRUN hf download org/m\n"),
        ("command", "shell-home", "x '~/m'\n", 'x "$HOME/m"\n'),
        ("command", "shell-plain-characters", "vllm serve m \u2013dtype half \u2014q awq --n \u201cx\u201d\n", 'vllm serve m --dtype half -q awq --n "x"\n'),
    ],
)  # fmt: skip
def test_edit(kind: str, name: str, before: str, after: str) -> None:
    assert text_edit.edited(kind, before, name) == after
    assert text_edit.edited(kind, after, name) is None, "a second time there is nothing to do"


def test_only_its_own_kind_of_file() -> None:
    assert text_edit.edited("command", "COPY -r . /app\n", "dockerfile-copy-recursive") is None


def test_right_files_stay() -> None:
    texts = {
        "dockerfile": "FROM a:1\nRUN apt-get update && apt-get install -y --no-install-recommends \\\n    # note\n    git \\\n    && rm -rf /var/lib/apt/lists/*\nCOPY --chown=a . /app\n",
        "compose": "services:\n  a:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model /m\n    networks: [n]\nnetworks: {n: {}}\n",
        "config": "# torchvision\ntorch==2.6.0\ntorchvision==0.21.0\n",
        "command": "# ~/x \u2013y\nexport A=~/b\nvllm serve m \\\n  --a ~/c \\\n  --b 2\n\necho '你好，“世界”'\n",
    }
    for name, (kinds, _) in text_edit.EDITS.items():
        for kind in kinds:
            assert text_edit.edited(kind, texts[kind], name) is None, name


def test_recipes_name_edits_that_exist() -> None:
    named = {f.edit for r in rules().values() for f in r.fixes if f.edit}
    assert named <= {*app_edit.edits(), *text_edit.EDITS}
    assert set(text_edit.EDITS) <= named
