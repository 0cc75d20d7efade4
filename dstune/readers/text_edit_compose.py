"""Changes of compose files that settings cannot express: declared names, commands behind an entry point, addresses of other services."""

from __future__ import annotations

import itertools
import re
from typing import Any

from dstune.model import Document, Fact
from dstune.readers import compose
from dstune.readers.compose import as_list, environment_of, launch_of, plain
from dstune.readers.compose_write import changed_services, changed_tree, folded, insert_key
from dstune.readers.containers import Container, accumulate, derived, environment
from dstune.readers.given import given

_PROGRAM = re.compile(
    r"^(?:vllm\s+serve|python3?\s+-m\s+vllm\.entrypoints\.\S+|text-generation-launcher|llama-server|ollama\s+serve)\s*"
)
_PORTS = {"vllm": 8000, "sglang": 30000, "llamacpp": 8080, "tgi": 80, "ollama": 11434, "lmdeploy": 23333, "hfserve": 8000}
"""Where each server listens unless told (its recipe in recipes/engines; tgi, ollama and lmdeploy: their documentation)."""
_LOCAL = re.compile(r"(?P<head>https?://)(?:localhost|127\.0\.0\.1)(?::(?P<port>\d+))?(?=[/\s]|$)")


def names_declared(text: str) -> str:
    """Networks and named volumes that services use, declared at the top level."""
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
    return changed_services(text, _without_program)


def _without_program(service: Any) -> bool:
    it = Container(
        {"image": str(service.get("image") or "")}, environment_of(service.get("environment")), launch_of(service, [])
    )
    if "repeats_entrypoint" not in dict(derived(it)):
        return False
    command = service["command"]
    flag = "--model" if it.launch is not None and it.launch.engine == "vllm" else ""
    if isinstance(command, list):
        words = [str(c) for c in command]
        rest = words[len(words) - len(it.launch.args) :] if it.launch is not None else words
        del command[: len(words) - len(rest)]
        if flag and rest and not rest[0].startswith("-"):
            command.insert(0, flag)
        return True
    old = str(command)
    new = _PROGRAM.sub("", old)
    new = f"{flag} {new}" if flag and not new.startswith("-") else new
    if hasattr(command, "fold_pos"):
        tail = old[len(old.rstrip("\n")) :]
        service["command"] = folded(command, old.rstrip("\n"), new.rstrip("\n"), tail)
    else:
        service["command"] = type(command)(new)
    return True


def service_addresses(text: str) -> str:
    """`localhost` in a service's variables → the name of the service of this file that listens there; others are left."""

    def change(tree: Any) -> bool:
        services = tree.get("services") if isinstance(tree, dict) else None
        if not isinstance(services, dict):
            return False
        done = [_addressed(str(n), s, services) for n, s in services.items() if isinstance(s, dict)]
        return any(done)

    return changed_tree(text, change)


def _addressed(name: str, service: Any, services: Any) -> bool:
    if str(service.get("network_mode") or "") in ("host",) or str(service.get("network_mode") or "").startswith("service:"):
        return False
    it = Container({}, environment_of(service.get("environment")), launch_of(service, []))
    if "localhost_url" not in dict(derived(it)):
        return False
    env, changed = service.get("environment"), False
    for key in list(env) if isinstance(env, dict) else range(len(env)):
        old = env[key]
        new = _LOCAL.sub(lambda m: _elsewhere(m, name, services), str(old))
        if new != str(old):
            env[key] = type(old)(new)
            changed = True
    return changed


def _elsewhere(found: re.Match[str], own: str, services: Any) -> str:
    """The address with the one other service that listens on its port."""
    port = int(found["port"] or 80)
    hits = [
        (str(name), inner)
        for name, service in services.items()
        if name != own and isinstance(service, dict)
        for outer, inner in _listening(service)
        if port in (outer, inner)
    ]
    if len({name for name, _ in hits}) != 1:
        return found[0]
    return f"{found['head']}{hits[0][0]}:{hits[0][1]}"


def _listening(service: Any) -> list[tuple[int, int]]:
    """(port on the host, port in the container) of a service: what it publishes, else where its server listens."""
    found: list[tuple[int, int]] = []
    for entry in service.get("ports") or ():
        if isinstance(entry, dict):
            numbers = [str(entry.get("published") or ""), str(entry.get("target") or "")]
        else:
            numbers = str(entry).partition("/")[0].split(":")[-2:]
        if all(n.isdigit() for n in numbers) and numbers:
            found.append((int(numbers[0]), int(numbers[-1])))
    launch = launch_of(service, [])
    if launch is not None and launch.engine in _PORTS and not found:
        said = next((g.value for g in given(launch.engine, launch.args) if g.term.name.endswith(".port")), None)
        port = int(said) if isinstance(said, int | float) else _PORTS[launch.engine]
        found.append((port, port))
    return found


_HOST = (
    ("modelscope", "~/.cache/modelscope"),
    ("ollama", "~/.ollama"),
    ("huggingface", "~/.cache/huggingface"),
    ("hub", "~/.cache/huggingface"),
)
"""Folder in the container → the same cache on the host, by the tool that fills it."""


def cache_mounted(text: str) -> str:
    """The host's model cache in the container, where a server would download into the container itself."""
    if re.search(r"(?m)^services:", text):
        return changed_services(text, _mounted)
    from dstune.readers.launch import launches
    from dstune.readers.write import gap

    for launch in reversed(list(launches(text))):
        if launch.image is None or not launch.container or not launch.image.end:
            continue
        settings, env = _docker_of(launch)
        facts = dict(derived(Container(settings, env, launch)))
        if facts.get("cache_mounted") is False and (mount := _mount(str(facts["cache_folder"]))):
            at = launch.image.start
            text = f"{text[:at]}-v {mount}{gap(text, at)}{text[at:]}"
    return text


def _docker_of(launch: Any) -> tuple[dict[str, Any], dict[str, str]]:
    settings: dict[str, Any] = {"image": launch.image.text}
    for item in given("docker", launch.docker):
        if item.value is not None:
            accumulate(settings, item.term.name.partition(".")[2], item.value)
    words = [w.text for w in launch.docker]
    pairs = [b for a, b in itertools.pairwise(words) if a in ("-e", "--env")]
    return settings, environment(pairs)


def _mount(folder: str) -> str:
    host = next((h for word, h in _HOST if word in folder), "")
    return f"{host}:{folder}" if host else ""


def _mounted(service: Any) -> bool:
    settings: dict[str, Any] = {"image": str(service.get("image") or "")}
    volumes = service.get("volumes")
    if volumes is not None:
        settings["volumes"] = as_list(plain(volumes))
    if service.get("user"):
        settings["user"] = str(service["user"])
    facts = dict(derived(Container(settings, environment_of(service.get("environment")), launch_of(service, []))))
    mount = _mount(str(facts.get("cache_folder") or ""))
    if facts.get("cache_mounted") is not False or not mount or not (volumes is None or isinstance(volumes, list)):
        return False
    if volumes is None:
        insert_key(service, "volumes", [mount])
    else:
        volumes.insert(0, mount)  # behind the last item stands what parts the list from the next key
    return True
