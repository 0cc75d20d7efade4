"""Changes of launch scripts, compose files and Dockerfiles by name: what settings cannot express. Each touches nothing else."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping

from dstune.readers.pins import torch_cuda_build, torch_trio
from dstune.readers.shell import heredocs, joiner, slips
from dstune.readers.text_edit_compose import cache_mounted, names_declared, service_addresses, without_entry_point
from dstune.readers.text_edit_launch import changes, corrected, one_worker, vllm_flags

_OPTION = re.compile(r"[ \t]*--?[A-Za-z]")
_YES = re.compile(r"(?:^|\s)(?:-\w*y\w*|--yes|--assume-yes|-qq)\b")


def edited(kind: str, text: str, name: str, versions: Mapping[str, str] | None = None) -> str | None:
    """The text after an edit; None where it is for another kind of file or changes nothing. `versions`: of the engines, where known."""
    kinds, change = EDITS.get(name, ((), None))
    if change is None or kind not in kinds:
        return None
    shown, bodies = _without_bodies(text) if kind == "command" else (text, [])
    if name in ("vllm-flags", "vllm-flag-spelling"):
        after = vllm_flags(kind, shown, versions or {}, corrected if name == "vllm-flag-spelling" else changes)
    else:
        after = change(kind, shown) if name in BY_KIND else change(shown)
    for number, body in enumerate(bodies):
        after = after.replace(_BODY.format(number), body)
    return after if after != text else None


_BODY = "\0body{}\0\n"


def _without_bodies(text: str) -> tuple[str, list[str]]:
    """A script with a mark for the body of each here-document, and the bodies: what a script writes or sends is not what it runs."""
    bodies: list[str] = []
    for number, (start, end) in reversed(list(enumerate(heredocs(text)))):
        if start < end:
            bodies.insert(0, text[start:end])
            text = text[:start] + _BODY.format(number) + text[end:]
        else:
            bodies.insert(0, "")
    return text, bodies


def without_recursive_copy(text: str) -> str:
    """COPY and ADD without the -r that they do not have."""
    return re.sub(r"(?mi)^(\s*(?:COPY|ADD)\s+(?:--\S+\s+)*)(?:-[rRav]+|--recursive|--archive)\s+", r"\1", text)


def apt_with_yes(text: str) -> str:
    """`apt-get install` with -y where it has no form of it."""

    def one(found: re.Match[str]) -> str:
        whole = found[1] + found[2]
        return found[0] if _YES.search(whole) else f"{found[1]} -y{found[2]}"

    return re.sub(r"(\bapt(?:-get)?\b(?:[ \t]+-\S+)*[ \t]+install)((?:[^&;|\n\\]|\\\n)*)", one, text)


def apt_lists_deleted(text: str) -> str:
    """A RUN that installs packages deletes apt's lists in the same layer."""
    from dstune.readers.dockerfile import steps

    lines = text.split("\n")
    for step in reversed(steps(text)):
        if step.name != "RUN" or not re.search(r"\bapt(?:-get)?\b[^&;|]*\binstall\b", step.args) or "<<" in step.args:
            continue
        if re.search(r"rm\s+-\w+\s+\S*/var/lib/apt/lists|type=cache", step.args) or not lines[step.last - 1].strip():
            continue
        last = lines[step.last - 1].rstrip()
        joins = [m[1] for line in lines[step.line - 1 : step.last] if (m := re.match(r"(\s*&&)", line))]
        inner = re.match(r"\s*", last)
        break_ = f" \\\n{joins[-1] if joins else (inner[0] if inner else '    ') + '&&'} " if step.last > step.line else " && "
        lines[step.last - 1] = f"{last}{break_}rm -rf /var/lib/apt/lists/*"
    return "\n".join(lines)


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


_HF = {"login": "auth login", "logout": "auth logout", "whoami": "auth whoami", "scan-cache": "cache ls"}
_OLD_HF = re.compile(r"\bhuggingface-cli([ \t]+)(download|upload|login|logout|whoami|scan-cache|env|version)\b")
_OLD_SWITCHES = re.compile(
    r"[ \t]+(?:--local-dir-use-symlinks(?:[= ][ \t]*(?:[Tt]rue|[Ff]alse|auto))?|--resume-download)(?=\s|$)"
)
"""Commands of huggingface-cli that `hf` has under another name (huggingface_hub 2.4: `hf --help`)."""


def hf_command(text: str) -> str:
    """`huggingface-cli download …` as `hf download …`, in lines that are no comment; switches that `hf` does not know go."""
    out: list[str] = []
    inside = False
    for line in text.split("\n"):
        if line.lstrip().startswith("#"):
            out.append(line)
            continue
        new = _OLD_HF.sub(lambda m: f"hf{m[1]}{_HF.get(m[2], m[2])}", line)
        mine = inside or new != line
        inside = mine and line.rstrip().endswith("\\")
        if mine:
            new = _OLD_SWITCHES.sub("", new)
            if new.strip() in ("", "\\") and line.strip() not in ("", "\\"):  # the line held nothing else
                if not inside and out:
                    out[-1] = out[-1].rstrip().removesuffix("\\").rstrip()
                continue
        out.append(new)
    return "\n".join(out)


def plain_characters(text: str) -> str:
    """Dashes, quotes and blanks of a text processor as the shell's own, in lines that are commands."""
    strange = {s.line for s in slips(text) if s.kind == "odd_character"}
    out = []
    for number, line in enumerate(text.split("\n"), 1):
        if number in strange:
            line = re.sub("(?<=\\s)(?:-?[\u2013\u2014\u2012\u2212\uff0d]{1,2}-?)(?=[A-Za-z]{2})", "--", line)
            line = re.sub("(?<=\\s)[\u2013\u2014\u2012\u2212\uff0d](?=[A-Za-z]\\b)", "-", line)
            line = re.sub("[\u201c\u201d]", '"', line)
            line = re.sub("[\u2018\u2019]", "'", line)
            line = re.sub("[\u00a0\u3000]", " ", line).replace("\u200b", "")
        out.append(line)
    return "\n".join(out)


BY_KIND = frozenset(("torch-trio",))
"""Changes that ask what kind of file it is."""
EDITS: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "dockerfile-copy-recursive": (("dockerfile",), without_recursive_copy),
    "dockerfile-apt-yes": (("dockerfile",), apt_with_yes),
    "dockerfile-apt-lists": (("dockerfile",), apt_lists_deleted),
    "dockerfile-run-joined": (("dockerfile",), run_joined),
    "compose-declare-names": (("compose",), names_declared),
    "compose-drop-entry-point": (("compose",), without_entry_point),
    "compose-service-address": (("compose",), service_addresses),
    "vllm-openai-server": (("command", "compose", "dockerfile"), openai_server),
    "shell-join-lines": (("command",), lines_joined),
    "shell-home": (("command",), tilde_as_home),
    "hf-command": (("command", "dockerfile"), hf_command),
    "shell-plain-characters": (("command",), plain_characters),
    "vllm-flags": (("command", "compose", "dockerfile"), str),
    "vllm-flag-spelling": (("command", "compose", "dockerfile"), str),
    "torch-trio": (("config", "command", "dockerfile"), torch_trio),
    "torch-cuda-build": (("config", "command", "dockerfile"), torch_cuda_build),
    "mount-model-cache": (("command", "compose"), cache_mounted),
    "one-worker-process": (("command", "compose", "dockerfile"), one_worker),
}
"""Edits by the name that recipes use in `edit = "…"`: the kinds of file they are for, and the change."""
