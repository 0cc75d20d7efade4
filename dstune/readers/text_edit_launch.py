"""Changes of the commands that start a server: flags that its version no longer takes, worker processes of a web server."""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dstune.catalog import flags
from dstune.readers import image as images
from dstune.readers.launch import launches
from dstune.readers.write import quoted, taken_out

_POOLING = {"embed": "embed", "embedding": "embed", "classify": "classify", "score": "classify", "reward": "reward"}
_SPECULATIVE = {
    "speculative-model": "model", "num-speculative-tokens": "num_speculative_tokens", "speculative-max-model-len": "max_model_len",
    "speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size", "ngram-prompt-lookup-max": "prompt_lookup_max",
    "ngram-prompt-lookup-min": "prompt_lookup_min", "speculative-disable-by-batch-size": "disable_by_batch_size",
    "speculative-model-quantization": "quantization",
}  # fmt: skip
"""Flags of 0.6 → keys of `--speculative-config` (vllm/config/speculative.py)."""
_GUIDED = {
    "guided-decoding-disable-fallback": "disable_fallback", "guided-decoding-disable-any-whitespace": "disable_any_whitespace",
    "guided-decoding-disable-additional-properties": "disable_additional_properties",
}  # fmt: skip
"""Switches of 0.8 → keys of `--structured-outputs-config` (vllm/config/structured_outputs.py)."""


@dataclass(frozen=True, slots=True)
class Change:
    """The words from `first` up to `last` become `new` (raw words; empty = they go)."""

    first: int
    last: int
    new: tuple[str, ...] = ()


Judge = Callable[[Sequence[str], object | None], list[Change]]


def changes(words: Sequence[str], version: object | None = None) -> list[Change]:
    """What makes the arguments of `vllm serve` acceptable to a version (the newest known where it is not known).

    Flags without a known successor, and successors that the version does not have, are left: a person has to decide.
    """
    found: list[Change] = []
    problems = [p for p in flags.check(words, version) if p.fault == "removed"]
    names = [p.flag.lstrip("-").removeprefix("no-") for p in problems]
    judge = next(v for v in reversed(flags.around(version) if version is not None else list(flags.tables())) if v)
    backend = {b for a, b in itertools.pairwise(words) if flags.spelled(a)[0] == "--guided-decoding-backend"}
    draft = _speculative(words, [p.word for p in problems], names)
    for problem, name in zip(problems, names, strict=True):
        first, last, value = _extent(words, problem.word, name)
        new = draft.pop(problem.word, ()) if name in _SPECULATIVE else _instead(name, value)
        if name in _GUIDED and not backend & {"xgrammar", "guidance"}:
            new = None  # the others refuse these switches
        if new is None or any(flags.check(new, judge)):
            continue
        found.append(Change(first, last, tuple(new)))
    return found


def corrected(words: Sequence[str], version: object | None = None) -> list[Change]:
    """Misspelt flags of `vllm serve` in their right spelling, where one known flag is very near."""
    found: list[Change] = []
    for problem in flags.check(words, version):
        near = difflib.SequenceMatcher(None, problem.flag, problem.instead).ratio()
        if problem.fault == "unknown" and problem.instead and near >= 0.85:
            _, mark, value = words[problem.word].partition("=")
            found.append(Change(problem.word, problem.word + 1, (f"{problem.instead}{mark}{value}",)))
    return found


def _extent(words: Sequence[str], at: int, name: str) -> tuple[int, int, list[str]]:
    """(first word, behind the last word, values) of a flag, by the newest version that had it."""
    value = flags.spelled(words[at])[1]
    if value is not None:
        return at, at + 1, [value]
    row: dict[str, Any] = next((t[name] for t in reversed(flags.tables().values()) if name in t), {})
    if row.get("type") in ("none", "onoff"):
        return at, at + 1, []
    last = at + 1
    many = row.get("nargs") in ("+", "*")
    while last < len(words) and (many or last == at + 1) and not re.match(r"--?[A-Za-z]", words[last]):
        last += 1
    return at, last, list(words[at + 1 : last])


def _instead(name: str, value: list[str]) -> list[str] | None:
    """The words that stand for a flag now; [] where it is simply dropped; None where that is not known or needs a person."""
    one = value[0] if len(value) == 1 else ""
    if name == "guided-decoding-backend":
        if one == "auto":
            return []
        return ["--structured-outputs-config.backend", one] if re.fullmatch(r"[\w-]+", one) else None
    if name in _GUIDED:
        return [f"--structured-outputs-config.{_GUIDED[name]}", "true"] if not value else None
    if name == "task":
        if one in ("auto", "generate", "transcription"):
            return []
        return ["--runner", "pooling", "--convert", _POOLING[one]] if one in _POOLING else None
    if name == "cuda-graph-sizes":  # one number was the largest size, several were the sizes
        return ["--max-cudagraph-capture-size", one] if one else ["--cudagraph-capture-sizes", *value]
    if name == "override-pooler-config":
        return ["--pooler-config", one]
    instead = flags.replaced_by(name)
    if instead is None or instead.endswith(("-config", "-overrides")) or "/" in instead:
        return None
    return instead.split() + (value if instead and " " not in instead and value else [])


def _speculative(words: Sequence[str], places: list[int], names: list[str]) -> dict[int, list[str] | None]:
    """The flags of speculative decoding as one `--speculative-config`, at the place of the first; the others go."""
    config: dict[str, Any] = {}
    mine = [(p, n) for p, n in zip(places, names, strict=True) if n in _SPECULATIVE]
    for place, name in mine:
        value = _extent(words, place, name)[2]
        if len(value) != 1:
            return {p: None for p, _ in mine}
        config[_SPECULATIVE[name]] = int(value[0]) if value[0].isdigit() else value[0]
    if config.get("model") == "[ngram]":
        config = {"method": "ngram", **{k: v for k, v in config.items() if k != "model"}}
    if not mine or not ({"model", "method"} & set(config)) or any("$" in str(v) for v in config.values()):
        return {p: None for p, _ in mine}
    return {p: [] if n else ["--speculative-config", json.dumps(config)] for n, (p, _) in enumerate(mine)}


def into_shell(text: str, version: object | None = None, judge: Judge = changes) -> str:
    """The shell text with the flags of its vLLM commands as their version takes them: the image's tag, else the one given."""
    for _ in range(40):
        after = _once(text, version, judge)
        if after == text:
            return text
        text = after
    return text


def _once(text: str, version: object | None, judge: Judge) -> str:
    """The text after all changes of one command: they belong together, as several flags may become one."""
    for launch in launches(text):
        if launch.engine != "vllm" or launch.program not in ("vllm serve", "vllm openai", "vllm"):
            continue
        tag = images.parse(launch.image.text) if launch.image is not None else None
        own = (tag.version if tag is not None else "") or version or None
        after = text
        for change in sorted(judge([w.text for w in launch.args], own), key=lambda c: c.first, reverse=True):
            start, end = launch.args[change.first].start, launch.args[change.last - 1].end
            if not end or flags.spelled(launch.args[change.first].text)[0].lstrip("-")[:3] not in text[start:end]:
                after = text
                break
            if change.new:
                after = after[:start] + " ".join([change.new[0], *map(quoted, change.new[1:])]) + after[end:]
            else:
                after = taken_out(after, start, end)
        if after != text:
            return after
    return text


def vllm_flags(kind: str, text: str, versions: Mapping[str, str], judge: Judge = changes) -> str:
    """Flags that the version of vLLM lost, dropped or written as it takes them now; in scripts, compose files and Dockerfiles."""
    version = versions.get("vllm")
    if kind == "command":
        return into_shell(text, version, judge)
    if kind == "compose":
        from dstune.readers.compose_write import changed_services, through_shell

        def change(service: Any) -> bool:
            tag = images.parse(str(service.get("image") or ""))
            own = (tag.version if tag is not None else "") or version
            return through_shell(service, "vllm", lambda line: into_shell(line, own, judge))

        return changed_services(text, change, "vllm")
    from dstune.readers.dockerfile_write import changed_command

    return changed_command(text, "vllm", lambda line: into_shell(line, version, judge))


_SERVERS = r"(?:uvicorn|gunicorn|hypercorn|fastapi|granian|sanic)"
_WORKERS = re.compile(
    rf"(?P<head>\b{_SERVERS}\b(?:[^\n|;&#]|\\\n|`\n|\n\s*-\s){{0,400}}?(?:--workers|(?<=[\s\"'\[,])-w)[\"']?(?:[ =,\t]|\n\s*-\s)*[\"']?)(?P<n>\d+)(?=[\s\"',\]\\]|$)"
)
_VARIABLES = re.compile(r"(?P<head>\b(?:WEB_CONCURRENCY|GUNICORN_WORKERS|UVICORN_WORKERS)[ \t]*[:=][ \t]*[\"']?)(?P<n>\d+)\b")


def one_worker(text: str) -> str:
    """The worker processes of a web server in a command or its variable: 1."""
    return _VARIABLES.sub(_one, _WORKERS.sub(_one, text))


def _one(found: re.Match[str]) -> str:
    before = found.string[found.string.rfind("\n", 0, found.start("n")) + 1 : found.start("n")]
    return found[0] if int(found["n"]) < 2 or before.lstrip().startswith("#") else f"{found['head']}1"
