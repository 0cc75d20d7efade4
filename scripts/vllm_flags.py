"""Writes `recipes/flags/vllm-X.toml`: every flag of one `vllm serve`, out of that version's own argument parser.

    python scripts/vllm_flags.py [--root DIR_WITH_vllm_PACKAGE] [--stub] > recipes/flags/vllm-X.toml
    python scripts/vllm_flags.py --json DUMP.json > recipes/flags/vllm-X.toml

With `--stub`, modules that are not installed (torch, transformers, triton…) are replaced by empty stand-ins, so the parser of an old
vLLM runs from its .py files alone (an unpacked wheel), in an environment with pydantic, msgspec, numpy, pyyaml and a few more small packages.
`--json` converts a dump made elsewhere (`{"vllm": version, "flags": [{flags, action, type, choices, nargs, default}]}`).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import os
import re
import sys
import types
from typing import Any

REAL = set(sys.stdlib_module_names) | {
    "pydantic", "pydantic_core", "msgspec", "yaml", "numpy", "google", "_yaml", "attr", "attrs", "orjson", "annotated_types", "org",
    "typing_extensions", "brotli", "brotlicffi", "cchardet", "chardet", "simplejson", "email_validator", "dotenv", "eval_type_backport", "regex",
}  # fmt: skip
OTHER_PLATFORMS = {
    "libtpu", "torch_xla", "tpu_info", "habana_frameworks", "amdsmi", "pynvml", "transformers_neuronx", "neuronxcc", "torch_neuronx",
    "intel_extension_for_pytorch", "neuronx_distributed_inference", "vllm_spyre", "tpu_commons", "tpu_inference",
}  # fmt: skip


class _Anything(type):
    """A class that stands for any name of a missing module: callable, comparable, indexable."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Anything(name, (), {"__module__": "stub"})
        setattr(cls, name, value)
        return value

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__name__ == "register_fake" or (len(args) == 1 and isinstance(args[0], types.FunctionType) and not kwargs):
            return args[0] if args else cls
        return type.__call__(cls, *args, **kwargs) if len(args) == 3 and isinstance(args[0], str) else cls

    def __iter__(cls) -> Any:
        return iter(())

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return other

    def __len__(cls) -> int:
        return 0

    def __bool__(cls) -> bool:
        return False

    def __lt__(cls, other: Any) -> bool:
        return False

    __le__ = __lt__

    def __gt__(cls, other: Any) -> bool:
        return True

    __ge__ = __gt__

    def __mul__(cls, other: Any) -> int:
        return 1

    __rmul__ = __add__ = __radd__ = __sub__ = __mul__

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *args: Any) -> bool:
        return False

    def __fspath__(cls) -> str:
        return "/nonexistent"

    def __get_pydantic_core_schema__(cls, *args: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name == "__path__":
            return []
        if name == "__version__":
            return "9.9.9"
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Anything(name, (), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        top = name.split(".")[0]
        ours = name.startswith("vllm") and not name.startswith(("vllm._", "vllm.vllm_flash_attn", "vllm_"))
        return (
            None
            if top in REAL or top in OTHER_PLATFORMS or ours
            else importlib.machinery.ModuleSpec(name, self, is_package=True)
        )

    def create_module(self, spec: Any) -> Any:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: Any) -> None:
        pass


def _stub() -> None:
    sys.meta_path.append(_Finder())
    real = importlib.metadata.version

    def version(name: str) -> str:
        try:
            return real(name)
        except importlib.metadata.PackageNotFoundError:
            return "9.9.9"

    importlib.metadata.version = version
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    torch: Any = importlib.import_module("torch")
    torch.iinfo = lambda *_: type("Limits", (), {"min": -(2**63), "max": 2**63 - 1})
    library: Any = importlib.import_module("torch.library")
    library.register_fake = library.impl_abstract = lambda *a, **k: lambda f: f
    importlib.import_module("vllm.platforms").current_platform.device_type = "cuda"


def _parser() -> argparse.ArgumentParser:
    def first(*names: str) -> Any:
        for name in names:
            module, _, attribute = name.rpartition(":")
            try:
                return getattr(importlib.import_module(module), attribute)
            except (ImportError, AttributeError):
                continue
        raise SystemExit(f"none of {names}: a layout this script does not know")

    make = first("vllm.entrypoints.openai.cli_args:make_arg_parser", "vllm.entrypoints.launchers.cli_args:make_arg_parser")
    kind = first("vllm.utils.argparse_utils:FlexibleArgumentParser", "vllm.utils:FlexibleArgumentParser")
    made: argparse.ArgumentParser = make(kind(prog="vllm serve"))
    return made


def _type_name(kind: Any) -> str | None:
    if kind is None:
        return None
    name: str = getattr(kind, "__qualname__", None) or repr(kind)[:80]
    inner = [_type_name(c.cell_contents) for c in getattr(kind, "__closure__", None) or () if callable(c.cell_contents)]
    return f"{name.split('.')[0]}[{','.join(i for i in inner if i)}]" if "<locals>" in name and inner else name


def dump() -> dict[str, Any]:
    """All flags of the vLLM that can be imported here."""
    flags = [
        {
            "flags": list(a.option_strings), "dest": a.dest, "action": type(a).__name__, "type": _type_name(a.type), "nargs": a.nargs,
            "choices": list(a.choices) if a.choices else None, "default": a.default if isinstance(a.default, str | int | float) else None,
        }
        for a in _parser()._actions
    ]  # fmt: skip
    return {"vllm": importlib.import_module("vllm.version").__version__, "flags": flags}


def kind_of(flag: dict[str, Any]) -> str:
    """How the value of a flag is read: none, onoff (has a --no- form), int, float, human (1k), human_auto, json, text."""
    name, action = flag["type"] or "", flag["action"]
    if "BooleanOptional" in action:
        return "onoff"
    if action == "StoreBoolean":
        return "bool"
    if flag["nargs"] == 0:
        return "none"
    if "human_readable_int_or_auto" in name:
        return "human_auto"
    if "human_readable" in name:
        return "human"
    if re.search(r"loads|dataclass|from_json|from_cli|union_dict", name):
        return "json"
    found = re.search(r"\b(int|float)\b", name)
    return found[1] if found else "text"


def toml(data: dict[str, Any]) -> str:
    """The file: a line per flag, `name = { type, also, choices, nargs, default }`."""
    lines = [
        f"# Flags of `vllm serve` {data['vllm']}, out of its own argument parser (scripts/vllm_flags.py).",
        "# type: none (a switch), onoff (has --no-…), bool (takes true/false), int, float, human (8k, 1.5K), human_auto, json, text.",
        f'version = "{data["vllm"]}"',
        "[flags]",
    ]
    for flag in data["flags"]:
        names = [f for f in flag["flags"] if not f.startswith("--no-") or flag["action"] not in ("BooleanOptionalAction",)]
        long = [n[2:] for n in names if n.startswith("--")]
        if not long:
            continue
        fields = [f'type = "{kind_of(flag)}"']
        if also := [n for n in names if n != f"--{long[0]}"]:
            fields.append(f"also = {json.dumps(also)}")
        if flag["choices"]:
            fields.append(f"choices = {json.dumps([str(c) for c in flag['choices'] if c is not None])}")
        if flag["nargs"] in ("+", "*", "?"):
            fields.append(f'nargs = "{flag["nargs"]}"')
        default = flag["default"]
        if isinstance(default, bool | int | float) or (
            isinstance(default, str) and default and len(default) < 40 and "==" not in default
        ):
            fields.append(f"default = {json.dumps(default)}")
        lines.append(f"{long[0]} = {{ {', '.join(fields)} }}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Reads the parser (or a dump) and prints the file."""
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--root")
    ap.add_argument("--stub", action="store_true")
    ap.add_argument("--json")
    options = ap.parse_args()
    if options.json:
        with open(options.json, encoding="utf-8") as f:
            data = json.load(f)
    else:
        if options.root:
            sys.path.insert(0, options.root)
        if options.stub:
            _stub()
        data = dump()
    sys.stdout.write(toml(data))


if __name__ == "__main__":
    main()
