"""The failures of `provoke`: a function each, by the cause that doctor must put first and a short word."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.real import servers
from tests.real.provoke import GGUF, MODEL, Box, changed, free_port, python

ALL: dict[str, Callable[[Box], None]] = {}
ENV = servers.VLLM_ENV
ONLINE = {
    "HF_HUB_OFFLINE": "0",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
}
"""A proxy that nobody answers: nothing leaves this machine."""
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:58858233513d76b8703e72eed6ce16807b523328188e13329257fb9594462945\nsize 3554214752\n"


def failure(name: str) -> Callable[[Callable[[Box], None]], Callable[[Box], None]]:
    """Registers a function under <cause>--<short>."""

    def keep(function: Callable[[Box], None]) -> Callable[[Box], None]:
        ALL[name] = function
        return function

    return keep


def serve(box: Box, *flags: str, model: Path | str = MODEL, timeout: float = 150, **env: str) -> None:
    """A `vllm serve` that fails on its own."""
    box.run(servers.vllm(free_port(), *flags, model=model), {**ENV, **env}, timeout)


@contextmanager
def busy_port() -> Iterator[int]:
    """A port that somebody holds."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield s.getsockname()[1]


# vLLM: the model's files


@failure("model-path-not-found--vllm")
def _(box: Box) -> None:
    serve(box, model="/data/models/DeepSeek-R1-Distil-Qwen-1.5B")


@failure("model-path-not-found--vllm-relative")
def _(box: Box) -> None:
    serve(box, model="./models/deepseek/r1-distill-qwen-1.5b")


@failure("hub-offline-cache-miss--vllm")
def _(box: Box) -> None:
    serve(box, model="deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", HF_HOME=str(box.folder / "hf"))


@failure("network-proxy-blocked--vllm")
def _(box: Box) -> None:
    serve(box, model="deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", HF_HOME=str(box.folder / "hf"), timeout=400, **ONLINE)


@failure("model-download-truncated--vllm")
def _(box: Box) -> None:
    model = box.model()
    weights = model / "model.safetensors"
    data = weights.read_bytes()[:150_000_000]
    weights.unlink()
    weights.write_bytes(data)
    serve(box, model=model)


@failure("git-lfs-pointer-files--vllm")
def _(box: Box) -> None:
    model = box.model()
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").write_text(LFS)
    serve(box, model=model)


@failure("model-files-corrupted--vllm-tokenizer")
def _(box: Box) -> None:
    model = box.model()
    (model / "tokenizer.json").write_text(LFS)
    serve(box, model=model)


@failure("model-path-not-found--vllm-folder-without-config")
def _(box: Box) -> None:
    model = box.model()
    (model / "config.json").unlink()
    serve(box, model=model)


@failure("model-files-missing--vllm-no-weights")
def _(box: Box) -> None:
    model = box.model()
    (model / "model.safetensors").unlink()
    serve(box, model=model)


@failure("model-files-missing--transformers-shard")
def _(box: Box) -> None:
    model = box.model()
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    (model / "model.safetensors.index.json").write_text(
        '{"metadata": {}, "weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors", "lm_head.weight": "model-00002-of-00002.safetensors"}}'
    )
    box.script(
        "vllm", f"from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained({str(model)!r})\n"
    )


@failure("model-files-corrupted--vllm")
def _(box: Box) -> None:
    model = box.model()
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    weights.unlink()
    data[8:600] = os.urandom(592)
    weights.write_bytes(data)
    serve(box, model=model)


@failure("transformers-too-old-for-arch--vllm")
def _(box: Box) -> None:
    model = box.model("Qwen9-1.5B")
    changed(model / "config.json", model_type="qwen9", architectures=["Qwen9ForCausalLM"])
    serve(box, model=model)


@failure("transformers-too-old-for-arch--transformers")
def _(box: Box) -> None:
    model = box.model("Qwen9-1.5B")
    changed(model / "config.json", model_type="qwen9", architectures=["Qwen9ForCausalLM"])
    box.script(
        "vllm", f"from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained({str(model)!r})\n"
    )


@failure("trust-remote-code-needed--vllm")
def _(box: Box) -> None:
    model = box.model("custom-1.5B")
    changed(
        model / "config.json", model_type="custom", architectures=["CustomForCausalLM"],
        auto_map={"AutoConfig": "configuration_custom.CustomConfig", "AutoModelForCausalLM": "modeling_custom.CustomForCausalLM"},
    )  # fmt: skip
    (model / "configuration_custom.py").write_text(
        "from transformers import LlamaConfig\nclass CustomConfig(LlamaConfig):\n    model_type = 'custom'\n"
    )
    serve(box, model=model)


@failure("model-files-missing--vllm-gguf-only")
def _(box: Box) -> None:
    model = box.model()
    (model / "model.safetensors").unlink()
    (model / "model-Q4_K_M.gguf").symlink_to(GGUF)
    serve(box, model=model)


# vLLM: flags and sizes


@failure("vllm-removed-flag--scheduler-steps")
def _(box: Box) -> None:
    serve(box, "--num-scheduler-steps", "8")


@failure("vllm-removed-flag--swap-space")
def _(box: Box) -> None:
    serve(box, "--swap-space", "4")


@failure("vllm-removed-flag--enable-reasoning")
def _(box: Box) -> None:
    serve(box, "--enable-reasoning", "--reasoning-parser", "deepseek_r1")


@failure("vllm-unknown-flag--misspelt")
def _(box: Box) -> None:
    serve(box, "--gpu-memory-utilisation", "0.85")


@failure("vllm-flag-bad-value--choice")
def _(box: Box) -> None:
    serve(box, "--kv-cache-dtype", "fp7")


@failure("vllm-flag-bad-value--reasoning-parser")
def _(box: Box) -> None:
    serve(box, "--reasoning-parser", "deepseek-r1")


@failure("vllm-quant-flag-on-unquantized-checkpoint--awq")
def _(box: Box) -> None:
    serve(box, "--quantization", "awq")


@failure("vllm-quant-flag-on-unquantized-checkpoint--gptq")
def _(box: Box) -> None:
    serve(box, "--quantization", "gptq")


@failure("vllm-max-len-over-model--serve")
def _(box: Box) -> None:
    serve(box, "--max-model-len", "32768")


@failure("vllm-max-len-exceeds-kv--blocks")
def _(box: Box) -> None:
    serve(box, "--max-model-len", "8192", "--num-gpu-blocks-override", "20")


@failure("vllm-batched-tokens-below-max-len--serve")
def _(box: Box) -> None:
    serve(box, "--max-num-batched-tokens", "512", "--no-enable-chunked-prefill")


@failure("port-in-use--vllm")
def _(box: Box) -> None:
    with busy_port() as port:
        box.run(servers.vllm(port), ENV)


@failure("bind-address-not-available--vllm")
def _(box: Box) -> None:
    command = servers.vllm(8000)
    command[command.index("--host") + 1] = "203.0.113.7"
    box.run(command, ENV)


@failure("chat-template-missing--vllm")
def _(box: Box) -> None:
    model = box.model("my-finetune-1.5B")
    (model / "chat_template.jinja").unlink(missing_ok=True)
    changed(model / "tokenizer_config.json", chat_template=None)
    port = free_port()
    ask = {"model": "smollm2", "messages": [{"role": "user", "content": "What is 2^10?"}]}
    box.server(servers.vllm(port, model=model), port, "/health", lambda url: box.ask(f"{url}/v1/chat/completions", ask), ENV)


# vLLM: the machine


@failure("container-shm-too-small--vllm")
def _(box: Box) -> None:
    command = " ".join(servers.vllm(free_port()))
    box.run(["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size=64m tmpfs /dev/shm && exec {command}"], ENV, 90)


@failure("disk-full--transformers-save")
def _(box: Box) -> None:
    small = box.folder / "merged"
    small.mkdir()
    (box.folder / "app.py").write_text(
        f"from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained({str(MODEL)!r})\nmodel.save_pretrained('merged')\n"
    )
    box.say("$ python app.py")
    run = f"mount -t tmpfs -o size=1m tmpfs {small} && exec {python('vllm')} app.py"
    box.run(["unshare", "-m", "sh", "-c", run], show=False)


@contextmanager
def limited(mib: int) -> Iterator[Path]:
    """A memory cgroup (version 1 or 2) of so many MiB: the path of its `cgroup.procs`."""
    base = Path("/sys/fs/cgroup/memory") if Path("/sys/fs/cgroup/memory").is_dir() else Path("/sys/fs/cgroup")
    group = base / "dstune-provoke"
    group.mkdir()
    limit = group / ("memory.limit_in_bytes" if base.name == "memory" else "memory.max")
    try:
        limit.write_text(str(mib << 20))
        yield group / "cgroup.procs"
    finally:
        for _ in range(100):
            left = (group / "cgroup.procs").read_text().split()
            if not left:
                break
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.1)
        group.rmdir()


@failure("host-ram-oom-kill--vllm-cgroup")
def _(box: Box) -> None:
    command = " ".join(servers.vllm(free_port()))
    with limited(1500) as procs:
        box.run(["sh", "-c", f"echo $$ > {procs} && exec {command}"], ENV, 120)


@failure("host-ram-oom-kill--container-app")
def _(box: Box) -> None:
    (box.folder / "app.py").write_text(
        f"from transformers import AutoModelForCausalLM\nprint('loading model')\nmodel = AutoModelForCausalLM.from_pretrained({str(MODEL)!r}, dtype='float32')\n"
    )
    box.say("$ docker run --rm -m 400m my-app")
    with limited(400) as procs:
        box.run(["bash", "-c", f"echo $$ > {procs}; {python('vllm')} app.py; echo exit code $?"], show=False)


@failure("request-hang-server-dead--vllm-engine-killed")
def _(box: Box) -> None:
    port = free_port()

    def asks(url: str) -> None:
        kill = threading.Timer(3, _kill_engine, [box.group])
        kill.start()
        box.ask(
            f"{url}/v1/completions",
            {"model": "smollm2", "prompt": "Count to one million: 1 2 3", "max_tokens": 1500, "ignore_eos": True},
        )
        time.sleep(2)
        box.ask(f"{url}/v1/completions", {"model": "smollm2", "prompt": "hi", "max_tokens": 5})

    box.server(servers.vllm(port), port, "/health", asks, ENV)


def _kill_engine(group: int) -> None:
    """The engine process of that vLLM, as the kernel's killer would take it."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group and "EngineCore" in (folder / "cmdline").read_text():
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:
            continue


# What clients do to a server: one vLLM, several pastes


USER = {"role": "user", "content": "What is 2^10?"}
WRONG: dict[str, tuple[str, dict[str, object]]] = {
    "request-exceeds-context--vllm": ("/v1/chat/completions", {"model": "smollm2", "messages": [USER], "max_tokens": 4096}),
    "request-exceeds-context--vllm-prompt": (
        "/v1/chat/completions",
        {"model": "smollm2", "messages": [{"role": "user", "content": "the quick brown fox " * 900}], "max_tokens": 64},
    ),
    "sampling-params-invalid--vllm": (
        "/v1/chat/completions",
        {"model": "smollm2", "messages": [USER], "temperature": -0.5, "top_p": 0.9},
    ),
    "sampling-params-invalid--vllm-top-p": ("/v1/chat/completions", {"model": "smollm2", "messages": [USER], "top_p": 1.5}),
    "served-model-name-mismatch--vllm": (
        "/v1/chat/completions",
        {"model": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "messages": [USER]},
    ),
    "base-url-missing-v1--vllm": ("/chat/completions", {"model": "smollm2", "messages": [USER]}),
}
_PASTES: dict[str, str] = {}


def wrong_request(name: str) -> Callable[[Box], None]:
    """One wrong request to a healthy vLLM. The server is started once; each paste has its start, its lines for that request, and the answer."""

    def make(box: Box) -> None:
        if not _PASTES:
            port = free_port()
            log = box.folder / "out1.log"

            def asks(url: str) -> None:
                start = log.read_text(errors="replace")
                for other, (path, body) in WRONG.items():
                    at, box.text = log.stat().st_size, ""
                    box.ask(url + path, body)
                    time.sleep(0.5)
                    _PASTES[other] = start + log.read_bytes()[at:].decode("utf-8", "replace") + box.text

            box.server(servers.vllm(port), port, "/health", asks, ENV)
        box.text = _PASTES[name]

    return make


ALL.update({name: wrong_request(name) for name in WRONG})
