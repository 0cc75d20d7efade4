"""What is known of a model by its id or path: reasoning, chat or base, sampling of its own, and whether the id exists."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dstune.model import parse_json

_REASONING = re.compile(
    r"deepseek[-_.]?r1|\br1[-_]distill|qwq|thinking|magistral|phi-4(?:-mini)?-reasoning|deepscaler|openthinker|\bs1\.1|light-r1|skywork-o1|marco-o1|exaone-deep",
    re.I,
)
_THINKS = re.compile(r"gpt-oss|glm-4\.[5-9]|minimax-m\d|seed-oss", re.I)
"""Models that write thoughts before they answer, and whose vendors do not advise against greedy decoding."""
_R1 = re.compile(r"deepseek[-_.]?r1(?!-0528)|r1[-_]distill", re.I)
_CHAT = re.compile(
    r"instruct|chat|(?:^|[-_])it(?:$|[-_.])|distill|vicuna|hermes|qwen3|qwq|smollm3|glm-?4|zephyr|alpaca|assistant|dolphin|openchat|tulu|sft|dpo|-r1|gpt-oss",
    re.I,
)
_BASE = re.compile(
    r"^(?:gpt2(?:-medium|-large|-xl)?|distilgpt2|opt-[\d.]+[bm]|pythia-[\d.]+[bm].*|gpt-neo.*|gpt-j-6b|bloom(?:-\w+)?|falcon-(?:7|40)b|phi-(?:1|1_5|2)"
    r"|Qwen(?:1\.5|2|2\.5)-[\d.]+B|Qwen3-[\d.]+B-Base|Qwen2\.5-(?:Math|Coder)-[\d.]+B|(?:Meta-)?Llama-3(?:\.[12])?-\d+B|Llama-2-\d+b(?:-hf)?|Mistral-7B-v0\.[13]"
    r"|gemma-(?:2-)?\d+b|gemma-3-\d+b-pt|Yi-(?:1\.5-)?\d+B|deepseek-llm-\d+b-base|SmolLM2?-[\d.]+[BM]|TinyLlama-1\.1B-(?:intermediate|step).*)$",
    re.I,
)
_LOCAL = re.compile(
    r"^(?:[./~]|[A-Za-z]:[\\/])|[\\]|^(?:models?|checkpoints?|weights|data|outputs?|snapshots|cache|ckpts?|pretrained|local)/",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Known:
    """Facts of a model's name; None where the name does not tell."""

    name: str
    reasoning: bool
    r1: bool
    chat: bool | None
    samples: bool | None
    misspelled: str = ""
    sure: bool = False


def tail(model: str) -> str:
    """The name without owner or folders, ModelScope's escapes undone."""
    parts = [p for p in re.split(r"[\\/]", model) if p]
    if "snapshots" in parts:  # a cache folder: models--owner--name/snapshots/<revision>
        named = next((p for p in parts if p.startswith("models--")), "")
        parts = [*named.split("--")] if named else parts
    return (parts[-1] if parts else "").replace("___", ".")


@cache
def known(model: str) -> Known:
    """What the name of a model tells, with the catalogue's help."""
    name = tail(model)
    row = _row(model, name)
    samples: bool | None = None
    chat: bool | None = True if _CHAT.search(name) else False if _BASE.match(name) else None
    if row is not None:
        if row.generation_status in ("sourced", "inferred") or row.generation.get("do_sample") is not None:
            samples = bool(row.generation.get("do_sample"))
        chat = chat if chat is not None else (row.chat or None)
    reasoning = bool(_REASONING.search(name)) or bool(row and row.reasoning)
    if reasoning:
        chat, samples = True, samples if samples is not None else True
    guess, sure = misspelled(model)
    if guess and guess != model:
        meant = known(guess)
        return Known(name, meant.reasoning, meant.r1, meant.chat, meant.samples, guess, sure)
    return Known(name, reasoning, bool(_R1.search(name)), chat, samples, guess, sure)


def writes_thoughts(model: str) -> bool:
    """Whether a model's answer begins with thoughts that count towards the token limit."""
    return known(model).reasoning or bool(_THINKS.search(tail(model)))


def _row(model: str, name: str) -> Any:
    from dstune.catalog import models
    from dstune.errors import DstuneError

    for text in (model if not is_local(model) else name, name):
        try:
            found = models.find(text)
        except (DstuneError, KeyError, ValueError):
            continue
        ours, theirs = re.sub(r"[^a-z0-9]", "", name.lower()), re.sub(r"[^a-z0-9]", "", found.short.lower())
        if theirs in ours or ours == theirs:
            return found
    return None


def is_local(model: str) -> bool:
    """Whether the text is a path rather than an id of the Hub."""
    return bool(_LOCAL.search(model)) or model.count("/") > 1


def known_at(model: str, beside: str) -> Known:
    """`known`, and where the name does not tell, what lies in a folder of that name (transformers looks for one first): the name it
    was made from, a chat template.

    `beside` is the folder of the program, from which a relative path may count.
    """
    what = known(model)
    folder = _folder(model, beside) if model and what.chat is None else None
    if folder is None:
        return what
    made_from = _json(os.path.join(folder, "config.json")).get("_name_or_path")
    if isinstance(made_from, str) and (named := known(made_from)).chat is not None:
        return replace(named, name=what.name, misspelled="", sure=False)
    files = ("chat_template.jinja", "chat_template.json")
    has = any(os.path.isfile(os.path.join(folder, f)) for f in files)
    has = has or bool(_json(os.path.join(folder, "tokenizer_config.json")).get("chat_template"))
    return replace(what, chat=True) if has else what


def _folder(model: str, beside: str) -> str | None:
    path = os.path.expanduser(model)
    return next((p for p in (os.path.join(beside, path), path) if os.path.isdir(p)), None)


def _json(path: str) -> dict[str, Any]:
    """An object of a model's JSON file; {} where there is none."""
    try:
        if os.path.getsize(path) > 16 << 20:
            return {}
        with open(path, encoding="utf-8") as f:
            tree = parse_json(f.read())
    except (OSError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


@cache
def _ids() -> dict[str, list[str]]:
    """Catalogue ids by folded short name."""
    from dstune.catalog import models

    found: dict[str, list[str]] = {}
    for row in models.rows():
        found.setdefault(row.short.casefold(), []).append(row.id)
    return found


@cache
def _families() -> tuple[dict[str, Any], ...]:
    from dstune.catalog import load

    return tuple(load("engines")["transformers"]["engine"]["families"])


def misspelled(model: str) -> tuple[str, bool]:
    """(the id that was meant, whether it is certain) for an id of the Hub that does not exist; ("", False) where nothing is wrong.

    Only clear slips: a name outside a closed family, a name one or two letters off with the same digits, a known name under an
    owner that is almost the right one, or without any owner.
    """
    if not model or is_local(model) or re.search(r"\s|[{}$<>]|___", model):
        return "", False
    owner, _, name = model.rpartition("/")
    for family in _families():
        if owner.casefold() == family["owner"].casefold() and name.casefold().startswith(family["prefix"].casefold()):
            if name.casefold() in (n.casefold() for n in family["names"]):
                return "", False
            near = difflib.get_close_matches(name, family["names"], 1, 0.3)
            return f"{family['owner']}/{near[0]}", True
    ids = _ids()
    if name.casefold() in ids:
        owners = [i.partition("/")[0] for i in ids[name.casefold()]]
        if owner.casefold() in (o.casefold() for o in owners):
            return "", False
        if not owner:
            return ids[name.casefold()][0], False
        near = difflib.get_close_matches(owner.casefold(), [o.casefold() for o in owners], 1, 0.75)
        right = next((o for o in owners if near and o.casefold() == near[0]), "")
        return (f"{right}/{name}", True) if right and not _real_owner(owner) else ("", False)
    for short, full in ids.items():
        if owner.casefold() not in {i.partition("/")[0].casefold() for i in full} and not (
            owner and difflib.SequenceMatcher(None, owner.casefold(), full[0].partition("/")[0].casefold()).ratio() > 0.8
        ):
            continue
        if re.findall(r"\d+", short) == re.findall(r"\d+", name) and _slip(short, name.casefold()):
            return full[0], True
    return "", False


def _real_owner(owner: str) -> bool:
    return owner.casefold() in {i.partition("/")[0].casefold() for ids in _ids().values() for i in ids}


def _slip(right: str, written: str) -> bool:
    """Whether two names differ by one or two letters of one word (a word that is missing or added is another model)."""
    a, b = re.split(r"[-_.]", right), re.split(r"[-_.]", written)
    if len(a) != len(b):
        return right.replace("-", "").replace("_", "").replace(".", "") == written.replace("-", "").replace("_", "").replace(
            ".", ""
        )
    wrong = [(x, y) for x, y in zip(a, b, strict=True) if x != y]
    return (len(wrong) == 1 and len(wrong[0][0]) > 3 and difflib.SequenceMatcher(None, *wrong[0]).ratio() > 0.8) or (
        not wrong and right != written
    )
