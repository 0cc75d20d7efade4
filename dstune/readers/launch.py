"""A command line → which server it starts, with which settings: shared by the shell, compose, Dockerfile and Kubernetes readers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dstune.readers import image as images
from dstune.readers.shell import Command, Word, commands

_WRAPPERS = {
    "sudo": 0, "nohup": 0, "exec": 0, "time": 0, "command": 0, "env": 0, "numactl": 0, "nice": 0, "taskset": 0, "stdbuf": 0, "setsid": 0,
    "export": 0, "xvfb-run": 0, "tini": 0, "--": 0, "timeout": 1, "poetry": 1, "uv": 1, "conda": 1, "pipenv": 1, "screen": 0, "start": 0, "Start-Process": 0,
}  # fmt: skip
_WRAPPER_VALUES = {"-u", "-n", "-p", "-c", "-C", "--cpunodebind", "--membind", "--python", "--with", "-S", "-dmS", "--cpu-bind"}
_DOCKER_SWITCHES = {
    "-d", "--detach", "-i", "--interactive", "-t", "--tty", "-it", "-ti", "-dit", "-itd", "-dti", "-id", "-td", "-di", "-dt", "--rm", "--privileged", "--init",
    "-P", "--publish-all", "--read-only", "--oom-kill-disable", "--no-healthcheck", "--sig-proxy", "-q", "--quiet", "--disable-content-trust", "--replace",
    "--use-api-socket",
}  # fmt: skip
_MODULES = (
    (r"vllm\.entrypoints\.openai\.api_server", "vllm", "vllm openai"),
    (r"vllm\.entrypoints\.api_server", "vllm", "vllm demo"),
    (r"vllm\.entrypoints\.cli\.main", "vllm", "vllm serve"),
    (r"fastchat\.serve\.vllm_worker", "vllm", "fastchat vllm"),
    (r"vllm(?:\.|$)", "vllm", "vllm"),
    (r"sglang\.launch_server|sglang\.srt\.server", "sglang", "sglang"),
    (r"llama_cpp\.server", "llamacpp", "llama-cpp-python"),
    (r"lmdeploy\.serve", "lmdeploy", "lmdeploy"),
    (r"uvicorn|gunicorn|hypercorn", "web", "uvicorn"),
    (r"text_generation_server", "tgi", "tgi"),
    (r"pip", "pip", "pip"),
)
_PROGRAMS = (
    (r"vllm", "vllm", "vllm"),
    (r"sglang", "sglang", "sglang"),
    (r"llama-server|llama_server|llama-cpp-server", "llamacpp", "llama-server"),
    (r"llama-cli|llama-run|llama-bench|llama-perplexity|llama-batched-bench|llama-mtmd-cli|llama", "llamacpp", "llama-cli"),
    (r"ollama", "ollama", "ollama"),
    (r"transformers|transformers-cli", "hfserve", "transformers serve"),
    (r"text-generation-launcher", "tgi", "tgi"),
    (r"lmdeploy", "lmdeploy", "lmdeploy"),
    (r"uvicorn|gunicorn|hypercorn", "web", "uvicorn"),
    (r"pip|pip3|uv", "pip", "pip"),
    (r"torchrun|deepspeed|accelerate", "torch", "torchrun"),
)


@dataclass(slots=True)
class Launch:
    """A command as it starts something.

    `args` are the words behind the program; `docker` the words of the container options and `image` the word that names the image, when
    it is a `docker run`. `engine` is a family of settings ("" = nothing known).
    """

    engine: str
    program: str
    args: list[Word]
    env: dict[str, Word] = field(default_factory=dict)
    docker: list[Word] = field(default_factory=list)
    image: Word | None = None
    container: str = ""
    end: int = 0
    lines: int = 1
    named: bool = True
    """Whether the words name the program; False where the image's entry point does."""
    first: Word | None = None
    """The word that starts the program."""


def launches(text: str) -> Iterator[Launch]:
    """All that a shell text starts, in order. The flags that a lost backslash cut off count as its command's."""
    cut: Launch | None = None
    for command in commands(text):
        if command.words and command.words[0].text.startswith(("-", "\u2013", "\u2014")) and cut is not None:
            cut.args += command.words
            cut.end = command.words[-1].end
            continue
        if cut is not None:
            yield cut
        cut = None
        started = list(_of(command, text))
        yield from started[:-1]
        cut = started[-1] if started else None
        if cut is not None and command.end != "\n":
            yield cut
            cut = None
    if cut is not None:
        yield cut


def _of(command: Command, text: str) -> Iterator[Launch]:
    words, env = _unwrapped(command.words, dict(command.env))
    if not words:
        if env:
            yield Launch("", "", [], env)
        return
    name = _base(words[0].text)
    if name in ("bash", "sh", "zsh", "cmd", "powershell") and (inner := _inner(words)) is not None:
        yield from nested(inner, env)
        return
    end = command.words[-1].end if command.words else 0
    if name in ("docker", "podman", "nerdctl", "docker-compose", "singularity", "apptainer"):
        yield from _container(words, env, name, end, command.lines)
        return
    if name in ("tmux", "ssh") and len(words) > 1 and " " in words[-1].text:
        yield from nested(words[-1], env)
        return
    engine, program, args = recognise(words)
    yield Launch(engine, program, args, env, end=end, lines=command.lines, first=words[0])


def _inner(words: Sequence[Word]) -> Word | None:
    for flag, word in itertools.pairwise(words):
        if re.fullmatch(r"-\w*c|/[cC]|-Command", flag.text):
            return word
    return None


def nested(word: Word, env: Mapping[str, Word] | None = None) -> Iterator[Launch]:
    """Launches inside a quoted word, with offsets in the outer text where the quoting allows."""
    shift = word.start + (1 if word.quote else 0)
    for inner in launches(word.text):
        yield Launch(
            inner.engine,
            inner.program,
            [_moved(w, word, shift) for w in inner.args],
            {**(env or {}), **{k: _moved(w, word, shift) for k, w in inner.env.items()}},
            [_moved(w, word, shift) for w in inner.docker],
            _moved(inner.image, word, shift) if inner.image else None,
            inner.container,
            inner.end + shift if word.plain else 0,
            inner.lines,
        )


def _moved(w: Word, outer: Word, shift: int) -> Word:
    return Word(w.text, w.start + shift, w.end + shift, w.line + outer.line - 1, w.quote, w.plain and outer.plain)


def _unwrapped(words: list[Word], env: dict[str, Word]) -> tuple[list[Word], dict[str, Word]]:
    """The words without `sudo`, `env A=b`, `nohup`, `uv run`…; their assignments join `env`."""
    while words:
        name = _base(words[0].text)
        if name in ("uv",) and len(words) > 1 and words[1].text == "pip":
            break
        if name in _WRAPPERS:
            words = words[1 + (_WRAPPERS[name] if len(words) > 1 else 0) :] if name not in ("export",) else words[1:]
            while words and words[0].text.startswith("-") and name not in ("export",):
                words = words[2:] if words[0].text in _WRAPPER_VALUES else words[1:]
            continue
        if re.match(r"(?!ExecStart)[A-Za-z_]\w*=", words[0].text):
            env[words[0].text.partition("=")[0]] = words[0]
            words = words[1:]
            continue
        if words[0].text.lower().startswith(("$env:", "execstart=", "environment=")):
            name, _, rest = words[0].text.partition("=")
            if name.lower() == "execstart" and rest:
                first = words[0]
                words = [Word(rest, first.start + len(name) + 1, first.end, first.line, first.quote, first.plain), *words[1:]]
                continue
            words = words[1:]
            continue
        break
    return words, env


def _base(text: str) -> str:
    name = re.split(r"[/\\]", text)[-1]
    return re.sub(r"\.(exe|cmd|bat)$", "", name)


def recognise(words: Sequence[Word]) -> tuple[str, str, list[Word]]:
    """(engine, program, arguments) of an argv."""
    words = list(words)
    if not words:
        return "", "", []
    name = _base(words[0].text)
    if re.fullmatch(r"python[\d.]*|py|pypy3?", name):
        at = 1
        while at < len(words) and words[at].text.startswith("-") and words[at].text not in ("-m", "-c"):
            at += 1
        if at + 1 < len(words) and words[at].text == "-m":
            module = words[at + 1].text
            for pattern, engine, program in _MODULES:
                if re.match(pattern, module):
                    return engine, program, words[at + 2 :]
            return "", module, words[at + 2 :]
        script = words[at].text if at < len(words) else ""
        if "vllm" in script or re.search(r"benchmark_(throughput|latency|serving)\.py$|api_server\.py$", script):
            return "vllm", "vllm demo" if script.endswith("entrypoints/api_server.py") else "vllm script", words[at + 1 :]
        return "", "python", words[at:]
    for pattern, engine, program in _PROGRAMS:
        if re.fullmatch(pattern, name):
            return engine, *_sub(engine, program, words[1:])
    if name in ("server", "main") and any(w.text.endswith(".gguf") or w.text in ("-ngl", "--n-gpu-layers") for w in words):
        return "llamacpp", "llama-server" if name == "server" else "llama-cli", words[1:]
    return "", name, words[1:]


def _sub(engine: str, program: str, words: list[Word]) -> tuple[str, list[Word]]:
    """The subcommand taken off (`vllm serve`, `ollama run`, `transformers serve`)."""
    if engine in ("vllm", "sglang", "ollama", "hfserve", "lmdeploy", "pip") and words and not words[0].text.startswith("-"):
        sub = words[0].text
        if engine == "pip" and sub == "pip":
            return _sub(engine, program, words[1:])
        if engine == "hfserve":
            return f"transformers {sub}", words[1:]
        if engine == "lmdeploy":
            return "lmdeploy", words[2:]
        return f"{program} {sub}", words[1:]
    return program, words


def _container(words: list[Word], env: dict[str, Word], name: str, end: int, lines: int) -> Iterator[Launch]:
    at = 1
    while at < len(words) and words[at].text not in ("run", "create", "compose", "exec"):
        at += 1
    if at >= len(words) or words[at].text in ("compose", "exec") or name == "docker-compose":
        program = " ".join([name, *(w.text for w in words[1:3])])
        inner = words[at + 1 :]
        if at < len(words) and words[at].text == "exec":
            yield Launch("", program, inner, env)
            return
        yield Launch("", program, inner, env)
        return
    options: list[Word] = []
    at += 1
    while at < len(words) and words[at].text.startswith("-"):
        options.append(words[at])
        if "=" not in words[at].text and words[at].text not in _DOCKER_SWITCHES and at + 1 < len(words):
            at += 1
            options.append(words[at])
        at += 1
    picture = words[at] if at < len(words) else None
    rest = words[at + 1 :]
    engine, program = "", ""
    own = images.parse(picture.text) if picture is not None else None
    entry = next((b for a, b in itertools.pairwise(options) if a.text == "--entrypoint"), None)
    args = rest
    named = True
    if entry is not None:
        engine, program, args = recognise([entry, *rest])
    elif rest and not rest[0].text.startswith("-"):
        if _base(rest[0].text) in ("bash", "sh") and (inside := _inner(rest)) is not None:
            for found in nested(inside, env):
                yield Launch(found.engine, found.program, found.args, found.env, options, picture, name, found.end, found.lines)
            return
        engine, program, args = recognise(rest)
    if not engine and own is not None and own.engine:
        engine, program = own.engine, own.program or own.engine
        args, named = rest, False
    elif not engine and picture is not None:
        guess = re.search(r"vllm|sglang|llama|ollama|text-generation-inference", picture.text.lower())
        if guess and rest and rest[0].text.startswith("-"):
            engine = {"llama": "llamacpp", "text-generation-inference": "tgi"}.get(guess[0], guess[0])
            program = {"vllm": "vllm serve", "llamacpp": "llama-server"}.get(engine, engine)
    yield Launch(engine, program, args, env, options, picture, name, end, lines, named and entry is None)
