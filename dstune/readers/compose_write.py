"""Puts settings into a compose file through ruamel.yaml's round trip, which keeps comments, order and quotes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from typing import Any

from dstune.catalog.vocabulary import terms
from dstune.model import Value
from dstune.readers.compose import environment_of, launch_of, plain, reserved
from dstune.readers.containers import Container, derived
from dstune.readers.launch import recognise
from dstune.readers.shell import Word
from dstune.readers.write import into_command, spoken


def write(text: str, settings: Mapping[str, Value]) -> str:
    """What `compose.write` does."""

    def change(tree: Any) -> bool:
        services = tree.get("services") if isinstance(tree, dict) else None
        changed = False
        for key, value in settings.items() if isinstance(services, dict) else ():
            family = key.partition(".")[0]
            service = _chosen(services, family)
            if service is None or key not in terms():
                continue
            if family == "docker":
                changed = _put_docker(service, key, value) or changed
            elif terms()[key].spec.get("flag"):
                changed = _put_flag(service, family, key, value) or changed
            elif variable := terms()[key].spec.get("env"):
                changed = _put_variable(service, str(variable), value) or changed
        return changed

    return changed_tree(text, change)


def changed_services(text: str, change: Callable[[Any], bool], family: str = "") -> str:
    """The file after `change` of every service (of an engine, where one is named); it says whether it changed anything."""

    def each(tree: Any) -> bool:
        services = tree.get("services") if isinstance(tree, dict) else None
        mine = [s for s in services.values() if isinstance(s, dict)] if isinstance(services, dict) else []
        if family:
            mine = [s for s in mine if (launch := launch_of(s, [])) is not None and launch.engine == family]
        done = [change(s) for s in mine]
        return any(done)

    return changed_tree(text, each)


def changed_tree(text: str, change: Callable[[Any], bool]) -> str:
    """The file after `change` of its tree. Lines that the change does not touch keep their bytes, whatever style they have."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(**indents(text))
    tree = yaml.load(text)
    plain_, out = io.StringIO(), io.StringIO()
    yaml.dump(tree, plain_)
    if not change(tree):
        return text
    yaml.dump(tree, out)
    return _relined(text, plain_.getvalue(), out.getvalue())


def _relined(text: str, before: str, after: str) -> str:
    """The text with the lines exchanged that differ between two dumps; the new dump where the lines of text and dump do not pair up."""
    import difflib

    own, old, new = (t.splitlines(keepends=True) for t in (text, before, after))
    if before == text or len(own) != len(old):
        return after
    out: list[str] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        out += own[a:b] if tag == "equal" else new[c:d]
    return "".join(out)


def indents(text: str) -> dict[str, int]:
    """How the file indents: mappings, and lists under their key."""
    mapping = re.search(r"(?m)^services:\s*(?:#.*)?\n(?:\s*(?:#.*)?\n)*( +)\S", text)
    step = len(mapping[1]) if mapping else 2
    nested = re.search(r"(?m)^( *)[\w.-]+:[ \t]*(?:#.*)?\n( *)- ", text)
    offset = max(len(nested[2]) - len(nested[1]), 0) if nested else step
    return {"mapping": step, "sequence": offset + 2, "offset": offset}


def _chosen(services: Any, family: str) -> Any:
    candidates = [s for s in services.values() if isinstance(s, dict)]
    for service in candidates:
        launch = launch_of(service, [])
        if family not in ("docker", "env") and launch is not None and launch.engine == family:
            return service
    if family in ("docker", "env"):
        for service in candidates:
            found = dict(
                derived(
                    Container(
                        {"image": str(service.get("image") or "")},
                        environment_of(service.get("environment")),
                        launch_of(service, []),
                    )
                )
            )
            if found.get("needs_gpu"):
                return service
        return candidates[0] if candidates else None
    return None


def _put_docker(service: Any, key: str, value: Value) -> bool:
    term = terms()[key]
    name = term.spec["yaml"]
    if key == "docker.gpus" and value is not None:
        if reserved(plain(service.get("deploy")) or {}) or "gpus" in service:
            return False
        count = int(str(value)) if str(value).isdigit() else "all"
        insert_key(
            service,
            "deploy",
            {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": count, "capabilities": ["gpu"]}]}}},
        )
        return True
    if value is None:
        return service.pop(name, None) is not None
    shown_ = spoken(term, value) if term.spec.get("size") else value
    if name in service:
        service[name] = shown_
    else:
        insert_key(service, name, shown_)
    return True


def insert_key(service: Any, key: str, value: Any) -> None:
    """A new key behind `command` or `image`, so that the blank line at the service's end stays at its end."""
    keys = list(service)
    at = max((keys.index(k) + 1 for k in ("image", "build", "command") if k in keys), default=0)
    service.insert(min(at, max(len(keys) - 1, 0)), key, value)


def _put_variable(service: Any, name: str, value: Value) -> bool:
    env = service.get("environment")
    shown_ = None if value is None else str(int(value) if isinstance(value, bool) else value)
    if isinstance(env, list):
        at = next((i for i, e in enumerate(env) if str(e).partition("=")[0] == name), None)
        if value is None:
            if at is not None:
                del env[at]
            return at is not None
        if at is None:
            env.append(f"{name}={shown_}")
        else:
            env[at] = f"{name}={shown_}"
        return True
    if value is None:
        return isinstance(env, dict) and env.pop(name, None) is not None
    if env is None:
        insert_key(service, "environment", {name: shown_})
    else:
        env[name] = shown_
    return True


def _put_flag(service: Any, family: str, key: str, value: Value) -> bool:
    """A flag in `command`."""
    return through_shell(service, family, lambda line: into_command(line, {key: value}))


def through_shell(service: Any, family: str, change: Callable[[str], str]) -> bool:
    """Changes `command` (a list or a text) on a shell line that stands for it, so that one writer knows how flags are changed."""
    command = service.get("command")
    if isinstance(command, list):
        import shlex

        old = [str(c) for c in command]
        prefix = "" if old and not old[0].startswith("-") and recognise([Word(o, 0, 0, 1) for o in old])[0] else _prefix(family)
        line = prefix + " ".join(map(shlex.quote, old))
        new = shlex.split(change(line))[len(shlex.split(prefix)) :]
        return _list_edit(command, old, new)
    text = str(command or "")
    stripped = text.rstrip("\n")
    prefix = "" if recognise([Word(w, 0, 0, 1) for w in stripped.split()])[0] else _prefix(family)
    new_text = change(prefix + stripped)[len(prefix) :]
    if new_text == stripped:
        return False
    if command is not None and type(command) is not str and hasattr(command, "fold_pos"):
        service["command"] = folded(command, stripped, new_text, text[len(stripped) :])
    else:
        service["command"] = (
            type(command)(new_text + text[len(stripped) :]) if command is not None and isinstance(command, str) else new_text
        )
    return True


def folded(command: Any, old: str, new: str, tail: str) -> Any:
    """The new text, folded before the words that began a line in the old one."""
    import difflib

    from ruamel.yaml.scalarstring import FoldedScalarString

    before = [m.start() for m in re.finditer(r"\S+", old)]
    after = [m.start() for m in re.finditer(r"\S+", new)]
    text = FoldedScalarString(new + tail)
    text.fold_pos = []
    matcher = difflib.SequenceMatcher(None, old.split(), new.split(), autojunk=False)
    for a, b, size in matcher.get_matching_blocks():
        for n in range(size):
            if before[a + n] - 1 in command.fold_pos:
                text.fold_pos.append(after[b + n] - 1)
    return text


def _prefix(family: str) -> str:
    return {
        "vllm": "vllm serve ",
        "sglang": "sglang serve ",
        "llamacpp": "llama-server ",
        "tgi": "text-generation-launcher ",
    }.get(family, f"{family} ")


def _list_edit(command: Any, old: list[str], new: list[str]) -> bool:
    """Makes the list `new` with the fewest changes, so that comments on the other items stay."""
    import difflib

    if old == new:
        return False
    for tag, a, b, c, d in reversed(difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()):
        if tag == "equal":
            continue
        for at in range(b - 1, a - 1, -1):
            if at - a < d - c:
                continue
            del command[at]
        for offset, value in enumerate(new[c:d]):
            if a + offset < b:
                command[a + offset] = value
            else:
                command.insert(a + offset, value)
    return True
