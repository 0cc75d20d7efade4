"""What a GGUF file says of itself: the key-value part of its header, and whether its tensors can all be in it.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (little-endian, versions 2 and 3).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from dstune.model import Fact
from dstune.probes.reading import Item, facts

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_LIMIT = 64 << 20
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L",
    14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
}  # fmt: skip
"""`general.file_type`: llama.cpp's enum llama_ftype."""


class Header:
    """Reads a header from its start; raises `ValueError` for what is none and for one that goes on past 64 MiB."""

    def __init__(self, file: BinaryIO) -> None:
        self.data = file.read(_LIMIT)
        self.at = 4
        if self.data[:4] != b"GGUF" or len(self.data) < 24:
            raise ValueError("no GGUF")
        version = self._scalar("<I")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version}")
        self.tensors, pairs = self._scalar("<Q"), self._scalar("<Q")
        self.values: dict[str, Any] = {}
        for _ in range(pairs):
            key = self._string()
            self.values[key] = self._value(self._scalar("<I"))

    def _scalar(self, form: str) -> Any:
        try:
            (value,) = struct.unpack_from(form, self.data, self.at)
        except struct.error:
            raise ValueError("the header ends early") from None
        self.at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        text = self.data[self.at : self.at + length]
        if len(text) != length:
            raise ValueError("the header ends early")
        self.at += length
        return text.decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        """A value; of an array only its length, since vocabularies have 150,000 entries."""
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise ValueError(f"GGUF value type {kind}")
        inner, count = self._scalar("<I"), self._scalar("<Q")
        if inner in _SCALARS:
            self.at += struct.calcsize(_SCALARS[inner]) * count
        else:
            for _ in range(count):
                self._skip(inner)
        if self.at > len(self.data):
            raise ValueError("the header ends early")
        return count

    def _skip(self, kind: int) -> None:
        if kind != _STRING:
            self._value(kind)
            return
        self.at += 8 + int.from_bytes(self.data[self.at : self.at + 8], "little")
        if self.at > len(self.data):
            raise ValueError("the header ends early")

    def least_size(self) -> int:
        """A lower bound of the file's size: where its last tensor starts, and the parameters on the way (`parameters`)."""
        last = 0
        self.parameters = 0
        for _ in range(self.tensors):
            self._string()
            count = 1
            for _ in range(self._scalar("<I")):
                count *= self._scalar("<Q")
            self.parameters += count
            self._scalar("<I")
            last = max(last, self._scalar("<Q"))
        step = int(self.values.get("general.alignment", 32))
        return (self.at + step - 1) // step * step + last + 1


def read(path: str) -> Header | None:
    """The header of a file; None where it cannot be read or is none."""
    try:
        with open(path, "rb") as f:
            return Header(f)
    except (OSError, ValueError, OverflowError, MemoryError):
        return None


def file_type(values: dict[str, Any]) -> str:
    """`general.file_type` by its name (`Q4_K_M`), "" where it is none that is known."""
    return _FILE_TYPES.get(values.get("general.file_type", -1), "")


def is_whole(path: str) -> bool:
    """False for a file that has no valid header or ends before its last tensor begins."""
    header = read(path)
    try:
        return header is not None and header.least_size() <= os.path.getsize(path)
    except (OSError, ValueError):
        return False


def described(path: str, subject: str, source: str) -> Iterator[Item]:
    """Facts of `model` that stand in the header."""
    header = read(path)
    if header is None:
        return
    try:
        header.least_size()
        parameters: int | None = header.parameters
    except ValueError:
        parameters = None
    values = header.values
    kind = str(values.get("general.architecture", ""))
    heads, width = values.get(f"{kind}.attention.head_count"), values.get(f"{kind}.embedding_length")
    heads = heads if isinstance(heads, int) else None
    yield from facts(
        subject,
        source,
        model_type=kind or None,
        layers=values.get(f"{kind}.block_count"),
        hidden_size=width,
        intermediate_size=values.get(f"{kind}.feed_forward_length"),
        heads=heads,
        kv_heads=values.get(f"{kind}.attention.head_count_kv", heads),
        head_dim=values.get(f"{kind}.attention.key_length") or (width // heads if width and heads else None),
        vocab_size=values.get("tokenizer.ggml.tokens"),
        max_position_embeddings=values.get(f"{kind}.context_length"),
        quantization=file_type(values) or None,
        parameters=parameters,
    )
    template = values.get("tokenizer.chat_template")
    yield Fact(subject, "chat_template", bool(template), source)
