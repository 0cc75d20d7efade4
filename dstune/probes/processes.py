"""The processes of this machine as /proc shows them, and which of them serve a language model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from dstune.probes.reading import line_of, listing, text_of


@dataclass(frozen=True)
class Process:
    """One process. `argv` is empty for a kernel thread and for what we may not read."""

    pid: int
    root: str = "/"

    @property
    def folder(self) -> str:
        return os.path.join(self.root, "proc", str(self.pid))

    @cached_property
    def argv(self) -> tuple[str, ...]:
        raw = text_of(f"{self.folder}/cmdline", 65536) or ""
        return tuple(raw.rstrip("\0").split("\0")) if raw.strip("\0") else ()

    @cached_property
    def name(self) -> str:
        return line_of(f"{self.folder}/comm") or ""

    @cached_property
    def uid(self) -> int | None:
        try:
            return os.stat(self.folder).st_uid
        except OSError:
            return None

    @cached_property
    def parent(self) -> int:
        stat = text_of(f"{self.folder}/stat", 4096) or ""
        rest = stat.rpartition(")")[2].split()
        return int(rest[1]) if len(rest) > 1 and rest[1].isdigit() else 0

    def link(self, name: str) -> str | None:
        """Target of /proc/PID/NAME (`exe`, `cwd`, `root`)."""
        try:
            return os.readlink(f"{self.folder}/{name}")
        except OSError:
            return None

    @cached_property
    def readable(self) -> bool:
        return os.path.isdir(self.folder)

    def ports(self) -> list[tuple[str, int]]:
        """(address, port) pairs it listens on, from its own network namespace; empty where /proc/PID/fd is closed to us."""
        sockets = set()
        for fd in listing(f"{self.folder}/fd"):
            target = self.link(f"fd/{fd}") or ""
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
        if not sockets:
            return []
        found: dict[tuple[str, int], None] = {}
        for table in ("tcp", "tcp6"):
            for address, port, inode in listening(text_of(f"{self.folder}/net/{table}", 1 << 22) or ""):
                if inode in sockets:
                    found[(address, port)] = None
        return sorted(found, key=lambda pair: pair[1])


def listening(table: str) -> Iterator[tuple[str, int, str]]:
    """(address, port, inode) of the listening sockets in a text of /proc/net/tcp or tcp6."""
    for line in table.splitlines()[1:]:
        parts = line.split()
        if len(parts) > 9 and parts[3] == "0A":
            where, _, port = parts[1].rpartition(":")
            yield _address(where), int(port, 16), parts[9]


def _address(text: str) -> str:
    """`0100007F` → `127.0.0.1`; each group of four bytes is in host order."""
    import socket
    import struct

    packed = b"".join(struct.pack("=I", int(text[i : i + 8], 16)) for i in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def every(root: str = "/") -> Iterator[Process]:
    """All processes that we may see, by pid."""
    for entry in sorted((e for e in listing(os.path.join(root, "proc")) if e.isdigit()), key=int):
        yield Process(int(entry), root)


_TITLES = {"VLLM::": "vllm", "sglang::": "sglang"}
_MODULES = {
    "vllm.entrypoints": "vllm",
    "sglang.launch_server": "sglang",
    "sglang_router": "sglang",
    "llama_cpp.server": "llama-cpp-python",
    "lmdeploy.serve": "lmdeploy",
    "tensorrt_llm.commands.serve": "tensorrt-llm",
}
_SCRIPTS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llama-server": "llama.cpp",
    "llama-cpp-server": "llama.cpp",
    "transformers": "transformers",
    "transformers-cli": "transformers",
    "text-generation-launcher": "tgi",
    "text-generation-router": "tgi",
    "text-generation-server": "tgi",
    "ollama": "ollama",
    "lmdeploy": "lmdeploy",
    "trtllm-serve": "tensorrt-llm",
    "tritonserver": "triton",
    "streamlit": "streamlit",
    "gradio": "gradio",
}
_SERVES = {
    "vllm": ("serve",),
    "sglang": ("serve",),
    "transformers": ("serve", "chat"),
    "transformers-cli": ("serve", "chat"),
    "ollama": ("serve", "runner"),
    "lmdeploy": ("serve",),
    "streamlit": ("run",),
}
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?(?:\.exe)?$")
_IMPORTS = re.compile(r"^\s*(?:import|from)\s+(gradio|streamlit|vllm|transformers|llama_cpp)\b", re.MULTILINE)
_SERVING_LIBRARY = re.compile(
    r"^\s*(?:import|from)\s+(?:fastapi|flask|uvicorn|aiohttp|starlette|http\.server|bottle|litestar)\b", re.M
)


def engine_of(argv: tuple[str, ...], cwd: str | None = None, root: str = "/") -> str | None:
    """Engine that a command line runs, or None. A script is recognised by what it imports (`cwd` resolves its path)."""
    if not argv:
        return None
    for title, engine in _TITLES.items():
        if argv[0].startswith(title):
            return engine
    words = [w for w in argv if w]
    first = os.path.basename(words[0]) if words else ""
    rest = words
    if _PYTHON.match(first):
        rest = _after_options(words[1:])
        if rest[:1] == ["-m"] and len(rest) > 1:
            for module, engine in _MODULES.items():
                if rest[1] == module or rest[1].startswith(module + "."):
                    return engine
            rest = [rest[1].split(".")[0], *rest[2:]]
    if not rest:
        return None
    program = os.path.basename(rest[0])
    known = _SCRIPTS.get(program)
    if known:
        verbs = _SERVES.get(program)
        return known if verbs is None or any(v in rest[1:4] for v in verbs) else None
    if first == "server" and any(w.endswith(".gguf") for w in words):
        return "llama.cpp"
    if program in ("uvicorn", "gunicorn", "hypercorn", "fastapi"):
        target = next((w for w in rest[1:] if re.fullmatch(r"[\w.]+:\w+(\(\))?|[\w./-]+\.py", w)), "")
        path = target if target.endswith(".py") else target.split(":")[0].replace(".", "/") + ".py"
        return _engine_of_script(path, cwd, root, served=True) if target else None
    return _engine_of_script(rest[0], cwd, root) if rest[0].endswith(".py") else None


def _after_options(words: list[str]) -> list[str]:
    """What a python command line runs: the script and its arguments, or `-m module …`. Empty for `-c` and no script."""
    takes_value = ("-X", "-W", "--check-hash-based-pycs")
    i = 0
    while i < len(words):
        word = words[i]
        if word == "-m":
            return words[i:]
        if word == "-c":
            return []
        if not word.startswith("-"):
            return words[i:]
        i += 2 if word in takes_value else 1
    return []


def _engine_of_script(path: str, cwd: str | None, root: str, *, served: bool = False) -> str | None:
    whole = path if os.path.isabs(path) else os.path.join(cwd or "", path)
    if not os.path.isabs(whole):
        return None
    text = text_of(os.path.join(root, whole.lstrip("/")) if root != "/" else whole, 65536) or ""
    found = {m.group(1) for m in _IMPORTS.finditer(text)}
    for front in ("gradio", "streamlit"):
        if front in found:
            return front
    if served or _SERVING_LIBRARY.search(text):
        return next((e for e in ("vllm", "transformers") if e in found), "llama-cpp-python" if "llama_cpp" in found else None)
    return None


def engine_of_process(process: Process, depth: int = 4) -> str | None:
    """Engine of a process, or of the parent that started it (workers are spawned by `python -c`)."""
    root = process.root
    while depth and process.pid > 1:
        engine = engine_of(process.argv, process.link("cwd"), root)
        if engine:
            return engine
        process, depth = Process(process.parent, root), depth - 1
    return None
