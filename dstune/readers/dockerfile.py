"""Dockerfiles: base image, CUDA, install order, what is baked in, how it starts. `write` changes the start command and variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dstune.lang import say
from dstune.model import Document, Fact, Gap, Value, parse_json
from dstune.readers import image as images
from dstune.readers import requirements
from dstune.readers.command import env_facts
from dstune.readers.given import facts as launch_facts
from dstune.readers.given import shown
from dstune.readers.launch import Launch, launches, recognise
from dstune.readers.shell import Word
from dstune.redact import redact

INSTRUCTIONS = frozenset((
    "FROM", "RUN", "CMD", "LABEL", "MAINTAINER", "EXPOSE", "ENV", "ADD", "COPY", "ENTRYPOINT", "VOLUME", "USER", "WORKDIR", "ARG", "ONBUILD", "STOPSIGNAL",
    "HEALTHCHECK", "SHELL",
))  # fmt: skip
_HEREDOC = re.compile(r"<<-?\s*([\"']?)([A-Za-z_]\w*)\1")
_CACHE = re.compile(
    r"\.cache/(?:huggingface|modelscope)|(?:^|[\s/])(?:models?|weights|checkpoints?)(?:/|\s|$)|1___5B|DeepSeek|Qwen|[Ll]lama-\d",
    re.I,
)
_WEIGHTS = re.compile(
    r"\.cache/huggingface|\.cache/modelscope|\.safetensors|\.gguf|1___5B|DeepSeek-R1|Qwen\d|(?:^|[\s/])hub/models--"
)
_DOWNLOAD = re.compile(
    r"(?:huggingface-cli|hf|modelscope)\s+download|snapshot_download\(|git\s+(?:lfs\s+)?clone\s+\S*huggingface\.co|from_pretrained\(|ollama\s+pull"
)


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction with its arguments joined over its lines (comments inside are none, as Docker reads it)."""

    name: str
    args: str
    line: int
    last: int


def steps(text: str) -> list[Step]:
    """The instructions of a Dockerfile."""
    found: list[Step] = []
    lines = text.splitlines()
    escape = "`" if re.match(r"\s*#\s*escape\s*=\s*`", text) else "\\"
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first, parts, body = at, [line.strip()], line
        while body.rstrip().endswith(escape) and at < len(lines):
            body = lines[at]
            at += 1
            if not body.strip() or body.lstrip().startswith("#"):
                body = escape  # a comment or an empty line inside an instruction is skipped
                continue
            parts.append(body.strip())
        joined = " ".join([*(part.removesuffix(escape) for part in parts[:-1]), parts[-1]])
        name, _, args = joined.rstrip().removesuffix(escape).strip().partition(" ")
        if name.upper() in ("RUN", "COPY", "ADD"):
            for _, word in _HEREDOC.findall(args):
                while at < len(lines) and lines[at].strip() != word:
                    args += "\n" + lines[at]
                    at += 1
                at += 1
        found.append(Step(name.upper(), args.strip(), first, min(at, len(lines))))
    return found


def read(document: Document) -> Iterator[Fact | Gap]:
    """Facts of family `dockerfile` (final stage), `requirements`, `docker.image_*` of the base, and of what it starts."""
    lines = document.text.splitlines()
    everything = steps(document.text)

    def fact(name: str, value: Value, line: int, family: str = "dockerfile") -> Fact:
        return Fact(family, name, value, document.path, line, shown(lines, line))

    if not any(s.name == "FROM" for s in everything):
        yield Gap("dockerfile", "*", say(f"no FROM in {document.path}", f"{document.path} 中没有 FROM"))
        return
    yield from _form(everything, fact)
    arguments: dict[str, str] = {}
    stages: dict[str, str] = {}
    base, base_line, user, start = "", 1, "", 0
    for number, step in enumerate(everything):
        if step.name == "ARG" and "=" in step.args:
            key, _, value = step.args.partition("=")
            arguments.setdefault(key.strip(), value.strip().strip("\"'"))
        elif step.name == "FROM":
            words = [w for w in step.args.split() if not w.startswith("--")]
            reference = _filled(words[0], arguments) if words else ""
            base = stages.get(reference, reference)
            if len(words) >= 3 and words[1].upper() == "AS":
                stages[words[2]] = base
            base_line, user, start = step.line, "", number
        elif step.name == "USER":
            user = step.args
    final = everything[start:]
    yield from _base(base, base_line, fact)
    if user:
        yield fact("user", user, next(s.line for s in reversed(final) if s.name == "USER"))
    yield fact("root", user.split(":")[0] in ("", "root", "0"), base_line)
    env = _env(final)
    for name, (value, line) in env.items():
        yield from env_facts({name: value}, document.path, line, lines)
    yield from _copied(final, fact)
    yield from _runs(final, fact)
    yield from _installed(everything, document, lines)
    launch = started(final, base)
    if launch is not None:
        yield from launch_facts(launch, document.path, lines)
        image = images.parse(base)
        command = next((s for s in reversed(final) if s.name == "CMD"), None)
        if image is not None and image.program and command is not None and not any(s.name == "ENTRYPOINT" for s in final):
            argv = argv_of(command)
            if argv and recognise(argv)[0] == image.engine:
                yield fact("repeats_entrypoint", image.program, command.line, "docker")


def _filled(text: str, arguments: Mapping[str, str]) -> str:
    def one(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        return arguments.get(name) or (found[2] or "") or found[0]

    return re.sub(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))", one, text)


def _form(everything: list[Step], fact: object) -> Iterator[Fact]:
    """Lines that are no instruction: a RUN that ended too early."""
    previous: Step | None = None
    for step in everything:
        if step.name not in INSTRUCTIONS:
            if previous is not None and previous.name == "RUN":
                yield fact(
                    "broken_run",
                    redact(f"{step.name} {step.args}")[:60].lower() if step.name.isupper() else step.name,
                    step.line,
                )  # type: ignore[operator]
            else:
                yield fact("unknown_instruction", step.name, step.line)  # type: ignore[operator]
            return
        if step.name == "RUN" and re.search(r"(?:&&|\|\||\\)\s*$", step.args):
            yield fact("broken_run", redact(step.args)[-40:], step.last)  # type: ignore[operator]
        if step.name in ("CMD", "ENTRYPOINT") and step.args.startswith("["):
            try:
                parse_json(step.args)
            except ValueError:
                yield fact("exec_form_invalid", redact(step.args)[:80], step.line)  # type: ignore[operator]
        previous = step


def _base(reference: str, line: int, fact: object) -> Iterator[Fact]:
    if not reference:
        return
    make = fact
    yield make("base", reference, line)  # type: ignore[operator]
    image = images.parse(reference)
    if image is None:
        return
    yield make("base_floating", image.floating and image.name != "scratch", line)  # type: ignore[operator]
    if image.gpu:
        yield make("base_gpu", image.gpu, line)  # type: ignore[operator]
    if image.cuda:
        yield make("base_cuda", image.cuda_line, line)  # type: ignore[operator]
        yield make("image_cuda", image.cuda_line, line, "container")  # type: ignore[operator]
        if floor := images.driver_floor(image.cuda):
            yield make("driver_min", floor, line)  # type: ignore[operator]
    if images.end_of_life(image):
        yield make("base_end_of_life", True, line)  # type: ignore[operator]
    if image.engine and image.version and image.engine in ("vllm", "sglang"):
        yield make("version", image.version, line, image.engine)  # type: ignore[operator]


def _env(final: list[Step]) -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for step in final:
        if step.name != "ENV":
            continue
        pairs = re.findall(r"([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|\S*)", step.args)
        if not pairs and " " in step.args:
            pairs = [tuple(step.args.split(None, 1))]
        for name, value in pairs:
            found[name] = (value.strip("\"'"), step.line)
    return found


def _copied(final: list[Step], fact: object) -> Iterator[Fact]:
    for step in final:
        if step.name not in ("COPY", "ADD"):
            continue
        words = step.args.split()
        options = [w for w in words if w.startswith("-")]
        if any(re.fullmatch(r"-[rRav]+|--recursive|--archive", w) for w in options):
            yield fact("copy_recursive", next(w for w in options if not w.startswith("--from")), step.line)  # type: ignore[operator]
        if not any(w.startswith("--from") for w in options) and _WEIGHTS.search(step.args):
            yield fact("bakes_model", redact(step.args)[:120], step.line)  # type: ignore[operator]


def _runs(final: list[Step], fact: object) -> Iterator[Fact]:
    make = fact
    for step in final:
        if step.name != "RUN":
            continue
        if _DOWNLOAD.search(step.args) and "type=cache" not in step.args:
            yield make("bakes_model", redact(step.args)[:120], step.line)  # type: ignore[operator]
        install = re.search(r"\bapt(?:-get)?\s+(?:-\S+\s+)*install\b([^&;|]*)", step.args)
        if install and not re.search(
            r"(?:^|\s)(?:-\w*y\w*|--yes|--assume-yes|-qq)\b", step.args[: install.end()][step.args.find("apt") :]
        ):
            yield make("apt_without_yes", redact(step.args)[:80], step.line)  # type: ignore[operator]
        if install and not re.search(r"rm\s+-\w+\s+\S*/var/lib/apt/lists|type=cache", step.args):
            yield make("apt_keeps_lists", True, step.line)  # type: ignore[operator]


def _installed(everything: list[Step], document: Document, lines: list[str]) -> Iterator[Fact]:
    """pip lines in order; words are placed on the line where they stand."""
    found: list[requirements.Install] = []
    for step in everything:
        if step.name == "FROM":
            found.clear()
        elif step.name == "RUN":
            text = "\n" * (step.line - 1) + re.sub(r"^(?:--\S+\s+)+", "", step.args)
            for install in requirements.steps_of(text):
                for at, pin in enumerate(install.pins):
                    line = next(
                        (
                            n
                            for n in range(step.line, step.last + 1)
                            if re.search(rf"\b{pin.name.replace('_', '[-_.]')}\b", lines[n - 1], re.I)
                        ),
                        step.line,
                    )
                    install.pins[at] = requirements.Pin(pin.name, pin.operator, pin.version, line)
                found.append(install)
    yield from requirements.facts(found, document.path, lines)


def started(final: list[Step], base: str) -> Launch | None:
    """What the container runs: ENTRYPOINT and CMD together; with a base image of a known server, its own entry point."""
    entry = next((s for s in reversed(final) if s.name == "ENTRYPOINT"), None)
    command = next((s for s in reversed(final) if s.name == "CMD"), None)
    words = [w for s in (entry, command) if s is not None for w in argv_of(s)]
    if not words:
        return None
    if re.fullmatch(r"(?:/bin/|/usr/bin/)?(?:ba|da|z)?sh", words[0].text) and len(words) >= 3:
        inner = [i for i in launches(words[-1].text) if i.engine]
        if inner:
            return Launch(inner[-1].engine, inner[-1].program, [_at(w, words[-1].line) for w in inner[-1].args], {})
    engine, program, args = recognise(words) if not words[0].text.startswith("-") else ("", "", words)
    image = images.parse(base)
    if not engine and entry is None and image is not None and image.engine:
        engine, program, args = image.engine, image.program or image.engine, words
    return Launch(engine, program, args, {}, [], None, "dockerfile") if engine else None


def _at(word: Word, line: int) -> Word:
    return Word(word.text, 0, 0, line, "", False)


def argv_of(step: Step) -> list[Word]:
    """The words of a CMD or ENTRYPOINT, in either form."""
    if step.args.startswith("["):
        try:
            return [Word(str(a), 0, 0, step.line, "", False) for a in parse_json(step.args)]
        except ValueError:
            return [Word(a, 0, 0, step.line, "", False) for a in re.findall(r"[\"']([^\"']*)[\"']", step.args)]
    from dstune.readers.shell import commands

    found = commands(step.args)
    return [_at(w, step.line) for w in found[-1].words] if found else []


def write(text: str, settings: Mapping[str, Value]) -> str:
    """The Dockerfile with the settings: an engine's flags in CMD/ENTRYPOINT, variables in ENV, `dockerfile.base` in the last FROM."""
    from dstune.readers.dockerfile_write import write as write_text

    return write_text(text, settings)
