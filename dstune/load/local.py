"""A model directory measured bare: a child process loads it with transformers (this process never imports torch)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dstune.catalog import root
from dstune.errors import Exit, UnobservableError
from dstune.lang import say
from dstune.load.stats import spread
from dstune.model.plan import Trial, Workload


def run(
    folder: str, python: str = "", batches: Sequence[int] = (1, 8, 32), prompt: int = 256, tokens: int = 64, dtype: str = "auto", device: str = "auto",
    random: bool = False, timeout_s: float = 900, seconds: float = 30, seen: Callable[[dict[str, Any]], None] = lambda event: None,
) -> list[Trial]:  # fmt: skip
    """One trial per batch size. `random` takes the shape of config.json with random weights: speed and memory without a download.

    Batch sizes that `seconds` (after loading) do not suffice for are left out, the first one never; Ctrl-C gives the trials so far
    (`outcome["interrupted"]`). `seen` gets every event of the child as it comes (progress). Raises `UnobservableError` with the child's last words.
    """
    if not os.path.isfile(os.path.join(folder, "config.json")):
        raise UnobservableError(
            say(f"{folder} holds no config.json", f"{folder} 中没有 config.json"),
            "",
            say("give a model directory", "请给出模型目录"),
        )
    ask = {
        "batches": list(batches),
        "prompt": prompt,
        "tokens": tokens,
        "dtype": dtype,
        "device": device,
        "passes": 2,
        "random": random,
        "seconds": seconds,
    }
    command = [python or sys.executable, str(root() / "scripts" / "local_load.py"), folder, json.dumps(ask)]
    found: list[dict[str, Any]] = []
    interrupted = False
    try:
        for event in _events(command, timeout_s, seen):
            found.append(event)
    except KeyboardInterrupt:
        if not any(e["event"] == "run" for e in found):
            raise
        interrupted = True
    loaded = next((e for e in found if e["event"] == "loaded"), None)
    if loaded is None:
        raise UnobservableError(
            say(f"the model in {folder} did not load", f"{folder} 中的模型未能加载"),
            say("see above", "见上"),
            "dstune doctor --log FILE",
        )
    told = [b for b in batches if any(e["event"] in ("run", "error") and e["batch"] == b for e in found)]
    trials = [_trial(folder, loaded, batch, found, prompt, tokens) for batch in told]
    if interrupted:
        trials[-1].outcome["interrupted"] = True
    return trials


def _events(command: list[str], timeout_s: float, seen: Callable[[dict[str, Any]], None]) -> Iterator[dict[str, Any]]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    environment.setdefault(
        "OMP_WAIT_POLICY", "PASSIVE"
    )  # else torch's threads on a CPU spin, which slows a shared machine tenfold
    import threading

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        words: list[str] = []
        reader = threading.Thread(target=lambda: words.extend(child.stderr or []), daemon=True)
        reader.start()
        timer = threading.Timer(timeout_s, child.kill)
        timer.start()
        try:
            for line in child.stdout:
                if line.startswith("{"):
                    event = json.loads(line)
                    seen(event)
                    yield event
        finally:
            timer.cancel()
            child.terminate()
        code = child.wait()
        reader.join(2)
        if code:
            last = last_words(words) or f"exit {code}"
            missing = "No module named" in last
            raise UnobservableError(
                say("the child process that loads the model failed", "加载模型的子进程失败"), last,
                say("pip install 'dstune[local]', or --python of the server's environment", "pip install 'dstune[local]'，或用 --python 指定服务的环境") if missing else "",
                Exit.UNOBSERVABLE,
            )  # fmt: skip


def last_words(lines: Sequence[str]) -> str:
    """The exception of a traceback: its last line that begins with a name of an error; else the last line there is."""
    plain = [line.strip() for line in lines if line.strip()]
    errors = [line for line in plain if re.match(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Killed)\b", line)]
    return (errors or plain or [""])[-1][:500]


def _trial(folder: str, loaded: dict[str, Any], batch: int, found: Sequence[dict[str, Any]], prompt: int, tokens: int) -> Trial:
    runs = [e for e in found if e["event"] == "run" and e["batch"] == batch]
    errors = [e for e in found if e["event"] == "error" and e["batch"] == batch]
    last = runs[-1] if runs else None
    steps = last["steps"] if last else []
    busy = sum(steps)
    outcome: dict[str, Any] = {
        "requests": {"ok": batch if last else 0, "failed": 0 if last else batch},
        "output_tokens": batch * (len(steps) + 1) if last else 0,
        "prompt_tokens": batch * prompt,
        "tokens_counted_by": "steps",
        "ttft_ms": spread([last["ttft_s"]]) if last else None,
        "itl_ms": spread(steps),
        "tpot_ms": spread([busy / len(steps)]) if steps else None,
        "e2e_ms": spread([last["ttft_s"] + busy]) if last else None,
        "duration_s": round(last["ttft_s"] + busy, 3) if last else 0.0,
        "output_tok_s": round(batch * len(steps) / busy, 2) if busy else 0.0,
        "request_s": round(batch / (last["ttft_s"] + busy), 3) if last else 0.0,
        "prompt_tok_s": round(batch * prompt / last["ttft_s"], 1) if last else None,
        "errors": {e["kind"]: batch for e in errors},
        "error_words": {e["kind"]: e["text"] for e in errors},
        "memory": last["memory"] if last else None,
        "client_cpu_s": 0.0,
        "client_bottleneck": False,
    }
    if len(runs) > 1:
        outcome["first_pass"] = {"ttft_ms": round(1e3 * runs[0]["ttft_s"], 2), "itl_ms": spread(runs[0]["steps"])}
    settings = {
        "server": "transformers (bare)",
        "server_version": loaded["transformers"],
        "model": os.path.basename(folder.rstrip("/")),
        "profile": f"{prompt} random tokens",
    }
    settings |= {k: loaded[k] for k in ("device", "torch", "dtype", "parameters", "attention", "load_s")}
    return Trial(Workload(prompt, tokens, batch), settings, outcome)
