"""Environment reports: torch's and vLLM's collect_env, `transformers env`, `python -m bitsandbytes`, `pip list` and `pip freeze`."""

from __future__ import annotations

import re
from collections.abc import Callable

from dstune.catalog.vocabulary import terms
from dstune.readers.paste_sheet import Sheet, plain
from dstune.readers.paste_smi import counted

_KEYED = re.compile(r"^\s*(?:- |\* )?(?P<key>[A-Za-z`'][\w `'()?/#.-]*?)\s*: ?(?P<value>\S.*)?$")
_GPU = re.compile(r"GPU (?P<index>\d+): (?P<name>[^\n(]+)")
_FREEZE = re.compile(r"^\s*(?:\[(?:pip3?|conda)\] )?(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>\d[\w.+!-]*)\s*(?:;.*|#.*)?$")
_TWO = re.compile(r"^\s*(?:\[(?:pip3?|conda)\] )?(?P<name>[A-Za-z0-9][\w.-]*)\s+(?P<version>\d[\w.+!-]*)(?:\s+\S.*)?$")
_INSTALLED = re.compile(r"(?P<name>[A-Za-z0-9][\w.]*(?:-[A-Za-z][\w.]*)*)-(?P<version>\d[\w.+!]*)(?=\s|$)")
_VERSION = re.compile(r"\d[\w.+-]*")


def _torch(sheet: Sheet, value: str, line: int, text: str) -> None:
    build = _VERSION.search(value)
    if not build:
        return
    torch_build(sheet, build[0], line, text)
    if note := re.search(r"\((True|False|CUDA|NA)\)\s*$", value):  # transformers env: (GPU?) True, (accelerator?) CUDA
        sheet.put("torch", "has_cuda", True if note[1] in ("True", "CUDA") else None, line, text)


def torch_build(sheet: Sheet, build: str, line: int, text: str) -> None:
    """`2.11.0+cu130` → version, build, variant, and the CUDA that its tag names."""
    if "+" not in build and str(sheet.value("torch", "build")).startswith(f"{build}+"):
        return  # the same version, told without its tag
    sheet.put("torch", "build", build, line, text)
    sheet.put("torch", "version", build.partition("+")[0], line, text)
    sheet.put("python", "torch", build, line, text)
    tag = build.partition("+")[2]
    if not tag:
        return
    sheet.put("torch", "variant", tag, line, text)
    sheet.put("torch", "has_cuda", tag.startswith("cu") or None if tag != "cpu" else False, line, text)
    if cuda := re.fullmatch(r"cu(\d{2,3})(\d)", tag):
        sheet.put("torch", "cuda", f"{cuda[1]}.{cuda[2]}", line, text)


def _built_with(sheet: Sheet, value: str, line: int, text: str) -> None:
    if cuda := plain(value):
        sheet.put("torch", "cuda", cuda, line, text)
        sheet.put("torch", "has_cuda", True, line, text)
    else:
        sheet.put("torch", "has_cuda", False, line, text)


def _platform(sheet: Sheet, value: str, line: int, text: str) -> None:
    if found := re.match(r"(Linux|Windows|macOS)-([\w.+-]+?)(?:-x86_64|-aarch64|-AMD64|-arm64|$)", value):
        sheet.put("host", "os", {"Linux": "linux", "Windows": "windows", "macOS": "darwin"}[found[1]], line, text)
        if found[1] == "Linux":
            sheet.put("host", "kernel", found[2], line, text)
    if re.search(r"microsoft", value, re.IGNORECASE):
        sheet.put("host", "wsl", True, line, text)


def _of(subject: str, name: str) -> Callable[[Sheet, str, int, str], None]:
    def put(sheet: Sheet, value: str, line: int, text: str) -> None:
        sheet.put(subject, name, plain(value), line, text)

    return put


def _versions(sheet: Sheet, value: str, line: int, text: str) -> None:
    if found := re.match(r"\d[\d.]*", value):
        sheet.put("python", "version", found[0].rstrip("."), line, text)


KEYS: dict[str, Callable[[Sheet, str, int, str], None]] = {
    "pytorch version": _torch, "pytorch version (gpu?)": _torch, "pytorch version (accelerator?)": _torch, "cuda used to build pytorch": _built_with,
    "rocm used to build pytorch": _of("torch", "hip"), "python version": _versions, "python platform": _platform, "platform": _platform,
    "os": _of("host", "distribution"), "nvidia driver version": _of("driver", "version"), "cuda runtime version": _of("cuda_toolkit", "version"),
    "vllm version": _of("python", "vllm"), "transformers version": _of("python", "transformers"), "huggingface_hub version": _of("python", "huggingface_hub"),
    "safetensors version": _of("python", "safetensors"), "accelerate version": _of("python", "accelerate"), "tokenizers version": _of("python", "tokenizers"),
    "bitsandbytes version": _of("python", "bitsandbytes"), "deepspeed version": _of("python", "deepspeed"), "peft version": _of("python", "peft"),
    "gpu type": _of("gpu0", "name"),
}  # fmt: skip
"""Keys of the reports in lower case, without back-quotes."""


def read_environment(sheet: Sheet) -> None:
    """`python -m torch.utils.collect_env`, `vllm collect-env`, `transformers env` (`transformers-cli env`)."""
    for line, text in sheet.lines:
        if ":" not in text or len(text) > 400:
            continue
        for gpu in _GPU.finditer(text) if "GPU " in text and "UUID" not in text else ():
            sheet.put(f"gpu{gpu['index']}", "name", gpu["name"].strip(), line, text)
        found = _KEYED.match(text)
        if found is None or not found["value"]:
            continue
        key = found["key"].replace("`", "").strip().casefold()
        if key in KEYS:
            KEYS[key](sheet, found["value"].strip(), line, text)
    counted(sheet)


def read_bitsandbytes(sheet: Sheet) -> None:
    """`python -m bitsandbytes` from 0.43 on."""
    for line, text in sheet.having("CUDASpecs(", "itsand", "PyTorch:", "CUDA:"):
        if specs := re.search(r"highest_compute_capability=\((\d+), (\d+)\)", text):
            sheet.put("gpu0", "compute_capability", f"{specs[1]}.{specs[2]}", line, text)
        if cuda := re.search(r"cuda_version_string='(\d{2,3})(\d)'", text):
            sheet.put("torch", "cuda", f"{cuda[1]}.{cuda[2]}", line, text)
        if version := re.search(r"[Bb]itsand[Bb]ytes v(\d[\w.]*)", text):
            sheet.put("python", "bitsandbytes", version[1], line, text)
        if torch := re.match(r"\s*PyTorch: (\d[\w.+]*)", text):
            torch_build(sheet, torch[1], line, text)


def read_packages(sheet: Sheet) -> None:
    """`pip freeze`, `pip list` (also uv's and conda's), and the last line of `pip install`: packages that the vocabulary knows."""
    table = False
    for line, text in sheet.lines:
        if len(text) > 20_000:
            continue
        if re.match(r"\s*(?:Package|# Name|Name)\s+Version\b", text):
            table = True
        elif "Successfully installed " in text:
            for found in _INSTALLED.finditer(text.partition("Successfully installed ")[2]):
                _package(sheet, found, line, f"{found['name']}-{found['version']}")
        elif "==" in text and (found_freeze := _FREEZE.match(text)):
            _package(sheet, found_freeze, line, text)
        elif text.lstrip().startswith(("[pip", "[conda]")) and (found_pip := _TWO.match(text)):
            _package(sheet, found_pip, line, text)
        elif table:
            found_row = _TWO.match(text)
            if found_row is not None:
                _package(sheet, found_row, line, text)
            table = found_row is not None or set(text.strip()) <= set("- ")


def _package(sheet: Sheet, found: re.Match[str], line: int, text: str) -> None:
    name = re.sub(r"[-.]+", "_", found["name"].lower())
    if name == "torch":
        torch_build(sheet, found["version"], line, text)
    elif name == "nvidia_cuda_runtime_cu12" or f"python.{name}" not in terms():
        return
    else:
        sheet.put("python", name, found["version"], line, text)
