"""What the configuration needs of this machine: the model's files, packages, cards, the port, a log that can be written.

Each fault says what is missing and what to type. Imports torch only where the configuration names cards, so that the rest is told at once.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import socket
from pathlib import Path

from chat.settings import Settings, layers

WEIGHTS = ("*.safetensors", "*.bin")
POINTER = b"version https://git-lfs"


def faults(settings: Settings) -> list[str]:
    """What is missing here, one line a fault."""
    return [*_files(settings.model.path), *(_cards(settings) or _packages(settings)), *_log(settings.log.file)]


def is_folder(path: str) -> bool:
    """Whether a model's path means a folder: it is one, or it cannot be a name of the Hub (`name` or `owner/name`)."""
    return os.path.isdir(path) or path.startswith(("/", ".", "~")) or path.count("/") > 1 or "\\" in path


def _files(path: str) -> list[str]:
    """A model in a folder: its configuration, and every file of its weights."""
    if not is_folder(path):
        return []
    folder = Path(path)
    if not folder.is_dir():
        return [
            f"model.path: there is no folder {path}; write the folder that holds the model's config.json, or its name on the Hub"
        ]
    if not (folder / "config.json").is_file():
        below = next((p.parent for p in sorted(folder.glob("*/config.json"))), None)
        return [
            f"model.path: {path} holds no config.json, so it is no model; "
            + (f"write {below}" if below else "write the folder that holds one")
        ]
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
        sets = [set(json.loads(i.read_text(encoding="utf-8"))["weight_map"].values()) for i in folder.glob("*.index.json")]
    except (OSError, ValueError, KeyError) as error:
        return [f"model.path: {path} cannot be read ({error}); download the model again"]
    there = {f.name for kind in WEIGHTS for f in folder.glob(kind)}
    pointer = next((name for name in sorted(there) if _head(folder / name) == POINTER), "")
    if pointer:
        return [f"model.path: {path}/{pointer} is a pointer of Git LFS, not the weights; type: git -C {path} lfs pull"]
    missing = min((sorted(parts - there) for parts in sets), key=len, default=[] if there else ["its weights"])
    if missing and "model.safetensors" not in there:
        return [
            f"model.path: {path} lacks {', '.join(missing[:3])}{', …' * (len(missing) > 3)}; the download is incomplete: start it again"
        ]
    return []


def _head(file: Path) -> bytes:
    with file.open("rb") as f:
        return f.read(len(POINTER))


def lacking() -> list[str]:
    """The packages of requirements.txt that this Python does not have."""
    return [name for name in ("torch", "transformers", "gradio", "fastapi", "uvicorn") if not importlib.util.find_spec(name)]


def _packages(settings: Settings) -> list[str]:
    """What quantising while loading needs."""
    kind = settings.model.quantization
    if kind == "none" or importlib.util.find_spec("bitsandbytes"):
        return []
    return [
        f"model.quantization: {kind} needs the package bitsandbytes, which is not installed; type: pip install bitsandbytes"
    ]


def _cards(settings: Settings) -> list[str]:
    """The cards that are named. Without torch nothing can be said here; starting says that it is missing."""
    model = settings.model
    named = {d for d in layers(model.layer_map, None).values() if d != "cpu"} if model.layer_map else set()
    if (model.quantization == "none" and not named) or not importlib.util.find_spec("torch"):
        return []
    try:
        import torch
    except (ImportError, OSError) as error:
        return [f"torch cannot be imported ({error}); type: pip install -r requirements.txt"]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count and model.quantization != "none":
        return [
            f"model.quantization: {model.quantization} needs an NVIDIA card, and torch {torch.__version__} finds none: look at nvidia-smi and "
            "install torch with CUDA, or write none"
        ]
    absent = sorted(d for d in named if int(d[5:]) >= count)
    return (
        [f"model.layer_map: {', '.join(absent)} is not here; torch {torch.__version__} finds {count} card{'s' * (count != 1)}"]
        if absent
        else []
    )


def taken(host: str, port: int) -> list[str]:
    """Whether the address is free. Told before a minute of loading, not after it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family):
            return []
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            return [
                f"server.port: {port} is in use on {host}; write another, or end what listens there (ss -ltnp | grep {port})"
            ]
        if number == errno.EACCES:
            return [f"server.port: {port} is reserved for root; write one from 1024 on"]
        return [f"server.host: cannot listen on {host}:{port}: {getattr(error, 'strerror', '') or error}"]


def _log(path: str) -> list[str]:
    """Whether the log can be written."""
    if not path:
        return []
    folder = Path(path).parent
    above = next((p for p in (folder, *folder.resolve().parents) if p.exists()), folder)
    if not above.is_dir():
        return [f"log.file: {above} is no folder"]
    there = Path(path) if Path(path).exists() else above
    if Path(path).is_dir() or not os.access(there, os.W_OK):
        return [f'log.file: {path} cannot be written; write a file in a folder that is yours, or "" for the console alone']
    return []
