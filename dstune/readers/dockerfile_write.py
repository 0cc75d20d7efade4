"""Puts settings into Dockerfiles: the start command, variables, the base image. Everything else keeps its bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from dstune.catalog.vocabulary import terms
from dstune.model import Value
from dstune.readers import image as images
from dstune.readers.dockerfile import Step, argv_of, steps
from dstune.readers.given import given
from dstune.readers.launch import recognise
from dstune.readers.write import into_command, spoken, taken_out


def write(text: str, settings: Mapping[str, Value]) -> str:
    """What `dockerfile.write` does."""
    for key, value in settings.items():
        term = terms().get(key)
        family = key.partition(".")[0]
        if key == "dockerfile.base" and value is not None:
            text = _from(text, str(value))
        elif term is not None and term.spec.get("flag") and family != "docker":
            text = _flag(text, family, key, value)
        elif term is not None and term.spec.get("env"):
            text = _variable(
                text,
                term.spec["env"],
                None if value is None else spoken(term, int(value) if isinstance(value, bool) else value),
            )
    return text


def _from(text: str, base: str) -> str:
    last = [s for s in steps(text) if s.name == "FROM"][-1:]
    lines = text.splitlines(keepends=True)
    for step in last:
        lines[step.line - 1] = re.sub(r"^(\s*FROM\s+(?:--\S+\s+)*)\S+", lambda m: m[1] + base, lines[step.line - 1], flags=re.I)
    return "".join(lines)


def _flag(text: str, family: str, key: str, value: Value) -> str:
    """CMD first, then ENTRYPOINT: the one that holds the flag, else the one with the engine's other flags."""
    final = [s for s in steps(text) if s.name in ("CMD", "ENTRYPOINT")]
    candidates = [
        s for s in reversed(final) if any(True for _ in given(family, argv_of(s))) or recognise(argv_of(s))[0] == family
    ]
    holding = [s for s in candidates if any(g.term.name == key for g in given(family, argv_of(s)))]
    for step in (holding or candidates)[:1]:
        return _rewritten(text, step, family, lambda line: into_command(line, {key: value}))
    return text


def changed_command(text: str, family: str, change: Callable[[str], str]) -> str:
    """The Dockerfile after `change` of the shell line that each CMD and ENTRYPOINT of an engine stands for."""
    image = ""
    for at in range(len(steps(text))):
        step = steps(text)[at]
        if step.name == "FROM":
            parsed = images.parse(step.args.split()[0]) if step.args.split() else None
            image = parsed.engine if parsed is not None else ""
        if step.name not in ("CMD", "ENTRYPOINT") or not (argv := argv_of(step)):
            continue
        if recognise(argv)[0] == family or (argv[0].text.startswith("-") and (image == family or any(given(family, argv)))):
            text = _rewritten(text, step, family, change)
    return text


def _rewritten(text: str, step: Step, family: str, change: Callable[[str], str]) -> str:
    """The text with one CMD or ENTRYPOINT changed as a shell line."""
    lines = text.splitlines(keepends=True)
    block = "".join(lines[step.line - 1 : step.last])
    if step.args.startswith("["):
        import shlex

        argv = [w.text for w in argv_of(step)]
        own = recognise(argv_of(step))[0] == family and not argv[0].startswith("-")
        prefix = [] if own else _start(family)
        old = " ".join(map(shlex.quote, [*prefix, *argv]))
        line = change(old)
        if line == old:
            return text
        new = _items(block, argv, shlex.split(line)[len(prefix) :])
        return "".join([*lines[: step.line - 1], new, *lines[step.last :]])
    head = re.match(r"\s*\S+\s+", block)
    start = head.end() if head else 0
    return "".join([*lines[: step.line - 1], block[:start] + change(block[start:]), *lines[step.last :]])


_ITEM = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def _items(block: str, old: Sequence[str], new: Sequence[str]) -> str:
    """An instruction in exec form with other items: those that stay keep their bytes, new ones stand as their neighbours do."""
    import difflib

    spans = [m.span() for m in _ITEM.finditer(block)]
    if len(spans) != len(old):
        head = block[: block.index("[")]
        return head + json.dumps(list(new), ensure_ascii=False) + ("\n" if block.endswith("\n") else "")
    between = block[spans[-2][1] : spans[-1][0]] if len(spans) > 1 else ", "
    for tag, a, b, c, d in reversed(difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()):
        if tag == "equal":
            continue
        words = between.join(json.dumps(w, ensure_ascii=False) for w in new[c:d])
        if tag == "replace":
            block = block[: spans[a][0]] + words + block[spans[b - 1][1] :]
        elif tag == "insert":
            at = spans[a - 1][1] if a else spans[0][0]
            block = block[:at] + (between + words if a else words + between) + block[at:]
        else:
            start, end = (
                (spans[a][0], spans[b][0]) if b < len(spans) else (spans[a - 1][1] if a else spans[a][0], spans[b - 1][1])
            )
            block = block[:start] + block[end:]
    return block


def _start(family: str) -> list[str]:
    return {
        "vllm": ["vllm", "serve"],
        "sglang": ["sglang", "serve"],
        "llamacpp": ["llama-server"],
        "tgi": ["text-generation-launcher"],
    }.get(family, [family])


def _variable(text: str, name: str, value: str | None) -> str:
    found = re.search(rf"(?m)(^\s*ENV\s+(?:.*\s)?|^\s+){re.escape(name)}([= ])(\"[^\"\n]*\"|'[^'\n]*'|[^\s\\]*)", text)
    shown_ = f'"{value}"' if value is not None and re.search(r"\s", value) else value
    if found:
        if value is None:
            alone = re.sub(
                rf"(?m)^\s*ENV\s+{re.escape(name)}(?: [^\n=\\]*|=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\\]*))[ \t]*\n", "", text
            )
            if alone != text:
                return alone
            start = text.rindex(name, 0, found.start(3))
            rest = taken_out(text, start, found.end(3))
            return re.sub(r"(?m)^(\s*ENV)[ \t]*\\[ \t]*\n[ \t]*", r"\1 ", rest)
        return text[: found.start(3)] + str(shown_) + text[found.end(3) :]
    if value is None:
        return text
    last = [s for s in steps(text) if s.name == "FROM"][-1]
    lines = text.splitlines(keepends=True)
    return "".join([*lines[: last.last], f"ENV {name}={shown_}\n", *lines[last.last :]])
