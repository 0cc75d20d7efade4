"""Launch lines and scripts: what they start, with which settings, and slips of the shell. `write` puts settings back in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dstune.model import Document, Fact, Gap, Value
from dstune.readers import requirements
from dstune.readers.containers import Container, accumulate, derived, environment
from dstune.readers.given import facts, given, shown
from dstune.readers.launch import Launch, launches
from dstune.readers.shell import slips
from dstune.readers.write import into_command


def read(document: Document) -> Iterator[Fact | Gap]:
    """Facts of every command of the text. Several of one engine are numbered (`vllm`, `vllm1`)."""
    lines = document.text.splitlines()
    for slip in slips(document.text):
        yield Fact("command", slip.kind, slip.value or True, document.path, slip.line, shown(lines, slip.line))
    seen: dict[str, int] = {}
    steps = []
    for launch in launches(document.text):
        if launch.engine == "pip":
            if (step := requirements.step(launch)) is not None:
                steps.append(step)
            continue
        number = seen.get(launch.engine, 0)
        if launch.engine:
            seen[launch.engine] = number + 1
        yield from facts(launch, document.path, lines, f"{launch.engine}{number or ''}" if launch.engine else None)
        if launch.container and launch.image is not None:
            docker = seen.get("docker", 0)
            seen["docker"] = docker + 1
            yield from container(launch, document.path, lines, f"docker{docker or ''}")
    yield from requirements.facts(steps, document.path, lines)


def container(launch: Launch, source: str, lines: list[str], subject: str) -> Iterator[Fact]:
    """Facts of a `docker run`."""
    assert launch.image is not None
    settings: dict[str, Value] = {"image": launch.image.text}
    where = {"image": launch.image}
    pairs: list[str] = []
    for setting in given("docker", launch.docker):
        name = setting.term.name.partition(".")[2]
        if setting.value is None:
            continue
        accumulate(settings, name, setting.value)
        where[name] = setting.flag
    words = launch.docker
    for at, word in enumerate(words):
        if word.text in ("-e", "--env") and at + 1 < len(words):
            pairs.append(words[at + 1].text)
        elif word.text.startswith(("--env=", "-e=")):
            pairs.append(word.text.partition("=")[2])
    it = Container(settings, environment(pairs), launch)
    for name, value in settings.items():
        yield Fact(subject, name, value, source, where[name].line, shown(lines, where[name].line))
    line = launch.image.line
    for name, value in derived(it):
        yield from derived_facts(subject, name, value, source, line, lines)
    yield from env_facts(it.env, source, line, lines)


def derived_facts(subject: str, name: str, value: Value, source: str, line: int | None, lines: list[str]) -> Iterator[Fact]:
    """A derived fact of a container, under the names that say the same elsewhere."""
    text = shown(lines, line)
    if name == "engine_version":
        family = "sglang" if "sglang" in text else "vllm"
        yield Fact(family, "version", value, source, line, text)
        return
    yield Fact(subject, name, value, source, line, text)
    if name == "image_cuda":
        yield Fact("container", "image_cuda", value, source, line, text)


def env_facts(env: Mapping[str, str], source: str, line: int | None, lines: list[str]) -> Iterator[Fact]:
    """Settings that environment variables hold."""
    from dstune.catalog.vocabulary import normalise
    from dstune.readers.given import variables

    for name, value in env.items():
        if (term := variables().get(name)) is not None:
            typed: Value = "(given)" if term.spec.get("secret") else normalise(term.name, value)
            if typed is not None:
                family, _, own = term.name.partition(".")
                yield Fact(family, own, typed, source, line, shown(lines, line))


def write(text: str, settings: Mapping[str, Value]) -> str:
    """The text with the settings put into the commands they belong to; None takes one out. What has no place is left out."""
    return into_command(text, settings)
