"""Flags that vLLM lost, worker processes and addresses of services, in every kind of file that holds a launch command."""

import pytest

from dstune.catalog import flags
from dstune.readers.text_edit import edited
from dstune.readers.text_edit_launch import changes


def applied(words: list[str], version: str | None = None) -> list[str]:
    for change in reversed(changes(words, version)):
        words = [*words[: change.first], *change.new, *words[change.last :]]
    return words


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("m --swap-space 8 --port 1", "m --port 1"),
        ("m --swap-space=8 --port 1", "m --port 1"),
        ("m --use-v2-block-manager --port 1", "m --port 1"),
        ("m --num-scheduler-steps 8 --enable-reasoning --reasoning-parser deepseek_r1", "m --reasoning-parser deepseek_r1"),
        ("m --guided-decoding-backend outlines", "m --structured-outputs-config.backend outlines"),
        ("m --guided-decoding-backend auto --port 1", "m --port 1"),
        (
            "m --guided-decoding-backend xgrammar --guided-decoding-disable-any-whitespace",
            "m --structured-outputs-config.backend xgrammar --structured-outputs-config.disable_any_whitespace true",
        ),
        ("m --task embed", "m --runner pooling --convert embed"),
        ("m --task generate", "m"),
        ("m --worker-use-ray -tp 2", "m --distributed-executor-backend ray -tp 2"),
        ("m --max-seq-len-to-capture 8192", "m"),
        ("m --cuda-graph-sizes 64", "m --max-cudagraph-capture-size 64"),
        ("m --cuda-graph-sizes 1 2 4 --port 1", "m --cudagraph-capture-sizes 1 2 4 --port 1"),
    ],
)
def test_a_flag_that_went(before: str, after: str) -> None:
    assert applied(before.split()) == after.split()
    assert applied(after.split()) == after.split()
    assert not [p for p in flags.check(after.split()) if p.fault in ("removed", "unknown")]


def test_speculative_decoding_becomes_one_setting() -> None:
    got = applied(["m", "--speculative-model", "org/draft", "--port", "1", "--num-speculative-tokens", "5"])
    assert got == ["m", "--speculative-config", '{"model": "org/draft", "num_speculative_tokens": 5}', "--port", "1"]
    assert not [p for p in flags.check(got) if p.fault in ("removed", "unknown")]
    assert applied(["m", "--speculative-model", "$DRAFT"]) == ["m", "--speculative-model", "$DRAFT"]


def test_what_needs_a_person_stays() -> None:
    for words in (
        ["m", "--rope-scaling", '{"rope_type":"yarn"}'],
        ["m", "--num-redundant-experts", "2"],
        ["m", "--task", "draft"],
    ):
        assert applied(words) == words


def test_a_version_that_still_has_the_flag_keeps_it() -> None:
    words = ["m", "--swap-space", "8", "--enable-reasoning", "--disable-log-requests"]
    assert applied(words, "0.6.6.post1")[:3] == words[:3]
    assert applied(words, "0.11.0") == ["m", "--swap-space", "8", "--disable-log-requests"]
    assert applied(words) == ["m"]


SCRIPT = """#!/bin/bash
# old flags: --swap-space 4
exec vllm serve "$MODEL" \\
  --swap-space 4 \\
  --max-model-len 8192 \\
  --guided-decoding-backend "outlines" \\
  --enable-reasoning   # thinks
"""
SCRIPT_AFTER = """#!/bin/bash
# old flags: --swap-space 4
exec vllm serve "$MODEL" \\
  --max-model-len 8192 \\
  --structured-outputs-config.backend outlines
"""
PINNED = "docker run --gpus all vllm/vllm-openai:v0.8.5 --model m --use-v2-block-manager --enable-reasoning --swap-space 4\n"
LISTED = """services:
    llm:                       # the model
        image: vllm/vllm-openai:v0.11.0
        command:
        - --model=m
        # keeps thoughts apart
        - --enable-reasoning
        - --reasoning-parser
        - deepseek_r1
        ports: [ "8000:8000" ]
"""
FOLDED = """services:
  llm:
    image: "vllm/vllm-openai:v0.11.0"
    command: >-
      --model m
      --use-v2-block-manager --enable-reasoning
      --reasoning-parser deepseek_r1
      --port 8000
"""
EXEC = """FROM vllm/vllm-openai:v0.11.0
CMD ["--model", "m", \\
     "--enable-reasoning", \\
     "--port", "8000"]
"""
DRAFT = 'vllm serve $M --speculative-model org/draft -tp 2 --num-speculative-tokens 5 "$@"\n'
DRAFT_AFTER = 'vllm serve $M --speculative-config \'{"model": "org/draft", "num_speculative_tokens": 5}\' -tp 2 "$@"\n'
SHELL_FORM = """FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04 AS run
ENTRYPOINT vllm serve m \\
    --swap-space 2 \\
    --port 8000
"""


@pytest.mark.parametrize(
    ("kind", "before", "after", "version"),
    [
        ("command", SCRIPT, SCRIPT_AFTER, ""),
        ("command", PINNED, PINNED.replace(" --use-v2-block-manager", " --use-v2-block-manager"), ""),
        ("command", DRAFT, DRAFT_AFTER, ""),
        ("compose", LISTED, LISTED.replace("        - --enable-reasoning\n", ""), ""),
        ("compose", FOLDED, FOLDED.replace("--use-v2-block-manager --enable-reasoning\n      ", ""), ""),
        ("dockerfile", EXEC, EXEC.replace('     "--enable-reasoning", \\\n', ""), "0.11.0"),
        ("dockerfile", SHELL_FORM, SHELL_FORM.replace("    --swap-space 2 \\\n", ""), ""),
    ],
)
def test_in_each_kind_of_file(kind: str, before: str, after: str, version: str) -> None:
    got = edited(kind, before, "vllm-flags", {"vllm": version} if version else {})
    assert got == (after if after != before else None)
    assert edited(kind, after, "vllm-flags", {"vllm": version} if version else {}) is None


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("command", "exec uvicorn main:app --host 0.0.0.0 --workers 4 --port 80\n", "exec uvicorn main:app --host 0.0.0.0 --workers 1 --port 80\n"),
        ("command", "gunicorn -k uvicorn.workers.UvicornWorker -w 4 \\\n  -b :80 app:app\n", "gunicorn -k uvicorn.workers.UvicornWorker -w 1 \\\n  -b :80 app:app\n"),
        ("command", "# uvicorn x:app --workers 4\nexport WEB_CONCURRENCY=8\n", "# uvicorn x:app --workers 4\nexport WEB_CONCURRENCY=1\n"),
        ("dockerfile", 'FROM a\nCMD ["uvicorn", "app:app", "--workers", "2"]\n', 'FROM a\nCMD ["uvicorn", "app:app", "--workers", "1"]\n'),
        ("compose", "services:\n  a:\n    command:\n      - gunicorn\n      - -w\n      - '4'\n      - app:app\n", "services:\n  a:\n    command:\n      - gunicorn\n      - -w\n      - '1'\n      - app:app\n"),
        ("compose", "services:\n  a:\n    environment:\n      WEB_CONCURRENCY: 4\n", "services:\n  a:\n    environment:\n      WEB_CONCURRENCY: 1\n"),
    ],
)  # fmt: skip
def test_one_worker_process(kind: str, before: str, after: str) -> None:
    assert edited(kind, before, "one-worker-process") == after
    assert edited(kind, after, "one-worker-process") is None


TWO = """services:
  llm:
    image: vllm/vllm-openai:v0.11.0
    command: --model m
    ports:
      - "9000:8000"
  ui:
    image: ghcr.io/open-webui/open-webui:v0.6.5
    environment:
      - OPENAI_API_BASE_URL=http://localhost:9000/v1   # the model
      - WEBUI_URL=http://localhost:3000
"""


def test_localhost_becomes_the_service_that_listens_there() -> None:
    wanted = TWO.replace("http://localhost:9000/v1", "http://llm:8000/v1      ")
    assert edited("compose", TWO, "compose-service-address") == wanted
    assert edited("compose", wanted, "compose-service-address") is None
    assert edited("compose", TWO.replace("9000/v1", "1234/v1"), "compose-service-address") is None, "nothing listens there"
    assert edited("compose", TWO.replace("    command: --model m\n", "    command: --model m\n    network_mode: host\n").replace("  ui:\n", "  ui:\n    network_mode: host\n"), "compose-service-address") is None  # fmt: skip


def test_lines_keep_their_style() -> None:
    """A file that ruamel would lay out anew changes only where the edit is."""
    odd = "services:\n   llm:\n      image:   'vllm/vllm-openai:v0.11.0'\n      command:   --model m --enable-reasoning\n      volumes: [ a:/a,   b:/b ]\n"
    assert edited("compose", odd, "vllm-flags") == odd.replace("command:   --model m --enable-reasoning", "command: --model m")
