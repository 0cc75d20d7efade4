"""GPUs: datasheet facts under every name that people type or NVML prints."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dstune.catalog import load
from dstune.errors import DstuneError
from dstune.lang import say


@dataclass(frozen=True, slots=True)
class Gpu:
    """A board. Bandwidth in GB/s, rates in dense TFLOPS (None: no such unit), memory in MiB as the driver reports it."""

    id: str
    name: str
    vendor: str
    architecture: str
    compute_capability: str
    memory_gib: float
    memory_mib: int
    bandwidth_gb_s: float
    fp32_tflops: float
    fp16_tflops: float | None
    fp16_accum_tflops: float | None
    bf16_tflops: float | None
    int8_tops: float | None
    fp8_tflops: float | None
    sm_count: int
    clock_mhz: float
    tdp_w: float
    pcie_gb_s: float
    unified: bool
    min_cuda: str
    supported: bool
    confidence: str
    notes: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def cc(self) -> tuple[int, int]:
        """Compute capability as numbers; (0, 0) for a card that has none (AMD)."""
        major, _, minor = self.compute_capability.partition(".")
        return (int(major), int(minor or 0)) if major else (0, 0)

    @property
    def label(self) -> str:
        """A name that tells memory sizes apart."""
        size = f"{self.memory_gib:g} GB"
        return self.name if re.search(rf"\b{self.memory_gib:g} ?GB", self.name) else f"{self.name} {size}"


PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.56}
"""GB/s a lane and direction after line coding (PCI-SIG base specifications)."""

VISIBLE_OF_UNIFIED = 0.94
"""Part of a unified board's memory that the operating system shows (GB10: 119 to 121 of 128 GiB, note of that entry)."""


def _gpu(row: dict[str, Any]) -> Gpu:
    nominal = int(row["memory_gib"] * 1024 * (VISIBLE_OF_UNIFIED if row["unified_memory"] else 1))
    pcie = row.get("pcie") or {"gen": 4, "width": 16}
    names = row["names"]
    return Gpu(
        id=row["id"],
        name=re.sub(r"^(NVIDIA|AMD) ", "", names[0]) if row["id"].split("-")[0] != "jetson" else row["id"].replace("-", " "),
        vendor=row["vendor"],
        architecture=row["architecture"],
        compute_capability=row.get("compute_capability") or "",
        memory_gib=row["memory_gib"],
        memory_mib=row.get("memory_mib_reported") or nominal,
        bandwidth_gb_s=row["bandwidth_gb_s"],
        fp32_tflops=row["fp32_tflops"],
        fp16_tflops=row.get("fp16_tensor_tflops_dense"),
        fp16_accum_tflops=row.get("fp16_tensor_tflops_dense_fp16_accum"),
        bf16_tflops=row.get("bf16_tensor_tflops_dense"),
        int8_tops=row.get("int8_tops_dense"),
        fp8_tflops=row.get("fp8_tflops_dense"),
        sm_count=row.get("sm_count") or 0,
        clock_mhz=row.get("boost_clock_mhz") or 0,
        tdp_w=row.get("tdp_w") or 0,
        pcie_gb_s=PCIE_LANE_GB_S[pcie["gen"]] * pcie["width"],
        unified=row["unified_memory"],
        min_cuda=row.get("min_cuda") or "",
        supported=row.get("supported", True),
        confidence=row["confidence"],
        notes=tuple(row.get("notes") or ()),
        sources=tuple(row["sources"]),
    )


_SIZE = re.compile(r"(?<![a-z0-9.])(\d{1,3})\s*-?(?:gib|gb|g)(?![a-z0-9])")
_NOISE = re.compile(r"\b(nvidia|amd|geforce|tesla|generation|workstation edition|graphics|corporation)\b|\(r\)|\(tm\)")


def split_name(text: str) -> tuple[str, int | None]:
    """A typed name as its bare letters and digits, and the memory size in GB that it mentions."""
    low = re.sub(r"\bmig\b.*", "", text.lower().replace("_", "-"))
    found = _SIZE.search(low)
    if found:
        low = low[: found.start()] + " " + low[found.end() :]
    return re.sub(r"[^a-z0-9]", "", _NOISE.sub(" ", low)), int(found[1]) if found else None


def _exact(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _NOISE.sub(" ", text.lower())).replace("gib", "g").replace("gb", "g")


@cache
def rows() -> tuple[Gpu, ...]:
    """All boards, in the order of the recipes."""
    return tuple(_gpu(row) for file in load("gpus").values() for row in file["gpu"])


@cache
def _index() -> tuple[dict[str, str], dict[str, list[str]], dict[str, Gpu]]:
    """Exact spellings → id; names without a size → ids; id → board."""
    exact: dict[str, str] = {}
    bare: dict[str, list[str]] = {}
    raw = [row for file in load("gpus").values() for row in file["gpu"]]
    for row in raw:
        for spelling in (row["id"], *row.get("aliases", ())):
            exact.setdefault(_exact(spelling), row["id"])
        for spelling in (row["id"], *row["names"], *row.get("aliases", ())):
            ids = bare.setdefault(split_name(spelling)[0], [])
            if row["id"] not in ids:
                ids.append(row["id"])
    for row in raw:  # a name that one board alone carries
        for spelling in row["names"]:
            if len(bare[split_name(spelling)[0]]) == 1:
                exact.setdefault(_exact(spelling), row["id"])
    return exact, bare, {g.id: g for g in rows()}


def find(name: str, memory_mib: float | None = None) -> Gpu:
    """The board of this name; `memory_mib` (NVML's total) tells boards of one name apart and replaces the catalogue's size.

    Raises `DstuneError` with the nearest names when there is none, or when the size fits none.
    """
    exact, bare, by_id = _index()
    key, size = split_name(name)
    if memory_mib is None and (hit := exact.get(_exact(name))):
        return by_id[hit]
    ids = bare.get(key) or bare.get(re.sub(r"^(rtx|gtx)", "", key)) or []
    if not ids:
        raise _unknown(name, key, bare, by_id)
    boards = [by_id[i] for i in ids]
    if memory_mib is not None:
        nearest = min(boards, key=lambda g: abs(g.memory_mib - memory_mib))
        return replace(nearest, memory_mib=int(memory_mib))
    if size is None:
        plain = exact.get(key)
        return by_id[plain] if plain else boards[0]
    for board in boards:
        if abs(board.memory_gib - size) <= 0.06 * size or round(board.memory_mib / 1024) == size:
            return board
    sizes = ", ".join(f"{b.id} ({b.memory_gib:g} GB)" for b in boards)
    raise DstuneError(
        say(f"no {name} in the catalogue", f"目录里没有 {name}"),
        say(f"this name exists as {sizes}", f"这个名字只有：{sizes}"),
        say("name one of them", "请改用其中一个"),
    )


def _unknown(name: str, key: str, bare: dict[str, list[str]], by_id: dict[str, Gpu]) -> DstuneError:
    import difflib

    near = difflib.get_close_matches(key, list(bare), n=8, cutoff=0.6)
    near += [n for n in bare if len(key) > 1 and key in n]  # "40", "laptop"
    ids = list(dict.fromkeys(i for n in near for i in bare[n]))[:5]
    hint = ", ".join(by_id[i].label for i in ids)
    every = say("dstune estimate --list-gpus names all", "dstune estimate --list-gpus 列出全部")
    return DstuneError(
        say(f"GPU “{name}” is not in the catalogue", f"目录里没有显卡“{name}”"),
        say(f"nearest: {hint}", f"相近的有：{hint}") if hint else "",
        say(f"try --gpu {ids[0]}; {every}", f"试试 --gpu {ids[0]}；{every}") if ids else every,
    )
