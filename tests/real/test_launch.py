"""The launch script of `dstune generate launch` starts the server that it is for: vLLM's CPU build, with the real small model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.real import servers
from tests.real.servers import free_port, serve


def test_the_generated_script_starts_vllm(logs: Path) -> None:
    """As written for a card, at the version that is installed; behind it only what a CPU wants otherwise (the script takes more options)."""
    out, port = logs / "launch", free_port()
    version = subprocess.run(
        [servers.python("vllm"), "-c", "from importlib.metadata import version as v; print(v('vllm').partition('+')[0])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    words = [
        "--gpu",
        "4090",
        "--engine",
        "vllm",
        "--engine-version",
        version,
        "--model",
        str(servers.MODEL),
        "--context",
        "1024",
    ]
    subprocess.run(
        [sys.executable, "-m", "dstune", "generate", "launch", *words, "--port", str(port), "-o", str(out)],
        check=True,
        capture_output=True,
    )
    script = (out / "launch.sh").read_text(encoding="utf-8")
    assert "--max-model-len 1024" in script
    env = {**servers.VLLM_ENV, "PATH": f"{servers.CACHE / 'vllm' / 'bin'}:{os.environ['PATH']}"}
    with serve(["bash", str(out / "launch.sh"), "--enforce-eager"], port, "/health", logs / "launch.log", env) as server:
        name = server.url + "/v1/models"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(name, timeout=30) as answer:
            model = json.load(answer)["data"][0]
        assert model["max_model_len"] == 1024
        body = {
            "model": model["id"],
            "messages": [{"role": "user", "content": "What is 1+1?"}],
            "max_tokens": 8,
            "temperature": 0,
        }
        request = urllib.request.Request(
            server.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with opener.open(request, timeout=120) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] > 0
