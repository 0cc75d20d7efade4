"""What a renderer needs beside the plan: the card, the model, the driver, where the weights are."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dstune.catalog.gpus import Gpu
from dstune.catalog.models import ModelSpec
from dstune.lang import pick, say
from dstune.model.plan import Plan
from dstune.render.command import Command, command
from dstune.render.stack import Stack, choose

DOWNLOAD_MB_S = 12.5
"""MB/s assumed for the first download of the weights: a line of 100 Mbit/s."""


@dataclass(frozen=True)
class Context:
    """`driver` is the Linux driver of the machine ("" = unknown), `version` the engine's ("" = the newest that starts).

    `folder` is a model directory on the user's machine ("" = an id that is downloaded), `public` whether the port faces the
    network, `beside` the kinds that are written together, `app` the program that a transformers image runs.
    """

    gpu: Gpu
    model: ModelSpec | None = None
    driver: str = ""
    version: str = ""
    folder: str = ""
    public: bool = False
    port: int = 0
    beside: frozenset[str] = frozenset()
    app: str = "app.py"

    def stack(self, plan: Plan) -> Stack:
        """The container of the plan's engine. Raises `DstuneError` where none starts."""
        return choose(plan.engine, self.gpu, self.driver, self.version)


@dataclass(frozen=True)
class Deployment:
    """A plan on its way into files: what templates read. Paths are those inside the container."""

    plan: Plan
    context: Context
    stack: Stack

    home: str = "/home/app"

    @property
    def name(self) -> str:
        """A name for service, image and container."""
        base = self.context.model.short if self.context.model else self.plan.model.rstrip("/").rsplit("/", 1)[-1]
        return re.sub(r"[^a-z0-9]+", "-", base.lower()).strip("-") or "model"

    @property
    def cache(self) -> str:
        """The Hugging Face cache in the container."""
        return f"{self.home}/.cache/huggingface" if self.user else "/root/.cache/huggingface"

    @property
    def user(self) -> bool:
        """Whether a user of its own runs the server: in images that we build."""
        return "dockerfile" in self.context.beside or not self.stack.official

    @property
    def mounted(self) -> str:
        """Where a model directory appears in the container ("" = the model comes from the cache)."""
        return f"/models/{self.context.folder.rstrip('/').rsplit('/', 1)[-1]}" if self.context.folder else ""

    @cached_property
    def command(self) -> Command:
        """The server's command inside the container."""
        words = served(self.plan)
        if self.mounted:
            words = ("--model", self.mounted) if self.plan.engine == "llama.cpp" else (self.mounted,)
        elif self.gguf:
            words = ("--model", f"/models/{self.gguf}")
        return command(
            self.plan,
            self.context.model,
            self.plan.engine,
            self.stack.version,
            words,
            "0.0.0.0",
            self.stack.port,
            self.stack.program,
        )

    def names(self) -> dict[str, Any]:
        """What the templates of a container read."""
        told = {"subject": subject(self.plan, self.context), "hints": client_notes(self.plan, self.context.model)}
        return {"d": self, "plan": self.plan, "stack": self.stack, "run": self.command, "context": self.context, **told}

    @property
    def gguf(self) -> str:
        """The name of the file that llama-server is given ("" = another engine, or a repository it downloads from)."""
        words = served(self.plan)
        if self.plan.engine != "llama.cpp" or self.mounted or words[0] in ("-hf", "--hf-repo"):
            return ""
        return words[-1].rsplit("/", 1)[-1]

    @property
    def weights_gib(self) -> float:
        """Weights on disk in GiB, from the plan's memory lines."""
        found = sum(m.mib for m in self.plan.memory if m.part.startswith("weights"))
        return (
            found * max(1, self.plan.gpus) / 1024
            if found
            else (self.context.model.params * 2 / 2**30 if self.context.model else 0.0)
        )

    @property
    def start_s(self) -> int:
        """Seconds until the server may be called unhealthy: download of the weights and start of the engine, in steps of 30."""
        load = 0.0 if self.context.folder else self.weights_gib * 2**30 / 1e6 / DOWNLOAD_MB_S
        return math.ceil((load + self.stack.init_s) / 30) * 30

    @property
    def port(self) -> int:
        """The port on the host."""
        return self.context.port or self.stack.port

    @property
    def healthcheck(self) -> list[str]:
        """The words of a health check: 0 for an answer below 400. Python is in every image but llama.cpp's own, which has curl."""
        url = f"http://127.0.0.1:{self.stack.port}{self.stack.health}"
        if self.plan.engine == "llama.cpp" and not self.stack.jetson:
            return ["curl", "-fsS", "-m", "3", url]
        return ["python3", "-c", f"import urllib.request as u; u.urlopen('{url}', timeout=3)"]

    @property
    def driver_note(self) -> str:
        """Which driver the image needs, and why."""
        s = self.stack
        if s.jetson:
            return say(f"needs JetPack 6 (L4T R36, driver 540) on the module: CUDA {s.cuda} in the image, built for this L4T", f"模块上需要 JetPack 6（L4T R36，驱动 540）：镜像内为 CUDA {s.cuda}，为该 L4T 构建")  # fmt: skip
        if s.labelled:
            return say(
                f"needs NVIDIA driver >= {s.driver}: the image is built on CUDA {s.cuda} and is labelled so; on an older driver the container toolkit refuses it "
                f'("unsatisfied condition: cuda>={s.cuda}"). dstune generate --driver N picks what starts on driver N',
                f"需要 NVIDIA 驱动 >= {s.driver}：镜像基于 CUDA {s.cuda} 并带有该标签；驱动更旧时 container toolkit 会拒绝启动"
                f"（“unsatisfied condition: cuda>={s.cuda}”）。用 dstune generate --driver N 可选出能在驱动 N 上启动的组合",
            )
        return say(
            f"needs NVIDIA driver >= {s.driver}: the wheels bring CUDA {s.cuda} themselves, and a program of that CUDA family runs on every driver from "
            f"{s.driver} on. The base image has no CUDA of its own, so nothing else asks for a driver",
            f"需要 NVIDIA 驱动 >= {s.driver}：wheel 自带 CUDA {s.cuda}，同一 CUDA 大版本的程序可在 {s.driver} 及以上的驱动上运行。基础镜像不含 CUDA，没有其他驱动要求",
        )

    def why(self, key: str) -> str:
        """The plan's reason for a setting, "" where it has none."""
        return next((pick(s.why) for s in self.plan.settings if s.key == key), "")

    def value(self, key: str, default: object = None) -> object:
        """The plan's value of a setting."""
        return next((s.value for s in self.plan.settings if s.key == key), default)


def sampling(plan: Plan, model: ModelSpec | None) -> dict[str, float | int | bool]:
    """Sampling of the plan (`generate.*`), else what the model's recipe says."""
    names = ("do_sample", "temperature", "top_p", "top_k", "repetition_penalty")
    found = {s.key.partition(".")[2]: s.value for s in plan.settings if s.key.startswith("generate.")}
    merged = {**(dict(model.generation) if model else {}), **found}
    return {n: v for n in names if isinstance(v := merged.get(n), float | int | bool)}


def output_tokens(plan: Plan) -> int:
    """Tokens an answer may have, as planned."""
    limit = next((s.value for s in plan.settings if s.key == "generate.max_new_tokens"), None)
    return limit if isinstance(limit, int) else plan.workload.output_tokens


def client_notes(plan: Plan, model: ModelSpec | None) -> list[str]:
    """What a client should send, as sentences: sampling, a bound on the answer, and what the vendor asks of the prompt."""
    g = sampling(plan, model)
    values = ", ".join(f"{k} {v}" for k, v in g.items() if k in ("temperature", "top_p", "top_k"))
    out = []
    if values:
        out.append(say(f"Sampling: {values}.", f"采样参数：{values}。"))
    out.append(say(f"Always bound the answer: max_tokens {output_tokens(plan)} (what this was sized for).", f"务必限制回答长度：max_tokens {output_tokens(plan)}（按此规划）。"))  # fmt: skip
    asked = dict(model.prompting) if model else {}
    if asked:
        if asked.get("system") is False:
            out.append(say("No system message: put instructions into the user turn.", "不要 system 消息：指令写进 user 轮。"))
        if prefix := str(asked.get("think_prefix", "")).replace("\n", "\\n"):
            out.append(say(f"The answer should open with {prefix} (newer chat templates write it themselves).", f"回答应以 {prefix} 开头（新版对话模板会自动加上）。"))  # fmt: skip
        if directive := asked.get("math_directive"):
            out.append(say(f"For maths add to the user turn: {directive}", f"数学题请在 user 轮加上：{directive}"))
        out.append(say(f"Source: {asked['source']}", f"来源：{asked['source']}"))
    return out


def subject(plan: Plan, context: Context) -> str:
    """What a file is for: model, engine and version, cards."""
    count = f"{plan.gpus} × " if plan.gpus > 1 else ""
    engine = f"{plan.engine} {context.version or plan.engine_version}".strip()
    return f"{plan.model} · {engine} · {count}{context.gpu.label}"


def served(plan: Plan) -> tuple[str, ...]:
    """What the server loads: the plan's launch line says it (a quantised upload, `-hf repo:Q4_K_M`), else the plan's model."""
    if plan.engine == "llama.cpp":
        words = shlex.split(plan.launch)
        if len(words) > 2 and words[1].startswith("-"):
            return ("--model", words[2]) if words[1] == "-m" else (words[1], words[2])
        return ("--model", plan.model)
    pattern = {"vllm": r"vllm serve (\S+)", "sglang": r"--model-path (\S+)"}.get(plan.engine)
    found = re.search(pattern, plan.launch) if pattern else None
    return (shlex.split(found[1])[0] if found else plan.model,)
