"""`pip install` lines and requirements files → pinned versions, the CUDA of the torch wheel, and torch replaced under vLLM by a later line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dstune.model import Fact
from dstune.readers.given import shown
from dstune.readers.launch import Launch, launches

PACKAGES = frozenset((
    "torch", "torchvision", "torchaudio", "transformers", "tokenizers", "accelerate", "gradio", "gradio_client", "pydantic", "numpy", "huggingface_hub",
    "fastapi", "starlette", "vllm", "sglang", "flash_attn", "autoawq", "gptqmodel", "bitsandbytes", "safetensors", "openai", "triton", "xformers",
    "flashinfer_python", "llama_cpp_python", "modelscope", "sentencepiece",
))  # fmt: skip
_SPEC = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*(?:(===?|~=|>=|<=|!=|<|>)\s*([^,;\s]+))?")
_WHEEL = re.compile(r"(?:^|/)([A-Za-z0-9_.]+)-(\d[\w.+%]*)-(?:cp|py)\d")
_CUDA = re.compile(r"(?:/|\+|%2B|-)cu(\d{2})(\d)\b")


@dataclass(frozen=True, slots=True)
class Pin:
    """A package as a line asks for it; `operator` "" = any version."""

    name: str
    operator: str
    version: str
    line: int


@dataclass(slots=True)
class Install:
    """One install step: its packages and the CUDA of its index (`cu128` → "12.8", `cpu` → "cpu")."""

    pins: list[Pin]
    index: str = ""
    line: int = 0
    extra: list[str] = field(default_factory=list)


def step(launch: Launch) -> Install | None:
    """The packages of a `pip install` (or `uv pip install`); None for another command."""
    if launch.engine != "pip" or not launch.program.endswith((" install", " add", " sync")):
        return None
    words = launch.args
    found = Install([], line=words[0].line if words else 0)
    at = 0
    while at < len(words):
        text = words[at].text
        at += 1
        if text.startswith("-"):
            flag, _, value = text.partition("=")
            if flag in ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-r", "--requirement", "-c", "--constraint", "-t", "--target", "--index",
                        "--python", "-p", "--torch-backend", "--prefix", "--root", "--timeout", "--retries", "--trusted-host"):  # fmt: skip
                if not value and at < len(words):
                    value = words[at].text
                    at += 1
                found.index = _index(value) or found.index
            continue
        if (pin := requirement(text, words[at - 1].line)) is not None:
            found.pins.append(pin)
    return found


def _index(url: str) -> str:
    if cuda := re.search(r"\bcu(\d{2})(\d)\b", url):
        return f"{cuda[1]}.{cuda[2]}"
    return "cpu" if re.search(r"/whl/cpu\b|^cpu$", url) else ""


def requirement(text: str, line: int) -> Pin | None:
    """`torch==2.6.0+cu124` as a Pin."""
    text = text.strip().strip("'\"")
    if wheel := _WHEEL.search(text):
        return Pin(_name(wheel[1]), "==", wheel[2].replace("%2B", "+"), line)
    found = _SPEC.match(text)
    return Pin(_name(found[1]), found[2] or "", found[3] or "", line) if found else None


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "_", text).lower()


def facts(steps: Sequence[Install], source: str, lines: Sequence[str], subject: str = "requirements") -> Iterator[Fact]:
    """Facts of the family `requirements` (and the version of vLLM where it is pinned), the last line winning."""

    def fact(name: str, value: object, line: int) -> Fact:
        return Fact(subject, name, value, source, line, shown(lines, line))  # type: ignore[arg-type]

    pinned: dict[str, tuple[Pin, str]] = {}
    loose: list[str] = []
    for install in steps:
        for pin in install.pins:
            if pin.name in PACKAGES:
                pinned[pin.name] = (pin, install.index)
                if not pin.operator:
                    loose.append(pin.name)
    for name, (pin, index) in pinned.items():
        if pin.operator in ("==", "===", "~=") and "*" not in pin.version:
            yield fact(name, pin.version, pin.line)
            if name == "vllm":
                yield Fact("vllm", "version", pin.version, source, pin.line, shown(lines, pin.line))
        if name == "torch":
            local = _CUDA.search(pin.version)
            cuda = f"{local[1]}.{local[2]}" if local else index
            if cuda and cuda != "cpu":
                yield fact("torch_cuda", cuda, pin.line)
            elif cuda == "cpu" or "+cpu" in pin.version:
                yield fact("torch_cpu", True, pin.line)
    if loose:
        first = next(p for p, _ in pinned.values() if p.name == loose[0])
        yield fact("unpinned", list(dict.fromkeys(loose)), first.line)
    yield from _replaced(steps, fact)


def _replaced(steps: Sequence[Install], fact: object) -> Iterator[Fact]:
    """torch asked for again in a step after the one that brought vLLM: pip then replaces the build vLLM was compiled against."""
    seen: Pin | None = None
    for install in steps:
        has_torch = next((p for p in install.pins if p.name == "torch" and (p.operator == "==" or install.index)), None)
        if seen is not None and has_torch is not None and not any(p.name == "vllm" for p in install.pins):
            yield fact("torch_after_vllm", has_torch.version or install.index or "latest", has_torch.line)  # type: ignore[operator]
            return
        for pin in install.pins:
            if pin.name in ("vllm", "sglang"):
                seen = pin


def read_lines(text: str) -> list[Install]:
    """The steps of a requirements file: all its lines are one step."""
    found = Install([], line=1)
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if not line:
            continue
        if line.startswith("-"):
            found.index = _index(line) or found.index
        elif (pin := requirement(line, number)) is not None:
            found.pins.append(pin)
    return [found]


def steps_of(text: str) -> list[Install]:
    """The install steps of a shell text, in order."""
    return [s for s in map(step, launches(text)) if s is not None]
