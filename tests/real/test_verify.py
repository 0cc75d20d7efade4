"""`dstune verify` on the three naive programs and what `dstune fix` makes of them, with a real small model on the CPU.

Orders are held, not milliseconds: the machine may be shared. Answers are greedy, so that texts can be compared to the letter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dstune.load.workload import PROFILES
from tests.real import servers

ROOT = Path(__file__).parents[2]
TOKENS = 24
QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
WRITTEN_FOR = "/root/.cache/huggingface/deepseek-ai/DeepSeek-R1-Distill-Qwen-1___5B"
REFERENCE = f"""
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tok = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto")
out = []
for q in json.loads(sys.argv[2]):
    ids = tok.apply_chat_template([{{"role": "user", "content": q}}], add_generation_prompt=True, return_tensors="pt", return_dict=True).input_ids
    out.append(tok.decode(model.generate(ids, max_new_tokens={TOKENS}, do_sample=False)[0, ids.shape[1]:], skip_special_tokens=True).strip())
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def reference(logs: Path) -> list[str]:
    """What `generate` of transformers alone answers to the bench's questions, greedily."""
    command = [servers.python("app"), "-c", REFERENCE, str(servers.MODEL), json.dumps(PROFILES["chat"][:6])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={"PATH": "/usr/bin:/bin", **QUIET})
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


def dstune(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dstune", *args], capture_output=True, text=True, timeout=900, env={**os.environ, **QUIET}, cwd=ROOT
    )  # fmt: skip


def pair(folder: Path, example: str, *mended: tuple[str, str]) -> tuple[Path, Path]:
    """(the example, what `dstune fix` makes of it), then both moved to the small model and the CPU. `mended`: changed before all that."""
    made = []
    for name in ("before", "after"):
        (folder / name).mkdir(parents=True)
        path = folder / name / "app.py"
        text = (ROOT / "examples" / example / "app.py").read_text(encoding="utf-8")
        for old, new in mended:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
        if name == "after":
            done = dstune("fix", "--no-host", "--write", str(path))
            assert done.returncode == 0, done.stdout + done.stderr
        text = path.read_text(encoding="utf-8")
        assert WRITTEN_FOR in text
        path.write_text(text.replace(WRITTEN_FOR, str(servers.MODEL)).replace('"cuda"', '"cpu"'), encoding="utf-8")
        made.append(path)
    return made[0], made[1]


def verified(before: Path | str, after: Path | str, *more: str) -> dict[str, Any]:
    options = (
        "--max-tokens",
        str(TOKENS),
        "-c",
        "2",
        "-n",
        "4",
        "--repeat",
        "2",
        "--python",
        servers.python("app"),
        "--json",
        *more,
    )
    done = dstune("verify", str(before), str(after), *options)
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


def verdict(data: dict[str, Any], claim: str) -> str:
    return next(str(v["verdict"]) for v in data["verdicts"] if v["claim"] == claim)


def passes(data: dict[str, Any], side: str) -> list[dict[str, Any]]:
    return [t for t in data["trials"] if t["settings"]["side"] == side]


def median(data: dict[str, Any], side: str, *path: str) -> float:
    """The lowest of the passes: what a busy machine disturbs least."""
    values = []
    for value in passes(data, side):
        for key in path:
            value = value[key]
        values.append(value)
    return float(min(values))


def holds(data: dict[str, Any], reference: list[str]) -> None:
    """What the issue asks of a fixed program, whatever it was before."""
    assert data["sides"][1]["answers"][0] == reference, "complete, and that of transformers to the letter"
    assert data["sides"][1]["held"]
    assert all(p["failed_all"] == 0 for p in passes(data, "after"))
    first, whole = (median(data, "after", "alone", key, "p50") for key in ("first_text_ms", "e2e_ms"))
    assert first < 0.5 * whole, "text comes early"
    for claim in ("failed", "faulty texts", "echoed questions", "memory RSS MiB", "memory RSS MiB, loading"):
        assert verdict(data, claim) != "worse", data["verdicts"]


def test_interface(logs: Path, reference: list[str]) -> None:
    data = verified(*pair(logs / "verify-interface", "gradio-naive-interface"))
    holds(data, reference)
    assert verdict(data, "first text, alone") == "better"
    assert verdict(data, "echoed questions") == "better"
    wait = {
        side: [p["pair"]["second_wait_ms"] / p["pair"]["e2e_ms"]["min"] for p in passes(data, side)]
        for side in ("before", "after")
    }
    assert min(wait["before"]) > 1.4, f"a client that waits for 1.4 answers gives up on the naive program: {wait}"
    assert max(wait["after"]) < 1.35, f"and sees text of the fixed one as soon as the first user has his answer: {wait}"


def test_blocks(logs: Path, reference: list[str]) -> None:
    """Gradio 6 refuses a text for a Chatbot: the naive page answers nobody."""
    data = verified(*pair(logs / "verify-blocks", "gradio-naive-blocks"))
    holds(data, reference)
    assert all(p["requests"]["ok"] == 0 for p in passes(data, "before"))
    assert verdict(data, "failed") == "better"
    assert not data["worse"], data["conclusion"]


def test_a_state_without_partner(logs: Path) -> None:
    """The first example as it stands does not start on any Gradio; its fix serves."""
    data = verified(*pair(logs / "verify-state", "gradio-naive"), "--repeat", "1", "-n", "2")
    assert "one state input and one state output" in data["sides"][0]["failed"]
    assert verdict(data, "serves") == "better"
    assert not data["worse"]


def test_first_example_where_it_starts(logs: Path, reference: list[str]) -> None:
    """The same with its State taken out by hand on both sides: what the other fixes do."""
    mended = ((", gr.State()]", "]"), ("def predict(message, history)", "def predict(message)"))
    data = verified(*pair(logs / "verify-first", "gradio-naive", *mended))
    holds(data, reference)
    assert verdict(data, "first text, alone") == "better"
