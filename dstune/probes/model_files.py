"""Weight files: whole or truncated, pointers instead of data, missing shards, and how many parameters of which type."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import Any

from dstune.lang import say
from dstune.model import Fact, Gap, parse_json
from dstune.probes import gguf
from dstune.probes.reading import Item, facts, text_of

_BYTES = {
    "F64": 8,
    "I64": 8,
    "F32": 4,
    "I32": 4,
    "BF16": 2,
    "F16": 2,
    "I16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
_NAMES = {
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "I8": "int8",
    "U8": "uint8",
}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_LFS = b"version https://git-lfs"
_HEADER_LIMIT = 64 << 20


def files_of(folder: str) -> dict[str, int]:
    """Name → size of the files in a folder, links followed; -1 for a link that leads nowhere."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
                    elif entry.is_symlink():
                        found[entry.name] = -1
                except OSError:
                    found[entry.name] = -1
    except OSError:
        pass
    return dict(sorted(found.items()))


def weights(folder: str, files: dict[str, int], subject: str, shown: str) -> Iterator[Item]:
    """Facts of the weights of one directory."""
    mine = {
        n: s for n, s in files.items() if n.endswith(_WEIGHTS) and not n.startswith(("training_args", "optimizer", "scheduler"))
    }
    formats = [
        f
        for f, end in (("safetensors", ".safetensors"), ("gguf", ".gguf"), ("bin", (".bin", ".pt", ".pth")))
        if _any(mine, end)
    ]
    yield Fact(subject, "weights_formats", formats, shown)
    main = {
        n: s
        for n, s in mine.items()
        if formats and n.endswith({"safetensors": ".safetensors", "gguf": ".gguf"}.get(formats[0], _WEIGHTS))
    }
    yield Fact(subject, "weights_files", len(main), shown)
    yield Fact(subject, "weights_mib", sum(s for s in main.values() if s > 0) >> 20, shown)
    pointers = [n for n, s in files.items() if 0 < s < 1024 and _starts(f"{folder}/{n}", _LFS)]
    yield Fact(subject, "lfs_pointers", pointers, shown)
    yield Fact(subject, "empty_files", [n for n, s in mine.items() if s == 0] + _empty_json(files), shown)
    yield Fact(subject, "broken_links", [n for n, s in files.items() if s < 0], shown)
    missing, mapped = missing_shards(folder, files)
    yield Fact(subject, "missing_shards", missing, f"{shown}/*.index.json")
    truncated: list[str] = []
    counted: dict[str, int] = {}
    tensors: set[str] = set()
    unread: list[str] = []
    for name, size in mine.items():
        if size <= 0 or name in pointers:
            continue
        path = f"{folder}/{name}"
        if name.endswith(".safetensors"):
            header = safetensors_header(path)
            if header is None:
                (unread if os.access(path, os.R_OK) is False else truncated).append(name)
                continue
            end, table = header
            if size < end:
                truncated.append(name)
            for tensor, entry in table.items():
                tensors.add(tensor)
                counted[entry["dtype"]] = counted.get(entry["dtype"], 0) + _product(entry["shape"])
        elif name.endswith(".gguf"):
            if not gguf.is_whole(path):
                truncated.append(name)
        elif not _zip_is_whole(path, size):
            truncated.append(name)
    yield Fact(subject, "truncated_files", truncated, shown)
    yield from _counts(counted, subject, shown)
    if mapped and tensors:
        absent = sorted(t for t in mapped if t not in tensors)
        yield Fact(subject, "tensors_missing", len(absent), f"{shown}/model.safetensors.index.json")
    for name in unread:
        yield Gap(subject, "truncated_files", f"{name}: " + say("not readable for this user", "当前用户无权读取"))


def _counts(counted: dict[str, int], subject: str, shown: str) -> Iterator[Item]:
    if not counted:
        return
    source = f"{shown}: safetensors headers"
    main = max(counted, key=lambda d: counted[d] * _BYTES.get(d, 1))
    yield Fact(subject, "weights_dtype", _NAMES.get(main, main.lower()), source)
    packed = sum(n for d, n in counted.items() if d in ("I32", "I8", "U8", "I64"))
    total = sum(counted.values())
    if packed * 4 < total:  # a packed quantisation counts words, not parameters
        yield from facts(subject, source, parameters=total)


def _any(files: dict[str, int], end: str | tuple[str, ...]) -> bool:
    return any(n.endswith(end) for n in files)


def _empty_json(files: dict[str, int]) -> list[str]:
    return [n for n, s in files.items() if s == 0 and n.endswith((".json", ".model", ".txt", ".jinja"))]


def _product(shape: list[int]) -> int:
    result = 1
    for n in shape:
        result *= n
    return result


def _starts(path: str, magic: bytes) -> bool:
    try:
        with open(path, "rb") as f:
            return f.read(len(magic)) == magic
    except OSError:
        return False


def missing_shards(folder: str, files: dict[str, int]) -> tuple[list[str], set[str]]:
    """(shards that an index or a `00001-of-00003` name promises and that are absent, tensors of the safetensors index)."""
    wanted: set[str] = set()
    mapped: set[str] = set()
    for name in files:
        if name.endswith(".index.json"):
            try:
                index = parse_json(text_of(f"{folder}/{name}", 64 << 20) or "")["weight_map"]
            except (ValueError, KeyError, TypeError):
                continue
            other_format = name.startswith("pytorch") and any(n.endswith(".safetensors") for n in files)
            if isinstance(index, dict) and not other_format:
                wanted |= set(index.values())
                mapped |= set(index) if "safetensors" in name else set()
        found = re.fullmatch(r"(.*-)(\d{5})-of-(\d{5})(\.\w+)", name)
        if found:
            wanted |= {f"{found[1]}{i:05d}-of-{found[3]}{found[4]}" for i in range(1, min(int(found[3]), 1000) + 1)}
    return sorted(w for w in wanted if files.get(w, -1) < 0), mapped


def safetensors_header(path: str) -> tuple[int, dict[str, Any]] | None:
    """(size that the file must have, tensor → {dtype, shape, data_offsets}); None where there is no valid header.

    Format: 8 bytes little-endian length n, n bytes of JSON, then the data (https://huggingface.co/docs/safetensors).
    """
    try:
        with open(path, "rb") as f:
            length = struct.unpack("<Q", f.read(8))[0]
            if not 2 <= length <= _HEADER_LIMIT:
                return None
            table = parse_json(f.read(length))
        table.pop("__metadata__", None)
        end = max((int(entry["data_offsets"][1]) for entry in table.values()), default=0)
        for entry in table.values():
            _product(entry["shape"]), entry["dtype"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None
    return 8 + length + end, table


def _zip_is_whole(path: str, size: int) -> bool:
    """torch.save writes a zip whose directory stands at the end; older files are pickles and cannot be judged."""
    if not _starts(path, b"PK\x03\x04"):
        return True
    try:
        with open(path, "rb") as f:
            f.seek(max(0, size - 65557))
            return b"PK\x05\x06" in f.read()
    except OSError:
        return True
