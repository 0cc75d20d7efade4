"""Compose files: each service's GPU request, memory, mounts, ports and command. `write` changes services with comments kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dstune.catalog.vocabulary import normalise, terms
from dstune.lang import say
from dstune.model import Document, Fact, Gap, Value
from dstune.readers.command import derived_facts, env_facts
from dstune.readers.containers import MODEL_SERVERS, Container, derived, environment, request
from dstune.readers.given import docker_size, shown
from dstune.readers.given import facts as launch_facts
from dstune.readers.launch import Launch, launches, recognise
from dstune.readers.shell import Word, commands

_KEYS = {t.spec["yaml"]: n.partition(".")[2] for n, t in terms().items() if n.startswith("docker.") and t.spec.get("yaml")}
_STANDS = {"repeats_entrypoint": "command", "gpu_count": "deploy", "published_port": "ports", "listens_port": "command"}
"""Key of a service under which a derived fact stands."""
_LISTS = ("publish", "volumes", "devices")


def read(document: Document) -> Iterator[Fact | Gap]:
    """Facts of every service, numbered `docker`, `docker1`…; a file that is no YAML gives a fact with the line and a Gap."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    from dstune.readers.yaml_text import UnboundedError, load

    lines = document.text.splitlines()
    try:
        tree = next(iter(load(_rendered(document.text))), None)
    except UnboundedError as error:
        yield Gap("docker", "*", say(f"{document.path} cannot be parsed: {error}", f"{document.path} 无法解析：{error}"))
        return
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None) if isinstance(error, MarkedYAMLError) else None
        line = mark.line + 1 if mark is not None else None
        reason = str(getattr(error, "problem", "") or error).strip().splitlines()[0]
        yield Fact("compose", "invalid", reason, document.path, line, shown(lines, line))
        yield Gap(
            "docker",
            "*",
            say(f"{document.path} is no valid YAML: {reason}", f"{document.path} 不是合法的 YAML：{reason}"),
            "docker compose config",
        )
        return
    services = tree.get("services") if isinstance(tree, dict) else None
    if not isinstance(services, dict):
        yield Gap("docker", "*", say(f"no services in {document.path}", f"{document.path} 中没有 services"))
        return
    yield from _undeclared(tree, services, document.path, lines)
    yield from _order(services, document.path, lines)
    for number, (name, service) in enumerate(services.items()):
        if isinstance(service, dict):
            yield from _service(str(name), service, services, document.path, lines, f"docker{number or ''}")


def _rendered(text: str) -> str:
    """Templates of Jinja and Helm blanked, tabs left for the parser to complain about."""
    return re.sub(r"\{\{[^}\n]*\}\}", lambda m: "x" * len(m[0]), text)


def line_of(node: Any, key: Any) -> int | None:
    """The line of a key of a mapping or an item of a list."""
    try:
        marks: Any = getattr(node, "lc", None)
        place = marks.key(key) if isinstance(node, dict) else marks.item(key)
        return int(place[0]) + 1
    except (AttributeError, KeyError, TypeError, IndexError):
        return None


def _undeclared(tree: Any, services: Any, source: str, lines: list[str]) -> Iterator[Fact]:
    declared_networks = set(tree.get("networks") or {}) | {"default", "host", "none", "bridge"}
    declared_volumes = set(tree.get("volumes") or {})
    for service in services.values():
        if not isinstance(service, dict):
            continue
        networks = service.get("networks")
        for network in networks or ():
            if str(network) not in declared_networks and "$" not in str(network):
                line = line_of(service, "networks")
                line = (
                    line_of(networks, list(networks).index(network))
                    if isinstance(networks, list)
                    else line_of(networks, network)
                ) or line
                yield Fact("compose", "undeclared_network", str(network), source, line, shown(lines, line))
        volumes = service.get("volumes")
        for at, volume in enumerate(volumes if isinstance(volumes, list) else ()):
            name = (
                volume.get("source", "")
                if isinstance(volume, dict) and volume.get("type", "volume") == "volume"
                else str(volume).partition(":")[0]
                if ":" in str(volume)
                else ""
            )
            if re.fullmatch(r"[A-Za-z0-9][\w.-]+", str(name)) and name not in declared_volumes:
                line = line_of(volumes, at)
                yield Fact("compose", "undeclared_volume", str(name), source, line, shown(lines, line))


def _order(services: Any, source: str, lines: list[str]) -> Iterator[Fact]:
    """Services that `up` leaves out, and model servers whose start, not health, others wait for."""
    known = {name: service for name, service in services.items() if isinstance(service, dict)}
    if optional := [str(name) for name, service in known.items() if service.get("profiles")]:
        line = line_of(known[optional[0]], "profiles")
        yield Fact("compose", "optional_services", optional, source, line, shown(lines, line))
    early: dict[str, int | None] = {}
    for service in known.values():
        waits = service.get("depends_on")
        for name in waits if isinstance(waits, (dict, list)) else ():
            how = waits[name] if isinstance(waits, dict) else None
            condition = how.get("condition", "") if isinstance(how, dict) else ""
            launch = launch_of(known[name], lines) if name in known else None
            if condition in ("", "service_started") and launch is not None and launch.engine in MODEL_SERVERS:
                early.setdefault(str(name), line_of(service, "depends_on"))
    if early:
        line = next(iter(early.values()))
        yield Fact("compose", "started_only", list(early), source, line, shown(lines, line))


def _service(name: str, service: Any, services: Any, source: str, lines: list[str], subject: str) -> Iterator[Fact]:
    start = line_of(services, name)
    settings: dict[str, Value] = {}
    where: dict[str, int | None] = {}
    for key, own in _KEYS.items():
        if key not in service or service[key] is None or own in ("command", "entrypoint"):
            continue
        value = plain(service[key])
        term = terms()[f"docker.{own}"]
        typed = (
            docker_size(str(value))
            if term.spec.get("size")
            else normalise(f"docker.{own}", as_list(value) if own in _LISTS else value)
        )
        if typed is not None:
            settings[own], where[own] = typed, line_of(service, key)
    env = environment_of(service.get("environment"))
    deploy = plain(service.get("deploy")) or {}
    limits = ((deploy.get("resources") or {}) if isinstance(deploy, dict) else {}).get("limits") or {}
    if "memory_mib" not in settings and isinstance(limits, dict) and limits.get("memory"):
        settings["memory_mib"] = docker_size(str(limits["memory"]))
        where["memory_mib"] = line_of(service, "deploy")
    launch = launch_of(service, lines)
    it = Container(settings, env, launch, reserved(deploy), _reserved_cards(deploy))
    if _extended(service):
        it.gpu_request = it.gpu_request or request(it)
    for own, value in settings.items():
        line = where[own] or start
        yield Fact(subject, own, value, source, line, shown(lines, line))
    yield Fact(subject, "service", name, source, start, shown(lines, start))
    line = where.get("image") or start
    for own, value in derived(it):
        if own in ("gpu_requested", "gpu_request") and not it.gpu_request and _extended(service):
            continue
        at = line_of(service, _STANDS[own]) if own in _STANDS else line
        yield from derived_facts(subject, own, value, source, at or line, lines)
    if problem := _wrong_reservation(deploy):
        line = line_of(service, "deploy") or start
        yield Fact(subject, "gpu_reservation_fault", problem, source, line, shown(lines, line))
    if "healthcheck" in service:
        yield Fact(
            subject, "healthcheck", True, source, line_of(service, "healthcheck"), shown(lines, line_of(service, "healthcheck"))
        )
    yield from env_facts(env, source, line_of(service, "environment") or start, lines)
    if launch is not None and launch.engine:
        engine = (
            launch.engine + subject.removeprefix("docker")
            if subject != "docker" and _seen_before(launch.engine, services, name)
            else launch.engine
        )
        yield from launch_facts(launch, source, lines, engine)


def _seen_before(engine: str, services: Any, name: str) -> bool:
    for other, service in services.items():
        if other == name:
            return False
        if isinstance(service, dict) and (launch := launch_of(service, [])) is not None and launch.engine == engine:
            return True
    return False


def _extended(service: Any) -> bool:
    return "extends" in service


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value


def as_list(value: Any) -> list[str]:
    """A list of a service's entries in their short form."""
    items = value if isinstance(value, list) else [value]
    return [_volume(i) if isinstance(i, dict) else str(i) for i in items]


def _volume(item: dict[str, Any]) -> str:
    if "published" in item:
        return f"{item.get('published')}:{item.get('target')}"
    return f"{item.get('source', '')}:{item.get('target', '')}" if "target" in item else str(item)


def environment_of(value: Any) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(k): "" if v is None else str(v) for k, v in value.items()}
    return environment([str(v) for v in value]) if isinstance(value, list) else {}


def _devices(deploy: Any) -> list[dict[str, Any]]:
    try:
        devices = deploy["resources"]["reservations"]["devices"]
    except (KeyError, TypeError):
        return []
    return [d for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []


def reserved(deploy: Any) -> str:
    """The GPU request of `deploy.resources.reservations` ("" = none). Without `capabilities: [gpu]` compose refuses the entry."""
    for device in _devices(deploy):
        driver = str(device.get("driver", ""))
        ids = " ".join(map(str, device.get("device_ids") or ()))
        if driver == "cdi" or "nvidia.com/gpu" in ids:
            return "cdi"
        if driver in ("nvidia", "") or "gpu" in str(device.get("capabilities")):
            return "deploy"
        return "other vendor"
    generic = (
        ((deploy.get("resources") or {}).get("reservations") or {}).get("generic_resources")
        if isinstance(deploy, dict)
        else None
    )
    return "generic resources" if generic else ""


def _reserved_cards(deploy: Any) -> int | None:
    """Cards that the reservation names, by number or by id; None for all of them or where there is none."""
    cards = 0
    for device in _devices(deploy):
        ids, count = device.get("device_ids"), device.get("count")
        if isinstance(ids, list) and ids:
            cards += len(ids)
        elif str(count).isdecimal():
            cards += int(str(count))
        else:
            return None
    return cards or None


def _wrong_reservation(deploy: Any) -> str:
    for device in _devices(deploy):
        capabilities = device.get("capabilities")
        if not capabilities:
            return "capabilities"
        if not isinstance(capabilities, list):
            return "capabilities is no list"
        if "count" in device and "device_ids" in device:
            return "count and device_ids"
    return ""


def launch_of(service: Any, lines: list[str]) -> Launch | None:
    """What a service runs, with its words placed in the file (by line)."""
    from dstune.readers import image as images

    image = images.parse(str(service.get("image") or ""))
    entry, command = service.get("entrypoint"), service.get("command")
    words = _words(service, "entrypoint") + _words(service, "command")
    shell = re.fullmatch(r"(?:/bin/|/usr/bin/)?(?:ba|z|da)?sh", words[0].text) if words else None
    if shell and len(words) >= 3:
        script = words[-1].text if " " in words[-1].text else " ".join(w.text for w in words[2:])
        inner = list(launches(script))
        chosen = next((i for i in reversed(inner) if i.engine and i.engine != "pip"), None)
        if chosen is not None:
            move = words[-1].line - 1
            args = [Word(w.text, w.start, w.end, w.line + move, w.quote, False) for w in chosen.args]
            return Launch(chosen.engine, chosen.program, args, chosen.env, [], words[0], "compose", named=False)
    engine, program, args = recognise(words) if words and not words[0].text.startswith("-") else ("", "", words)
    own = image.engine if image else ""
    named = not entry
    if not engine and own and not entry:
        engine, program, args = own, (image.program if image else "") or own, words
        named = False
    elif not engine and words and words[0].text.startswith("-"):
        found = re.search(
            r"vllm|sglang|llama\.cpp|text-generation-inference", str(service.get("image") or service.get("build") or "")
        )
        engine = {"llama.cpp": "llamacpp", "text-generation-inference": "tgi"}.get(found[0], found[0]) if found else ""
        program = "vllm serve" if engine == "vllm" else engine
    if not (engine or program or command or image):
        return None
    line = line_of(service, "image") or 1
    place = Word(str(service.get("image") or ""), 0, 0, line)
    return Launch(engine, program, args, {}, [], place, "compose", named=named)


def _words(service: Any, key: str) -> list[Word]:
    value = service.get(key)
    first = line_of(service, key) or 1
    if isinstance(value, list):
        return [Word(str(v), 0, 0, line_of(value, at) or first, "", False) for at, v in enumerate(value)]
    if isinstance(value, str):
        return [Word(w.text, 0, 0, first + (w.line - 1), "", False) for c in commands(str(value)) for w in c.words]
    return []


def write(text: str, settings: Mapping[str, Value]) -> str:
    """The compose text with the settings: `docker.*` as keys of the first service that needs a GPU, an engine's into its command,
    variables into `environment`; comments, order and quotes stay."""
    from dstune.readers.compose_write import write as write_tree

    return write_tree(text, settings)
