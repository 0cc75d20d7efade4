"""Changes of launch scripts, compose files and Dockerfiles by name: what settings cannot express. Each touches nothing else."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

from dstune.readers.shell import joiner, slips

_OPTION = re.compile(r"[ \t]*--?[A-Za-z]")
_YES = re.compile(r"(?:^|\s)(?:-\w*y\w*|--yes|--assume-yes|-qq)\b")
_PROGRAM = re.compile(
    r"^(?:vllm\s+serve|python3?\s+-m\s+vllm\.entrypoints\.\S+|text-generation-launcher|llama-server|ollama\s+serve)\s*"
)


def edited(kind: str, text: str, name: str) -> str | None:
    """The text after an edit; None where it is for another kind of file or changes nothing."""
    kinds, change = EDITS.get(name, ((), None))
    if change is None or kind not in kinds:
        return None
    after = change(text)
    return after if after != text else None


def without_recursive_copy(text: str) -> str:
    """COPY and ADD without the -r that they do not have."""
    return re.sub(r"(?mi)^(\s*(?:COPY|ADD)\s+(?:--\S+\s+)*)(?:-[rRav]+|--recursive|--archive)\s+", r"\1", text)


def apt_with_yes(text: str) -> str:
    """`apt-get install` with -y where it has no form of it."""

    def one(found: re.Match[str]) -> str:
        whole = found[1] + found[2]
        return found[0] if _YES.search(whole) else f"{found[1]} -y{found[2]}"

    return re.sub(r"(\bapt(?:-get)?\b(?:[ \t]+-\S+)*[ \t]+install)((?:[^&;|\n\\]|\\\n)*)", one, text)


def run_joined(text: str) -> str:
    """A RUN that ended too early goes on: the line before each stray word gets its backslash."""
    from dstune.readers.dockerfile import INSTRUCTIONS, steps

    for _ in range(60):
        lines = text.split("\n")
        found = steps(text)
        broken = 0
        for before, step in itertools.pairwise(found):
            if before.name == "RUN" and (step.name not in INSTRUCTIONS or re.search(r"(?:&&|\|\|)\s*$", before.args)):
                broken = before.last
                break
        if not broken:
            return text
        lines[broken - 1] = lines[broken - 1].rstrip() + " \\"
        text = "\n".join(lines)
    return text


def names_declared(text: str) -> str:
    """Networks and named volumes that services use, declared at the top level."""
    from dstune.model import Document, Fact
    from dstune.readers import compose

    for item in list(compose.read(Document("compose.yaml", "compose", text))):
        if not isinstance(item, Fact) or item.name not in ("undeclared_network", "undeclared_volume"):
            continue
        section = "networks" if item.name == "undeclared_network" else "volumes"
        if re.search(rf"(?m)^  {re.escape(str(item.value))}:", text.partition(f"\n{section}:")[2].partition("\n\n")[0]):
            continue
        head = re.search(rf"(?m)^{section}:[ \t]*(?:\{{\}})?[ \t]*$", text)
        if head:
            text = f"{text[: head.start()]}{section}:\n  {item.value}: {{}}{text[head.end() :]}"
        elif not re.search(rf"(?m)^{section}:", text):
            text = text.rstrip("\n") + f"\n\n{section}:\n  {item.value}: {{}}\n"
    return text


def without_entry_point(text: str) -> str:
    """Commands of services without the program that the image's entry point starts; the model goes to --model."""
    import io

    from ruamel.yaml import YAML
    from ruamel.yaml.scalarstring import FoldedScalarString

    from dstune.readers.compose import environment_of, launch_of
    from dstune.readers.compose_write import indents
    from dstune.readers.containers import Container, derived

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(**indents(text))
    tree: Any = yaml.load(text)
    changed = False
    for service in (tree.get("services") or {}).values() if isinstance(tree, dict) else ():
        if not isinstance(service, dict):
            continue
        it = Container(
            {"image": str(service.get("image") or "")}, environment_of(service.get("environment")), launch_of(service, [])
        )
        if "repeats_entrypoint" not in dict(derived(it)):
            continue
        command = service["command"]
        flag = "--model" if it.launch is not None and it.launch.engine == "vllm" else ""
        if isinstance(command, list):
            words = [str(c) for c in command]
            rest = words[len(words) - len(it.launch.args) :] if it.launch is not None else words
            del command[: len(words) - len(rest)]
            if flag and rest and not rest[0].startswith("-"):
                command.insert(0, flag)
        elif not isinstance(command, FoldedScalarString):
            new = _PROGRAM.sub("", str(command))
            service["command"] = type(command)(f"{flag} {new}" if flag and not new.startswith("-") else new)
        else:
            continue
        changed = True
    if not changed:
        return text
    out = io.StringIO()
    yaml.dump(tree, out)
    return out.getvalue()


def lines_joined(text: str) -> str:
    """Lost backslashes put back, blanks behind them and empty lines in a command taken out, comments moved above it."""
    for _ in range(60):
        found = next(
            iter(s for s in slips(text) if s.kind in ("lost_backslash", "space_after_backslash", "comment_in_continuation")),
            None,
        )
        if found is None:
            return text
        lines, at, mark = text.split("\n"), found.line - 1, joiner(text)
        line = lines[at]
        if found.kind == "space_after_backslash":
            lines[at] = line.rstrip()
        elif found.kind == "lost_backslash":
            if line.strip():
                lines[at] = f"{line.rstrip()} {mark}"
            else:
                del lines[at]
        elif line.lstrip().startswith("#"):
            start = at
            while start > 0 and (lines[start - 1].rstrip().endswith(mark) or lines[start - 1].lstrip().startswith("#")):
                start -= 1
            indent = re.match(r"\s*", lines[start])
            lines.insert(start, (indent[0] if indent else "") + lines.pop(at).strip().removesuffix(mark).rstrip())
        else:
            comment = re.search(rf"\s{re.escape(mark)}[ \t]+(#.*)$", line)
            if comment is None:
                return text
            lines[at] = f"{line[: comment.start()]} {mark}"
        after = "\n".join(lines)
        if after == text:
            return text
        text = after
    return text


def tilde_as_home(text: str) -> str:
    """`"~/x"` and `--flag=~/x` with $HOME, which the shell expands there."""
    out = []
    for line in text.split("\n"):
        if not line.lstrip().startswith("#") and not re.match(r"\s*(?:export\s+)?\w+=~", line):
            line = re.sub(r"(?<=[\s=])'~/([^'$\n]*)'", r'"$HOME/\1"', line)
            line = re.sub(r'"~/', '"$HOME/', line)
            line = re.sub(r"(?<=\s)(--?[\w-]+=)~/", r"\1$HOME/", line)
        out.append(line)
    return "\n".join(out)


def openai_server(text: str) -> str:
    """The module of vLLM's OpenAI-compatible server in place of the demo server's: same flags, and every version has it."""
    return re.sub(r"(?m)^(?!\s*#)(.*)\bvllm\.entrypoints\.api_server\b", r"\1vllm.entrypoints.openai.api_server", text)


def plain_characters(text: str) -> str:
    """Dashes, quotes and blanks of a text processor as the shell's own, in lines that are commands."""
    strange = {s.line for s in slips(text) if s.kind == "odd_character"}
    out = []
    for number, line in enumerate(text.split("\n"), 1):
        if number in strange:
            line = re.sub("(?<=\\s)[\u2013\u2014\u2012\u2212\uff0d]{1,2}(?=[A-Za-z]{2})", "--", line)
            line = re.sub("(?<=\\s)[\u2013\u2014\u2012\u2212\uff0d](?=[A-Za-z]\\b)", "-", line)
            line = re.sub("[\u201c\u201d]", '"', line)
            line = re.sub("[\u2018\u2019]", "'", line)
            line = re.sub("[\u00a0\u3000]", " ", line).replace("\u200b", "")
        out.append(line)
    return "\n".join(out)


EDITS: dict[str, tuple[tuple[str, ...], Callable[[str], str]]] = {
    "dockerfile-copy-recursive": (("dockerfile",), without_recursive_copy),
    "dockerfile-apt-yes": (("dockerfile",), apt_with_yes),
    "dockerfile-run-joined": (("dockerfile",), run_joined),
    "compose-declare-names": (("compose",), names_declared),
    "compose-drop-entry-point": (("compose",), without_entry_point),
    "vllm-openai-server": (("command", "compose", "dockerfile"), openai_server),
    "shell-join-lines": (("command",), lines_joined),
    "shell-home": (("command",), tilde_as_home),
    "shell-plain-characters": (("command",), plain_characters),
}
"""Edits by the name that recipes use in `edit = "…"`: the kinds of file they are for, and the change."""
