"""The command line of a plan, per engine and version: options with their reasons, and the environment it needs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dstune.catalog import load
from dstune.catalog.models import ModelSpec
from dstune.expr import Version
from dstune.lang import pick, say
from dstune.model import Value
from dstune.model.plan import Plan, Setting


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its flag, its value (None for a switch), why it is there."""

    flag: str
    value: str | None
    why: str = ""

    @property
    def words(self) -> list[str]:
        """Its words on a command line."""
        return [self.flag] if self.value is None else [self.flag, self.value]


@dataclass(frozen=True, slots=True)
class Command:
    """A program, the model it serves (in the way it wants it), options and environment variables (name, value, why)."""

    program: tuple[str, ...]
    model: tuple[str, ...]
    options: tuple[Option, ...]
    env: tuple[tuple[str, str, str], ...] = ()
    left: tuple[Setting, ...] = field(default=())

    @property
    def args(self) -> list[str]:
        """What follows the program."""
        return [*self.model, *(w for o in self.options for w in o.words)]

    @property
    def line(self) -> str:
        """One line for a shell."""
        return shlex.join([*self.program, *self.args])


SERVED: dict[str, str] = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llama", "hf-serve": "serve", "transformers": ""}
"""Family of an engine's own settings in a plan ("" = its settings live in the program, not on a command line)."""


def command(
    plan: Plan,
    model: ModelSpec | None,
    engine: str,
    version: str,
    words: tuple[str, ...],
    host: str,
    port: int,
    program: tuple[str, ...],
) -> Command:
    """The command that serves `words` (an id, a folder, or llama.cpp's option and file) with the settings of the plan on `host`:`port`.

    `left` of the result are settings that this engine version has no option for.
    """
    options: list[Option] = []
    left: list[Setting] = []
    env: list[tuple[str, str, str]] = []
    for setting in plan.settings:
        family, _, name = setting.key.partition(".")
        spec = declared(setting.key)
        if spec.get("env") and not spec.get("flag"):
            env.append((_first(spec["env"]), text(setting.value), pick(setting.why)))
            continue
        if engine == "transformers" or family in ("generate", "generation", "sampling", "gradio", "docker", "compose"):
            continue
        if name in ("model", "model_path", "host", "port", "served_model_name"):
            continue
        made = _option(setting, spec, engine, version)
        if made is None:
            left.append(setting)
        elif made.flag:
            options.append(made)
    options = [*_own(engine, version, model, words[-1], host, port), *options]
    head = {"sglang": ("--model-path", *words), "transformers": ()}.get(engine, words)
    return Command(program, head, tuple(_unique(options)), tuple(env), tuple(left))


def _own(engine: str, version: str, model: ModelSpec | None, where: str, host: str, port: int) -> list[Option]:
    """Options that follow from where it runs and what the model is, not from its size."""
    if engine == "transformers":
        return []
    name = model.short if model else where.rstrip("/").rsplit("/", 1)[-1]
    out = [
        Option("--host", host, say("the network side of a container; the host publishes the port on 127.0.0.1", "容器内须监听所有地址；宿主机只把端口发布到 127.0.0.1") if host == "0.0.0.0" else say("this machine only; a server without a key must not face the network", "只允许本机访问；没有密钥的服务不应暴露到网络")),
        Option("--port", str(port)),
    ]  # fmt: skip
    if engine in ("vllm", "sglang"):
        out.append(
            Option("--served-model-name", name, say("the name that clients send as `model`", "客户端 model 字段使用的名字"))
        )
    if engine == "llama.cpp":
        out.append(Option("--alias", name, say("the name that clients send as `model`", "客户端 model 字段使用的名字")))
        out.append(Option("--jinja", None, say("the model's own chat template", "使用模型自带的对话模板")))
    if engine == "vllm" and Version(version) < "0.8" and has_flag("enable-prefix-caching", version):
        out.append(Option("--enable-prefix-caching", None, say("off by default in this version; a chat sends its whole history each turn", "该版本默认关闭；对话每轮都会重发全部历史")))  # fmt: skip
    if engine == "vllm" and (parser := _reasoning(model)):
        allowed = _choices("reasoning-parser", version)
        if allowed is not None and (not allowed or parser in allowed):
            if has_flag("enable-reasoning", version):
                out.append(
                    Option(
                        "--enable-reasoning", None, say("this version wants it beside the parser", "该版本要求与解析器一起给出")
                    )
                )
            out.append(
                Option(
                    "--reasoning-parser",
                    parser,
                    say("splits <think>…</think> from the answer", "把 <think>…</think> 与回答分开返回"),
                )
            )
    return out


def _reasoning(model: ModelSpec | None) -> str:
    if model is None or not model.reasoning:
        return ""
    low = model.id.lower()
    return "deepseek_r1" if "deepseek-r1" in low else "qwen3" if "qwen3" in low else ""


def _option(setting: Setting, spec: dict[str, Any], engine: str, version: str) -> Option | None:
    """The option of a setting; an empty flag for one that is at its default anyway, None for one this version does not have."""
    names = spec.get("flag") or ["--" + setting.key.partition(".")[2].replace("_", "-")]
    why = pick(setting.why)
    if engine == "vllm":
        known = [f for f in names if has_flag(f.lstrip("-"), version)]
        if not known and flags(version):
            return Option("", None) if setting.value is False else None
        names = known or names
    elif spec.get("since") and Version(version) < spec["since"]:
        return None
    flag = names[0]
    if isinstance(setting.value, bool) and (spec.get("switch", True)):
        if setting.value:
            return Option(flag, None, why)
        off = spec.get("off") or (f"--no-{flag[2:]}" if engine == "vllm" else "")
        kind = flags(version).get(flag[2:], {}).get("type") if engine == "vllm" else "onoff"
        return Option(off, None, why) if off and kind == "onoff" else Option("", None)
    if setting.value is None or setting.value == "":
        return Option("", None)
    return Option(flag, text(setting.value), why)


def text(value: Value) -> str:
    """A value as it is typed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(text(v) for v in value)
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e6 else str(int(value))
    return "" if value is None else str(value)


def _unique(options: list[Option]) -> list[Option]:
    """The last of each flag, at the place of the first."""
    last = {o.flag: o for o in options}
    return list({o.flag: last[o.flag] for o in options}.values())


def _first(value: Any) -> str:
    return str(value[0] if isinstance(value, list) else value)


@cache
def _settings() -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for file in load("engines").values():
        for family, entries in file.items():
            if isinstance(entries, dict) and family != "engine":
                out.update({f"{family}.{name}": spec for name, spec in entries.items() if isinstance(spec, dict)})
    return out


def declared(key: str) -> dict[str, Any]:
    """What the engine recipes say of a setting; {} for one they do not have."""
    return _settings().get(key, {})


@cache
def flags(version: str) -> dict[str, dict[str, Any]]:
    """The options of `vllm serve` in the newest recorded release that is not newer than this one (the oldest, for older ones)."""
    files = sorted(load("flags").values(), key=lambda f: Version(f["version"]))
    if not files:
        return {}
    fitting = [f for f in files if Version(f["version"]) <= version] if version else files
    found: dict[str, dict[str, Any]] = (fitting or files[:1])[-1]["flags"]
    return found


def has_flag(name: str, version: str) -> bool:
    """Whether `vllm serve` of this version has `--name`."""
    return name in flags(version) or any(f"--{name}" in f.get("also", ()) for f in flags(version).values())


def _choices(name: str, version: str) -> list[str] | None:
    """Allowed values, [] where any is, None where the option does not exist."""
    found = flags(version).get(name)
    return None if found is None else list(found.get("choices") or ())
