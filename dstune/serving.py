"""What the processes on the cards serve: command line and program → engine, settings, version, and the model's shape.

Looks at the world only through `probes` (/proc, model folders) and `readers` (command lines, programs). The facts make evidence whole:
where memory goes can be told later and elsewhere (`plan.decompose`).
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterator, Sequence

from dstune.model import Document, Evidence, Fact, Value, family_of
from dstune.probes import model_shape
from dstune.probes.processes import Process, engine_of
from dstune.probes.reading import listing, text_of
from dstune.redact import redact

FAMILIES = ("vllm", "sglang", "llamacpp", "transformers", "hfserve", "generate")
_MODEL = ("vllm.model", "sglang.model_path", "llamacpp.model", "llamacpp.hf_repo", "transformers.model", "hfserve.model")
_PACKAGES = {"gradio": "transformers", "streamlit": "transformers", "hfserve": "transformers"}
_CLIMB = 4
"""Generations between a worker and the command that started the server."""


def known(evidence: Evidence, cache: dict[int, tuple[tuple[str, Value], ...]] | None = None) -> list[Fact]:
    """Facts of `process` subjects that belong to a model server of this machine; nothing for pids that are not here.

    `cache` keeps them by pid between samples; pids that are gone leave it.
    """
    own: dict[str, dict[str, Value]] = {}
    for f in evidence.facts:
        if family_of(f.subject) == "process" and f.name in ("pid", "engine", "settings"):
            own.setdefault(f.subject, {})[f.name] = f.value
    cache = {} if cache is None else cache
    pids = {p for facts in own.values() if isinstance(p := facts.get("pid"), int)}
    for gone in cache.keys() - pids:
        del cache[gone]
    found = []
    for subject, facts in own.items():
        pid = facts.get("pid")
        if not isinstance(pid, int) or not facts.get("engine") or "settings" in facts:
            continue
        if pid not in cache:
            cache[pid] = tuple(described(Process(pid)))
        found += [Fact(subject, name, value, f"/proc/{pid}") for name, value in cache[pid]]
    return found


def assumed(evidence: Evidence, folder: str) -> list[Fact]:
    """The model in this folder for every process on a card whose model is not known; a python program counts as transformers."""
    shape = model_shape.of_path(os.path.expanduser(folder))
    if not shape:
        return []
    found = []
    for subject in evidence.subjects("process"):
        own = {f.name: f.value for f in evidence.facts if f.subject == subject}
        if "model_config" in own or not (own.get("engine") or str(own.get("name", "")).startswith("python")):
            continue
        found += [Fact(subject, name, value, "--model") for name, value in shape.items()]
        found += [Fact(subject, "model", redact(folder), "--model")] if "model" not in own else []
        found += [] if own.get("engine") else [Fact(subject, "engine", "transformers", "--model")]
    return found


def described(process: Process) -> Iterator[tuple[str, Value]]:
    """Facts of one process: launch, launched_by, settings, engine_version, model, and the model's shape."""
    head = _head(process)
    if head is None:
        return
    yield "launched_by", head.pid
    yield "launch", redact(" ".join(head.argv))[:2000]
    engine = engine_of(head.argv, head.link("cwd")) or ""
    settings = _settings(head)
    if settings:
        yield "settings", [redact(f"{name}={value}") for name, value in settings.items()]
    package = "vllm" if "vllm.model" in settings else _PACKAGES.get(engine, engine)
    if version := _version(head, package):
        yield "engine_version", version
    name = str(next((settings[key] for key in _MODEL if settings.get(key)), ""))
    if name:
        yield "model", redact(name)
        yield from model_shape.of_name(name, head).items()


def _head(process: Process) -> Process | None:
    """The oldest ancestor (or the process) whose command line runs a model server: workers only carry a title."""
    found = None
    for _ in range(_CLIMB + 1):
        if process.pid <= 1:
            break
        if process.argv and engine_of(process.argv, process.link("cwd")):
            found = process
        process = Process(process.parent, process.root)
    return found


def _settings(head: Process) -> dict[str, Value]:
    """Settings by name, of the command line first, then of the program that it runs and of the file beside a generated one."""
    from dstune.readers import app, command

    words = head.argv
    if re.match(r"python|pypy", os.path.basename(words[0])) and len(words) > 1 and not words[1].startswith("-"):
        words = (
            words[1:] if not words[1].endswith(".py") else words
        )  # a console script: its shebang put the interpreter in front
    items = list(command.read(Document("cmdline", "command", shlex.join(words))))
    script = _script(head)
    text = text_of(script) if script else None
    if script and text:
        items += app.read(Document(script, "app", text))
    found: dict[str, Value] = {}
    for fact in items:
        if isinstance(fact, Fact) and fact.subject in FAMILIES and fact.value not in (None, ""):
            found.setdefault(f"{fact.subject}.{fact.name}", fact.value)
    if "llama_cpp.server" in head.argv:
        found = {**_LLAMA_CPP_PYTHON, **found, **_underscored(head.argv)}
    folder = os.path.dirname(script)
    if script and os.path.isfile(os.path.join(folder, "chat", "settings.py")):
        found = {**_generated(text_of(os.path.join(folder, "config.yaml")) or ""), **found}
    return found


_LLAMA_CPP_PYTHON: dict[str, Value] = {"llamacpp.ctx_size": 2048, "llamacpp.n_gpu_layers": 0}
"""Its own defaults (llama_cpp/server/settings.py): llama-server has others."""


def _underscored(words: Sequence[str]) -> dict[str, Value]:
    """Settings under the names that llama-cpp-python's server has for them."""
    names = {"--n_ctx": "llamacpp.ctx_size", "--n_batch": "llamacpp.ubatch_size"}
    return {names[a]: int(b) for a, b in itertools.pairwise(words) if a in names and b.isdigit()}


def _script(head: Process) -> str:
    """The Python file that a command line runs, "" for none."""
    base = head.link("cwd") or "/"
    for word in head.argv[:8]:
        name = word if word.endswith(".py") else ""
        if match := re.fullmatch(r"([\w.]+):\w+(?:\(\))?", word):
            name = match[1].replace(".", "/") + ".py"
        path = os.path.join(base, name)
        if name and os.path.isfile(path):
            return path
    return ""


_KEYS = {
    "path": "transformers.model", "dtype": "transformers.dtype", "quantization": "transformers.quantization",
    "concurrency": "transformers.max_batch_size", "context": "transformers.max_cache_len",
}  # fmt: skip


def _generated(text: str) -> dict[str, Value]:
    """Settings in the config.yaml of `dstune generate app`: a static cache of `concurrency` rows."""
    found: dict[str, Value] = {}
    for match in re.finditer(r"^ +(\w+): *\"?([^\"\n#]+?)\"? *$", text, re.M):
        if (name := _KEYS.get(match[1])) and match[2] not in ("none", "null"):
            found.setdefault(name, int(match[2]) if match[2].isdigit() else match[2])
    if found:
        found["generate.cache_implementation"] = "static"
    return found


def _version(head: Process, package: str) -> str:
    """Version of a package in the environment of the process, out of the name of its dist-info folder."""
    if not package or not re.fullmatch(r"[\w-]+", package):
        return ""
    homes = [os.path.dirname(os.path.dirname(w)) for w in head.argv[:2] if w.startswith("/") and "/bin/" in w]
    if environment := model_shape.environment(head).get("VIRTUAL_ENV"):
        homes.append(environment)
    if executable := head.link("exe"):
        homes.append(os.path.dirname(os.path.dirname(executable)))
    for home in homes:
        for lib in listing(os.path.join(home, "lib")):
            for kind in ("site-packages", "dist-packages"):
                for name in listing(os.path.join(home, "lib", lib, kind)) if lib.startswith("python3") else ():
                    if match := re.fullmatch(rf"{package.replace('-', '[-_]')}-(\d[\w.+]*)\.dist-info", name, re.I):
                        return match[1]
    return ""
