"""Versions of packages put where a program's packages are listed: requirements files, and `pip install` lines of scripts and Dockerfiles."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dstune.model import Value
from dstune.readers.requirements import requirement, step
from dstune.readers.shell import Word

_LINE = re.compile(
    r"^(?P<head>\s*)(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<extra>\[[^\]]*\])?(?P<spec>[^#;\n]*?)(?P<tail>\s*(?:[;#].*)?)$"
)


def pinned(kind: str, text: str, wanted: Mapping[str, Value]) -> str:
    """The text with these packages at these versions (`==2.10.6`, `<1`, a bare number is exact); None takes a package out.

    A package that is not listed joins the list that has one of the others, else the last one.
    """
    specs = {name: None if v is None else str(v) if re.match(r"[<>=!~]", str(v)) else f"=={v}" for name, v in wanted.items()}
    return _lines(text, specs) if kind == "config" else _installs(text, specs)


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _lines(text: str, specs: Mapping[str, str | None]) -> str:
    out: list[str] = []
    missing = {n: s for n, s in specs.items() if s is not None}
    for line in text.split("\n"):
        found = _LINE.match(line)
        name = _key(found["name"]) if found and not line.lstrip().startswith(("#", "-")) else ""
        if found and name in specs:
            spec = specs[name]
            missing.pop(name, None)
            if spec is None:
                continue
            line = f"{found['head']}{found['name']}{found['extra'] or ''}{spec}{found['tail']}"
        out.append(line)
    last = len(out) - 1 if out and not out[-1] else len(out)
    return "\n".join([*out[:last], *(f"{n}{s}" for n, s in missing.items()), *out[last:]])


def _installs(text: str, specs: Mapping[str, str | None]) -> str:
    """Each package at the last `pip install` that names it; what none names joins the last one that names any known package."""
    for name, spec in specs.items():
        place = _place(text, name)
        if place is not None:
            word = place
            if spec is None:
                text = text[: word.start].rstrip(" \t") + text[word.end :]
                continue
            found = re.match(r"[\"']?([A-Za-z0-9._-]+(?:\[[^\]]*\])?)", text[word.start : word.end])
            new = f"{found[1] if found else name}{spec}"
            text = text[: word.start] + _quoted(new) + text[word.end :]
        elif spec is not None and (after := _place(text, "")) is not None:
            text = text[: after.end] + f" {_quoted(name + spec)}" + text[after.end :]
    return text


def _quoted(text: str) -> str:
    return f"'{text}'" if re.search(r"[<>!~*\[]", text) else text


def _place(text: str, name: str) -> Word | None:
    """The word of a package in the last `pip install` that has it; of any package for ""."""
    from dstune.readers.launch import launches

    found: Word | None = None
    for launch in launches(_shell(text)):
        install = step(launch)
        if install is None:
            continue
        values = False
        for word in launch.args:
            if word.text.startswith("-"):
                values = "=" not in word.text and word.text in _WITH_VALUE
                continue
            if values:
                values = False
                continue
            pin = requirement(word.text, word.line)
            if (
                pin is not None
                and word.end
                and (pin.name == name or not name)
                and pin.name in text[word.start : word.end].lower().replace("-", "_")
            ):
                found = word
    return found


_WITH_VALUE = frozenset(("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-r", "--requirement", "-c", "--constraint", "-t", "--target", "--index", "--python", "-p", "--prefix", "--root", "--timeout", "--retries", "--trusted-host"))  # fmt: skip


def _shell(text: str) -> str:
    """A Dockerfile's RUN lines as shell text of the same length, so that places agree; other text as it is."""
    if not re.search(r"(?mi)^\s*FROM\s+\S+", text):
        return text
    text = re.sub(r"(?mi)^(\s*)RUN(?=\s)", lambda m: m[1] + "   ", text)
    text = re.sub(r"(?m)^(\s+)((?:--(?:mount|network|security)=\S+[ \t]*)+)", lambda m: m[1] + " " * len(m[2]), text)
    return re.sub(r"(?m)^(?!\s|#)([A-Z]+)(?=\s)", lambda m: "#" + m[1][1:], text)


def torch_trio(kind: str, text: str) -> str:
    """torchvision and torchaudio of the torch that is pinned beside them: torch 2.n.p → torchvision 0.(n+15).p, torchaudio 2.n.p.

    Source: the compatibility table of github.com/pytorch/vision (README.md, Installation).
    """
    found = re.search(r"(?m)(?<![\w-])torch==(2)\.(\d+)\.(\d+)(\+\w+)?", re.sub(r"(?m)#.*$", lambda m: " " * len(m[0]), text))
    if not found:
        return text
    minor, patch, local = int(found[2]), found[3], found[4] or ""
    right = {"torchvision": f"0.{minor + 15}.{patch}{local}", "torchaudio": f"2.{minor}.{patch}{local}"}
    wrong = {n: v for n, v in right.items() if re.search(rf"(?m)(?<![\w-]){n}\b", text)}
    return pinned(kind, text, wrong) if wrong else text


def torch_cuda_build(text: str) -> str:
    """The CUDA build of torch in place of the CPU one: PyPI's own wheels for Linux have CUDA, the `cpu` index and `+cpu` have none."""
    text = re.sub(r"[ \t]*(?:--(?:extra-)?index-url|-i)[ =]\S*download\.pytorch\.org/whl/cpu/?(?=\s|$)", "", text)
    text = re.sub(r"(?m)^\n(?=torch)", "", text) if text.startswith("\n") else text
    return re.sub(r"(\b(?:torch|torchvision|torchaudio)==[\d.]+)\+cpu\b", r"\1", text)
