"""config.yaml as typed values. Every key is known, every value is checked, and an error names the key, the value and what is allowed.

Imports neither torch nor transformers: a configuration can be checked on any machine (`python app.py --check`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

KINDS = ("math", "code", "logic", "text")
MOST_LAYERS = 10_000
"""A typing error in a range must not become a list that fills the memory."""


class SettingsError(Exception):
    """What is wrong in the configuration, one line a fault."""


def one_of(*allowed: str) -> Callable[[Any], str]:
    """A check of a word."""
    return lambda v: "" if v in allowed else f"must be one of {', '.join(allowed)}"


def between(low: float, high: float) -> Callable[[Any], str]:
    """A check of a number, both ends included."""
    return lambda v: "" if v is None or low <= v <= high else f"must be from {low:.15g} to {high:.15g}"


def option(default: Any, check: Callable[[Any], str] | None = None) -> Any:
    """A field with its default and its check."""
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True)
class Model:
    """What is loaded, and where to."""

    path: str = ""
    dtype: str = option("auto", one_of("auto", "bfloat16", "float16", "float32"))
    quantization: str = option("none", one_of("none", "nf4", "int8"))
    layer_map: dict[str, Any] | None = None
    vram_limit_gib: float | None = option(None, between(0.5, 4096))


@dataclass(frozen=True)
class Server:
    """How requests are taken. `concurrency` answers run at once (1: each has the card for itself), `queue` more may wait, `timeout` bounds
    waiting and answering in seconds; after `idle_unload_s` without a request the model leaves the card (0: never)."""

    host: str = "127.0.0.1"
    port: int = option(7860, between(1, 65535))
    concurrency: int = option(1, between(1, 512))
    queue: int = option(16, between(0, 100_000))
    timeout: float = option(120.0, between(1, 86_400))
    idle_unload_s: float = option(0.0, between(0, 864_000))


@dataclass(frozen=True)
class Cache:
    """Attention cache. `context` tokens are reserved for each answer that runs; finished conversations are kept in host memory."""

    context: int = option(4096, between(64, 1_048_576))
    kv_compress_ratio: float = option(1.0, between(0.01, 1))
    session_max: int = option(1000, between(0, 1_000_000))
    cpu_ram_limit_gb: float = option(4.0, between(0, 4096))

    @property
    def kv_dtype(self) -> str:
        """The widest form of the cache that is about as small as asked: 16 bit, or 8 bit with a scale for each token and head."""
        return "model" if self.kv_compress_ratio >= 1 else "float8"


@dataclass(frozen=True)
class Sampling:
    """Bounds and sampling of one kind of request. `directive` is added to the user's message."""

    temperature: float = option(0.6, between(0, 2))
    top_p: float = option(0.95, between(0.01, 1))
    top_k: int = option(0, between(0, 256))
    max_new_tokens: int = option(1024, between(1, 1_048_576))
    directive: str = ""


@dataclass(frozen=True)
class Generation:
    """Sampling by kind of request (`of`), and the bound of a runaway: so many tokens of pure repetition end an answer (0: never)."""

    default: Sampling = Sampling()
    kinds: dict[str, Sampling] = field(default_factory=dict)
    runaway_tokens: int = 96

    def of(self, kind: str) -> Sampling:
        """The sampling of a kind."""
        return self.kinds.get(kind, self.default)


@dataclass(frozen=True)
class Prompt:
    """What the model's vendor asks of a prompt: system messages kept or moved into the user's turn, and how the answer opens."""

    system: str = option("keep", one_of("keep", "user"))
    think_prefix: str = ""


@dataclass(frozen=True)
class Page:
    """The web page."""

    title: str = "Chat"
    language: str = option("en", one_of("en", "zh"))


@dataclass(frozen=True)
class Log:
    """The request log: JSON lines in `file` ("" = console alone), a new file every `max_mb`, `keep` old ones."""

    file: str = ""
    level: str = option("INFO", one_of("DEBUG", "INFO", "WARNING", "ERROR"))
    max_mb: float = option(20.0, between(0.1, 10_000))
    keep: int = option(3, between(0, 1000))


@dataclass(frozen=True)
class Settings:
    """The whole configuration."""

    model: Model = Model()
    server: Server = Server()
    cache: Cache = Cache()
    generation: Generation = Generation()
    prompt: Prompt = Prompt()
    page: Page = Page()
    log: Log = Log()

    @property
    def slots(self) -> int:
        """Answers that run at once."""
        return self.server.concurrency


def load(path: str | Path) -> Settings:
    """The settings of a file. Raises `SettingsError` with every fault found."""
    import yaml

    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except UnicodeError:
        raise SettingsError(f"{path} is not written in UTF-8; save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{path} is no YAML: {error}") from None
    return read(data)


def read(data: Any) -> Settings:
    """The settings of a parsed file. Raises `SettingsError` with every fault found."""
    faults: list[str] = []
    data = dict(data) if isinstance(data, dict) else faults.append("the file must be a table of sections") or {}
    generation = _generation(data.pop("generation", None) or {}, faults)
    made = replace(_table(Settings, data, "", faults), generation=generation)
    if not faults:
        faults += _together(made)
    if faults:
        raise SettingsError("\n".join(faults))
    return made


def _table(cls: type, data: Any, where: str, faults: list[str], base: Any = None) -> Any:
    """An instance of a settings class out of a table; what is left out comes from `base`, else is the default."""
    base = base or cls()
    if not isinstance(data, dict):
        faults.append(f"{where}: must be a table, not {data!r}")
        return base
    known = {f.name: f for f in fields(cls) if f.name != "kinds"}
    values: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{where}.{key}" if where else str(key)
        if key not in known:
            faults.append(f"{name}: no such key. Known here: {', '.join(known)}")
            continue
        now = getattr(base, key)
        if is_dataclass(now):
            values[key] = _table(type(now), value or {}, name, faults)
            continue
        value, fault = _typed(value, known[key].type)
        check = known[key].metadata.get("check")
        fault = fault or (check(value) if check else "")
        if fault:
            faults.append(f"{name}: {fault}, not {data[key]!r}")
        else:
            values[key] = value
    return replace(base, **values)


def _typed(value: Any, kind: Any) -> tuple[Any, str]:
    """The value as the field's type, or what it must be. A number in quotes is no number, and `true` is none either."""
    kind = str(kind)
    if value is None:
        return (None, "") if "None" in kind else (None, "must have a value")
    if kind.startswith("dict"):
        return (value, "") if isinstance(value, dict) else (value, "must be a table")
    if kind.startswith("str"):
        return (value, "") if isinstance(value, str) else (value, "must be text (in quotes)")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value, "must be a number"
    if not math.isfinite(value):
        return value, "must be a finite number"
    if kind.startswith("int"):
        return (int(value), "") if value == int(value) else (value, "must be a whole number")
    return float(value), ""


def _generation(data: Any, faults: list[str]) -> Generation:
    """`default`, then each kind over it."""
    if not isinstance(data, dict):
        faults.append(f"generation: must be a table, not {data!r}")
        return Generation()
    allowed = ("default", *KINDS, "runaway_tokens")
    faults += [f"generation.{k}: no such kind. Known: {', '.join(allowed)}" for k in data if k not in allowed]
    default = _table(Sampling, data.get("default") or {}, "generation.default", faults)
    kinds = {k: _table(Sampling, data.get(k) or {}, f"generation.{k}", faults, default) for k in KINDS}
    run = data.get("runaway_tokens", Generation.runaway_tokens)
    if isinstance(run, bool) or not isinstance(run, int) or (run and not 24 <= run <= 10_000):
        faults.append(f"generation.runaway_tokens: must be 0 (off) or a whole number from 24 to 10000, not {run!r}")
    return Generation(default, kinds, run)


def _together(s: Settings) -> list[str]:
    """Faults between keys."""
    faults = []
    if not s.model.path:
        faults.append("model.path: must name a folder or a model of the Hub")
    if s.cache.kv_compress_ratio < 0.5:
        faults.append(
            f"cache.kv_compress_ratio: half (8 bit for 16) is the smallest form of the cache, not {s.cache.kv_compress_ratio}"
        )
    for kind in ("default", *KINDS):
        longest = s.generation.of(kind).max_new_tokens
        if longest >= s.cache.context:
            faults.append(
                f"generation.{kind}.max_new_tokens: {longest} leaves no room for a prompt in cache.context {s.cache.context}"
            )
    if s.model.layer_map is not None:
        config = Path(s.model.path) / "config.json"
        try:
            count = json.loads(config.read_text(encoding="utf-8")).get("num_hidden_layers") if config.is_file() else None
            layers(s.model.layer_map, count)
        except SettingsError as error:
            faults.append(str(error))
    return faults


def layers(layer_map: dict[str, Any], count: int | None) -> dict[int, str]:
    """The device of each layer. `count` is the model's number of layers (None: unknown, so the highest one named counts).

    A device is `cuda:0`, `cuda:1`, … or `cpu`; its layers are numbers and ranges: `[0, 1, "2-12"]`.
    Raises `SettingsError` for a number outside 0 … count - 1, one named twice, or one left out.
    """
    found: dict[int, str] = {}
    for device, listed in layer_map.items():
        if not re.fullmatch(r"cuda:\d+|cpu", str(device)):
            raise SettingsError(f"model.layer_map: {device!r} is no device; write cuda:0, cuda:1 or cpu")
        for item in listed if isinstance(listed, list) else [listed]:
            first, _, last = str(item).partition("-")
            if isinstance(item, bool) or not first.isdigit() or (last and not last.isdigit()):
                raise SettingsError(f"model.layer_map.{device}: {item!r} is neither a layer number nor a range such as 0-12")
            if int(last or first) > MOST_LAYERS:
                raise SettingsError(f"model.layer_map.{device}: {item!r}: no model has more than {MOST_LAYERS} layers")
            for number in range(int(first), int(last or first) + 1):
                if count is not None and number >= count:
                    raise SettingsError(
                        f"model.layer_map.{device}: there is no layer {number}; this model has {count}, numbered 0 to {count - 1}"
                    )
                if number in found:
                    raise SettingsError(f"model.layer_map: layer {number} is on {found[number]} and on {device}")
                found[number] = str(device)
    missing = [n for n in range(count if count is not None else max(found, default=0) + 1) if n not in found]
    if missing:
        raise SettingsError(f"model.layer_map: no device for layer {', '.join(map(str, missing))}; every layer must be named")
    return found
