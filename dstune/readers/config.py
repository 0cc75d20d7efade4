"""Configuration files: vLLM's `--config` YAML, an app's own YAML/JSON/TOML, .env, requirements.txt, and a model's JSON files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dstune.catalog.vocabulary import Term, normalise, terms
from dstune.lang import say
from dstune.model import Document, Fact, Gap, Value, parse_json
from dstune.readers import requirements
from dstune.readers.command import derived_facts, env_facts
from dstune.readers.given import shown as _shown
from dstune.readers.given import spellings

_VLLM_KEYS = (
    "model",
    "max-model-len",
    "gpu-memory-utilization",
    "tensor-parallel-size",
    "max-num-seqs",
    "quantization",
    "enforce-eager",
    "served-model-name",
)
_JSON_LINES = re.compile(r"\s*\{[^\n]*\}[ \t]*\n\s*\{")
_CHAIN = re.compile(r"(?m)^[ \t]*\[{0,2}[ \t]*(?:[\w\"'-]+[ \t]*\.[ \t]*){100}")


def read(document: Document) -> Iterator[Fact | Gap]:
    """Facts by what the file is; a Gap where it cannot be parsed."""
    name = re.split(r"[/\\]", document.path)[-1].lower()
    lines = document.text.splitlines()
    if re.match(r"requirements.*\.txt$|constraints.*\.txt$", name) or _looks_required(document.text):
        yield from requirements.facts(requirements.read_lines(document.text), document.path, lines)
        return
    if name.endswith(".env") or name.startswith(".env") or _looks_env(document.text):
        for line, key, value in _pairs(document.text):
            yield from env_facts({key: value}, document.path, line, lines)
        return
    tree, problem = _parsed(document.text, name)
    if problem:
        if _meant(name, document.text):
            at = re.search(r"line (\d+)", problem)
            where = int(at[1]) if at else None
            yield Fact("config", "invalid", problem, document.path, where, _shown(lines, where))
        yield Gap("config", "*", say(f"{document.path} cannot be parsed: {problem}", f"{document.path} 无法解析：{problem}"))
        return
    if isinstance(tree, dict):
        yield from _model(tree, document, lines)
        yield from _engine(tree, document, lines)
        yield from _kubernetes(document, lines)
        if isinstance(tree.get("services"), dict):
            from dstune.readers import compose

            yield from compose.read(document)
        env = tree.get("env") or tree.get("environment")
        if isinstance(env, dict):
            for key, value in env.items():
                yield from env_facts({str(key): str(value)}, document.path, _line(lines, str(key)), lines)


def _meant(name: str, text: str) -> bool:
    """Whether a text that cannot be parsed is meant to be what its name says: a template, a Modelfile or a piece of JSON under another name is not."""
    if "{{" in text or "{%" in text or "<<<<<<<" in text:
        return False
    if name.endswith(".json"):
        return text.lstrip().startswith(("{", "[")) and not _JSON_LINES.match(text)
    if name.endswith(".toml"):
        return True
    full = [x for x in text.splitlines() if x.strip() and not x.lstrip().startswith("#")]
    keys = [x for x in full if re.match(r"""\s*(?:- |[\w./-]+[ \t]*:(?:\s|$))""", x)]
    return name.endswith((".yaml", ".yml")) and len(keys) * 3 >= len(full) * 2


def _looks_required(text: str) -> bool:
    lines = [x.strip() for x in text.splitlines() if x.strip() and not x.strip().startswith("#")]
    good = [
        x
        for x in lines
        if re.fullmatch(r"[A-Za-z0-9][\w.-]*(?:\[[\w,-]+\])?\s*(?:[=<>~!]=?[^:]*)?", x) or x.startswith(("-r ", "--"))
    ]
    return bool(lines) and len(good) == len(lines) and any("==" in x or ">=" in x for x in lines)


def _looks_env(text: str) -> bool:
    lines = [x.strip() for x in text.splitlines() if x.strip() and not x.strip().startswith("#")]
    return bool(lines) and all(re.match(r"(?:export\s+)?[A-Za-z_]\w*=", x) for x in lines)


def _pairs(text: str) -> Iterator[tuple[int, str, str]]:
    for number, raw in enumerate(text.splitlines(), 1):
        found = re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*$", raw)
        if found:
            value = found[2]
            value = (
                value[1:-1]
                if value[:1] in "\"'" and value[-1:] == value[:1] and len(value) > 1
                else re.sub(r"\s+#.*$", "", value)
            )
            yield number, found[1], value


def _parsed(text: str, name: str) -> tuple[Any, str]:
    if name.endswith(".toml"):
        import tomllib

        if _CHAIN.search(text):  # tomllib's memory grows with the square of a key's parts
            return None, say("a key of more than 100 parts", "一个键超过 100 段")
        try:
            return tomllib.loads(text), ""
        except (ValueError, RecursionError) as error:
            return None, str(error).partition(";")[0]
    if name.endswith(".json") or text.lstrip().startswith("{"):
        try:
            return parse_json(text), ""
        except (ValueError, RecursionError) as error:
            if name.endswith(".json") or isinstance(error, RecursionError):
                return None, str(error).partition(";")[0]
    return _yaml(text)


def _yaml(text: str) -> tuple[Any, str]:
    from ruamel.yaml.error import YAMLError

    from dstune.readers.yaml_text import UnboundedError, load

    try:
        documents = load(text)
    except UnboundedError as error:
        return None, str(error)
    except YAMLError as error:
        problem = str(getattr(error, "problem", "") or error).strip().splitlines()[0]
        mark = getattr(error, "problem_mark", None)
        return None, problem if mark is None else f"{problem}, line {mark.line + 1}"
    return (documents[0] if documents else None), ""


def _line(lines: list[str], key: str) -> int | None:
    pattern = re.compile(rf"(?:^|[\s{{,\"'-]){re.escape(key)}[\"']?\s*[:=]")
    return next((n for n, line in enumerate(lines, 1) if pattern.search(line)), None)


def _model(tree: Mapping[str, Any], document: Document, lines: list[str]) -> Iterator[Fact]:
    """`config.json`, `generation_config.json` and `tokenizer_config.json` of a model."""

    def fact(family: str, name: str, value: Any, key: str) -> Fact:
        number = _line(lines, key)
        return Fact(family, name, value, document.path, number, _shown(lines, number))

    known = terms()

    def maybe(full: str, value: Any, key: str) -> Iterator[Fact]:
        if full in known and value is not None and (typed := normalise(full, value)) is not None:
            family, _, name = full.partition(".")
            yield fact(family, name, typed, key)

    if "model_type" in tree and ("architectures" in tree or "hidden_size" in tree):
        yield from maybe("model.model_type", tree.get("model_type"), "model_type")
        yield from maybe(
            "model.dtype", tree.get("torch_dtype") or tree.get("dtype"), "torch_dtype" if "torch_dtype" in tree else "dtype"
        )
        yield from maybe("model.max_position_embeddings", tree.get("max_position_embeddings"), "max_position_embeddings")
        quant = tree.get("quantization_config")
        yield from maybe(
            "model.quantization", quant.get("quant_method") if isinstance(quant, dict) else None, "quantization_config"
        )
    if "chat_template" in tree or "tokenizer_class" in tree:
        yield from maybe("model.tokenizer_class", tree.get("tokenizer_class"), "tokenizer_class")
        yield from maybe(
            "model.chat_template", "chat_template" in tree, "chat_template" if "chat_template" in tree else "tokenizer_class"
        )
    if "model_type" not in tree and ("do_sample" in tree or "eos_token_id" in tree):
        for name in ("do_sample", "temperature", "top_p", "top_k", "repetition_penalty"):
            if name in tree:
                yield from maybe(f"model.generation_{name}", tree[name], name)


def _settings_of(tree: Mapping[str, Any]) -> Iterator[tuple[str, Term, Any]]:
    known = spellings("vllm")
    for key, value in tree.items():
        term = known.get("--" + str(key).replace("_", "-"))
        if term is not None and not isinstance(value, dict):
            yield str(key), term, value


def is_vllm(tree: Mapping[str, Any]) -> bool:
    """Whether a mapping is a vLLM `--config` file: two of its usual keys at the top."""
    keys = {str(k).replace("_", "-") for k in tree}
    return sum(k in keys for k in _VLLM_KEYS) >= 2


def _engine(tree: Mapping[str, Any], document: Document, lines: list[str]) -> Iterator[Fact]:
    if not is_vllm(tree):
        return
    for key, term, value in _settings_of(tree):
        typed = (
            "(given)"
            if term.name.endswith("api_key")
            else normalise(term.name, list(value) if isinstance(value, list) else value)
        )
        if typed is not None:
            number = _line(lines, key)
            yield Fact("vllm", term.name.partition(".")[2], typed, document.path, number, _shown(lines, number))


def _kubernetes(document: Document, lines: list[str]) -> Iterator[Fact]:
    """Containers of Kubernetes manifests: image, command, args, env and the GPU limit."""
    if not re.search(r"(?m)^\s*containers:", document.text):
        return
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    from dstune.readers import compose
    from dstune.readers.containers import Container, derived
    from dstune.readers.given import facts as launch_facts

    try:
        documents = list(YAML(typ="rt").load_all(re.sub(r"\{\{[^}\n]*\}\}", "x", document.text)))
    except YAMLError:
        return
    number = 0
    for container in (c for d in documents for c in _containers(d)):
        service = type(container)()
        service.update(
            {"image": container.get("image"), "entrypoint": container.get("command"), "command": container.get("args")}
        )
        launch = compose.launch_of(service, lines)
        env = {str(e.get("name")): str(e.get("value", "")) for e in container.get("env") or () if isinstance(e, dict)}
        resources = container.get("resources") or {}
        limits = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        asked = "kubernetes" if any(re.search(r"nvidia\.com/|gpu", str(k)) for k in limits) else ""
        subject = f"docker{number or ''}"
        number += 1
        line = _line(lines, "image")
        for name, value in derived(Container({"image": str(container.get("image") or "")}, env, launch, asked)):
            if name == "ipc_host" and _shared_memory(container, document.text):
                value = True
            if name.startswith(("cache_", "publishes", "gpu_requested")):
                continue  # volumes and runtime classes live elsewhere in the manifest
            yield from derived_facts(subject, name, value, document.path, line, lines)
        yield from env_facts(env, document.path, line, lines)
        if launch is not None and launch.engine:
            for found in launch_facts(launch, document.path, []):
                key = next(
                    (k for k, t in spellings(found.subject).items() if t.name == f"{found.subject}.{found.name}"), found.name
                )
                at = next((n for n, x in enumerate(lines, 1) if key in x), line)
                yield Fact(found.subject, found.name, found.value, document.path, at, _shown(lines, at))


def _shared_memory(container: Mapping[str, Any], text: str) -> bool:
    """Whether the pod replaces the 64 MiB of /dev/shm: a volume mounted there, or the host's IPC."""
    mounts = container.get("volumeMounts") or ()
    return "hostIPC: true" in text or any(isinstance(m, dict) and m.get("mountPath") == "/dev/shm" for m in mounts)


def _containers(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "containers" and isinstance(value, list):
                yield from (c for c in value if isinstance(c, dict) and "image" in c)
            else:
                yield from _containers(value)
    elif isinstance(node, list):
        for item in node:
            yield from _containers(item)


def write(text: str, settings: Mapping[str, Value]) -> str:
    """The file with the settings: keys of a vLLM YAML, variables of an .env; comments and order stay. Other files come back as they are."""
    if _looks_env(text):
        return _write_env(text, settings)
    tree, problem = _yaml(text)
    if problem or not isinstance(tree, dict) or not is_vllm(tree):
        return text
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    spelling = {term.name: key for key, term, _ in _settings_of(tree)}
    dashes = not any("_" in str(k) for k in tree)
    for full, value in settings.items():
        term = terms().get(full)
        if term is None or not full.startswith("vllm.") or not term.spec.get("flag"):
            continue
        key = spelling.get(full, full[5:].replace("_", "-") if dashes else full[5:])
        if value is None:
            tree.pop(key, None)
        else:
            tree[key] = value
    out = io.StringIO()
    yaml.dump(tree, out)
    return out.getvalue()


def _write_env(text: str, settings: Mapping[str, Value]) -> str:
    for full, value in settings.items():
        term = terms().get(full)
        name = term.spec.get("env") if term else None
        if not name:
            continue
        shown = str(int(value) if isinstance(value, bool) else value)
        line = re.compile(rf"(?m)^(\s*(?:export\s+)?{re.escape(name)}\s*=\s*).*(\n|\Z)")
        if line.search(text):
            text = line.sub("" if value is None else lambda m, v=shown: f"{m[1]}{v}{m[2]}", text, count=1)
        elif value is not None:
            text = text + ("" if text.endswith("\n") or not text else "\n") + f"{name}={shown}\n"
    return text
