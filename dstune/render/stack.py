"""What a container is made of: base image, CUDA, driver floor, torch wheel and packages that start together.

Pure look-ups in `recipes/compat.toml` (what works with what) and `recipes/images.toml` (images by exact tag). A combination
that cannot start on the stated driver is refused with one that can.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dstune.catalog import load
from dstune.catalog.gpus import Gpu
from dstune.errors import DstuneError
from dstune.expr import Version
from dstune.lang import say


@dataclass(frozen=True, slots=True)
class Stack:
    """The container of one engine version.

    `image` is the base by exact tag; `official` says that it holds the engine already. `cuda` is the toolkit that decides over
    the driver, `driver` the oldest Linux driver that starts it, `labelled` whether the image itself refuses older ones
    (NVIDIA_REQUIRE_CUDA). `requirements` are pinned (`torch==2.10.0`), `index` is where torch comes from ("" = PyPI).
    """

    engine: str
    version: str
    image: str
    official: bool
    cuda: str
    driver: str
    labelled: bool
    program: tuple[str, ...]
    port: int
    health: str
    init_s: int
    platform: str = "linux/amd64"
    python: str = ""
    torch: str = ""
    index: str = ""
    requirements: tuple[str, ...] = ()
    jetson: bool = False


def choose(engine: str, gpu: Gpu, driver: str = "", version: str = "") -> Stack:
    """The newest combination for this card that starts on this driver ("" = unknown), or the one of `version`.

    Raises `DstuneError` naming what would start when nothing of this engine does.
    """
    if gpu.vendor.lower() != "nvidia" or not gpu.compute_capability:
        raise DstuneError(
            say(f"no container recipe for {gpu.label}", f"没有 {gpu.label} 的容器方案"),
            say("the images and wheels known here are built for NVIDIA cards", "已知的镜像与 wheel 都是为 NVIDIA 显卡构建的"),
            "dstune generate launch",
        )
    if engine not in _images()["engine"]:
        raise DstuneError(
            say(f"no container recipe for {engine}", f"没有 {engine} 的容器方案"),
            "",
            f"--engine {'|'.join(_images()['engine'])}",
        )
    if gpu.id.startswith("jetson-") and gpu.cc < (8, 7):
        raise _unfit(engine, gpu, version)
    if gpu.cc == (8, 7) and (stack := _jetson(engine, gpu, driver, version)):
        return stack
    candidates = [s for s in CANDIDATES[engine](gpu, version) if not version or Version(s.version) == version]
    candidates = [s for s in candidates if s.version == version] or candidates  # 0.8.5.post1 and 0.8.5 count as equal
    if not candidates:
        raise _unfit(engine, gpu, version)
    arm = "linux/arm64" if gpu.unified else "linux/amd64"
    for stack in candidates:
        if not driver or starts(stack, driver):
            return replace(stack, platform=arm)
    raise _refused(engine, gpu, driver, version, min(candidates, key=lambda s: Version(s.driver)))


def starts(stack: Stack, driver: str) -> bool:
    """Whether this container starts on a driver: its number reaches the floor (a bare branch, `535`, counts as the branch's releases)."""
    return reaches(driver, stack.driver)


def reaches(driver: str, floor: str) -> bool:
    """`535` reaches `535.54.03` (a branch stands for its releases), `535.43` does not."""
    have, need = Version(driver).parts, Version(floor).parts
    return have[:1] >= need[:1] if len(have) == 1 else have >= need


@cache
def cuda_of(driver: str) -> str:
    """The newest CUDA (x.y) that a Linux driver supports; "" for one older than the table."""
    rows = [r for r in _compat()["cuda_driver"] if reaches(driver, r["linux_driver_matching"])]
    return _short(max(rows, key=lambda r: Version(r["cuda"]))["cuda"]) if rows else ""


@cache
def matching_driver(cuda: str) -> str:
    """The first Linux driver of this CUDA release (x.y): what an image labelled with it asks for."""
    rows = [r["linux_driver_matching"] for r in _compat()["cuda_driver"] if _short(r["cuda"]) == _short(cuda)]
    if not rows:
        raise DstuneError(
            say(f"CUDA {cuda} is not in the compatibility table", f"兼容表里没有 CUDA {cuda}"), "", "recipes/compat.toml"
        )
    return str(min(rows, key=Version))


@cache
def family_driver(cuda: str) -> str:
    """The oldest Linux driver that runs programs of this CUDA family with machine code for the card (minor-version compatibility)."""
    rows = [r["linux_driver_min_minor_compat"] for r in _compat()["cuda_driver"] if _short(r["cuda"]) == _short(cuda)]
    return str(min(rows, key=Version)) if rows else matching_driver(cuda)


def covers(archs: list[str], ptx: list[str], cc: tuple[int, int]) -> str:
    """How a wheel reaches a card: "code" (machine code of the same major, not newer), "ptx" (compiled at start), or ""."""
    same = [a for a in (_cc(x) for x in archs) if a[0] == cc[0] and a[1] <= cc[1]]
    return "code" if same else "ptx" if any(_cc(p) <= cc for p in ptx) else ""


def _vllm(gpu: Gpu, version: str) -> list[Stack]:
    """Releases from the default one downwards; an official image, else the wheel on plain Python where the driver is too old for its label."""
    row = _images()["engine"]["vllm"]
    out: list[Stack] = []
    for r in sorted(_compat()["vllm"], key=lambda r: Version(r["vllm"]), reverse=True):
        cuda, cc = r.get("wheel_cuda"), r.get("min_cc_wheel") or "7.0"
        if not cuda or _cc(cc) > gpu.cc or (gpu.min_cuda and Version(cuda) < gpu.min_cuda):
            continue
        if not version and Version(r["vllm"]) > row["default"]:
            continue
        base = _stack("vllm", r["vllm"], row["image"].format(version=r["vllm"]), cuda, gpu, labelled=True)
        out.append(base)
        if gpu.cc < (9, 0):  # newer cards take kernels that are compiled at start by nvcc, which only the official image has
            out.append(_wheel(base, r, gpu))
    return out


def _wheel(base: Stack, row: dict[str, Any], gpu: Gpu) -> Stack:
    python = _images()["python"]["version"]
    # The oldest that is allowed is of the wheel's own time; the bound has no top, and vLLM 0.8 fails on 4.54 ("aimv2" is there twice).
    oldest = _oldest_transformers(row.get("transformers") or "")
    pins = [f"vllm=={base.version}", f"torch=={row['torch']}", *([f"transformers=={oldest}"] if oldest else [])]
    pins += _pins("vllm-wheel")
    image = _images()["python"]["image"].format(python=python)
    return replace(
        base, image=image, official=False, labelled=False, driver=_floor(family_driver(base.cuda), gpu), python=python, torch=row["torch"],
        requirements=tuple(pins),
    )  # fmt: skip


def _python(engine: str, stack: str) -> Callable[[Gpu, str], list[Stack]]:
    def candidates(gpu: Gpu, version: str) -> list[Stack]:
        """Builds of torch that have code for the card: those of CUDA 12 first, since they start on every driver from R525."""
        row = _images()["engine"][engine]
        python = _images()["python"]["version"]
        known = [r for r in _compat()["transformers_releases"] if not version or Version(r["transformers"]) == version]
        wanted = version or row["default"]
        need = (
            _at_least(known[0].get("torch_extra", ""))
            if known and version
            else _at_least(_compat()["transformers_releases"][-1]["torch_extra"])
        )
        found: list[tuple[tuple[int, ...], Stack]] = []
        for r in _compat()["torch"]:
            first, last = r["python"]
            if Version(r["torch"]) < need or Version(python) < first or Version(python) > last or r["confidence"] == "low":
                continue
            for build in r.get("cuda_builds", ()):
                if gpu.unified and build["tag"] < "cu130":
                    continue  # server-Arm wheels with CUDA for these boards come with CUDA 13
                how = covers(build["archs"], build["ptx"], gpu.cc)
                if not how:
                    continue
                cuda = f"{build['tag'][2:-1]}.{build['tag'][-1]}"
                pypi = _short(r["pypi_default_cuda"]) == cuda
                made = _stack(engine, wanted, _images()["python"]["image"].format(python=python), cuda, gpu, labelled=False)
                floor = _floor(family_driver(cuda) if how == "code" else matching_driver(cuda), gpu)
                pins = [f"torch=={r['torch']}", *_pins(stack, {"transformers": wanted, "transformers[serving]": wanted})]
                index = "" if pypi else f"https://download.pytorch.org/whl/{build['tag']}"
                made = replace(made, driver=floor, python=python, torch=r["torch"], index=index, requirements=tuple(pins))
                order = (-Version(floor).parts[0], int(pypi), *Version(r["torch"]).parts)
                found.append((order, made))
        # A wheel of PyPI is preferred to one of an index of its own: one source for everything, and nothing to keep in step.
        families = {12: 3, 13: 2, 11: 1}
        found.sort(key=lambda f: (families.get(Version(f[1].cuda).parts[0], 0), not f[1].index, f[0]), reverse=True)
        return [s for _, s in found]

    return candidates


def _released(engine: str) -> Callable[[Gpu, str], list[Stack]]:
    def candidates(gpu: Gpu, version: str) -> list[Stack]:
        row = _images()["engine"][engine]
        if _cc(row["min_cc"]) > gpu.cc:
            return []
        rows = [r for r in row["releases"] if not gpu.min_cuda or Version(r["cuda"]) >= gpu.min_cuda]
        return [_stack(engine, r["version"], r["image"], r["cuda"], gpu, labelled=True) for r in rows]

    return candidates


CANDIDATES: dict[str, Callable[[Gpu, str], list[Stack]]] = {
    "vllm": _vllm,
    "transformers": _python("transformers", "app"),
    "hf-serve": _python("hf-serve", "serve"),
    "sglang": _released("sglang"),
    "llama.cpp": _released("llama.cpp"),
}


def _jetson(engine: str, gpu: Gpu, driver: str, version: str) -> Stack | None:
    """The container of JetPack 6 for this module; None where JetPack 7 (driver R580 and later) runs the ordinary Arm image."""
    row = _images()["jetson"].get(engine)
    if driver and reaches(driver, "580") and engine == "vllm":
        return None
    if row is None or (version and Version(version) != row["version"]):
        known = ", ".join(f"{e} {r['version']}" for e, r in _images()["jetson"].items())
        raise DstuneError(
            say(
                f"no container of {engine} {version} for {gpu.label} is known".replace("  ", " "),
                f"没有已知的 {gpu.label} 用 {engine} {version} 容器",
            ),
            say("Jetson modules need images built for their L4T", "Jetson 模块需要为其 L4T 构建的镜像"),
            say(f"--engine and --engine-version of one of: {known}", f"可用：{known}"),
        )
    if driver and not reaches(driver, "540"):
        raise DstuneError(
            say(f"{engine} does not start on driver {driver}", f"{engine} 无法在驱动 {driver} 上启动"),
            say(
                "JetPack 6 (L4T R36) has driver 540; older ones have no container here",
                "JetPack 6（L4T R36）的驱动为 540；更旧的没有可用容器",
            ),
            say("flash JetPack 6 or newer", "请升级到 JetPack 6 或更新版本"),
        )
    base = _images()["engine"][engine]
    own = engine == "transformers"
    pins = _pins("app", {"transformers": row["version"]}) if own else []
    return Stack(
        engine=engine, version=row["version"], image=row["image"], official=not own, cuda=row["cuda"], driver="540", labelled=False,
        program=tuple(row["program"]), port=base["port"], health=base["health"], init_s=base["init_s"], platform="linux/arm64",
        torch=row.get("torch", ""), requirements=tuple(pins), jetson=True,
    )  # fmt: skip


def _stack(engine: str, version: str, image: str, cuda: str, gpu: Gpu, labelled: bool) -> Stack:
    row = _images()["engine"][engine]
    return Stack(
        engine=engine, version=version, image=image, official=labelled, cuda=_short(cuda), driver=_floor(matching_driver(cuda), gpu),
        labelled=labelled, program=tuple(row["program"]), port=row["port"], health=row["health"], init_s=row["init_s"],
    )  # fmt: skip


def _floor(build: str, gpu: Gpu) -> str:
    """The later of what the build needs and what first drove the card."""
    card = matching_driver(gpu.min_cuda) if gpu.min_cuda and _known(gpu.min_cuda) else build
    return max(build, card, key=Version)


def _unfit(engine: str, gpu: Gpu, version: str) -> DstuneError:
    named = f"{engine} {version}".strip()
    board = gpu.id.startswith("jetson-") and gpu.cc < (8, 7)
    others = [] if board else [f"{s.version}" for s in CANDIDATES[engine](gpu, "")][:1]
    other = say("take JetPack's own packages", "请使用 JetPack 自带的软件包") if board else _instead(gpu, "", engine)
    return DstuneError(
        say(
            f"{named} has no build for {gpu.label} (compute capability {gpu.compute_capability})",
            f"{named} 没有适用于 {gpu.label}（计算能力 {gpu.compute_capability}）的构建",
        ),
        say(
            "its wheels hold no code for this card, or the version is not in the compatibility table",
            "它的 wheel 不含该卡的代码，或兼容表里没有这个版本",
        ),
        f"--engine-version {others[0]}" if others else other,
    )


def _refused(engine: str, gpu: Gpu, driver: str, version: str, nearest: Stack) -> DstuneError:
    have = cuda_of(driver)
    own = next((s for s in CANDIDATES[engine](gpu, "") if starts(s, driver)), None)
    if own:
        instead = f"--engine-version {own.version}" + say(f" starts on driver {driver}", f" 可在驱动 {driver} 上启动")
    else:
        instead = _instead(gpu, driver, engine)
    newer = say(f"or a driver from {nearest.driver} on", f"或安装 {nearest.driver} 及以上的驱动")
    named = f"{engine} {version}".strip()
    what = say(f"{named} does not start on driver {driver}", f"{named} 无法在驱动 {driver} 上启动")
    why = say(
        f"{'the oldest build of it that dstune knows for this card' if not version else 'it'} is CUDA {nearest.cuda} and needs driver {nearest.driver}; {driver} supports CUDA {have or 'older than 11.0'}",
        f"{'已知最旧的适用版本' if not version else '它'}基于 CUDA {nearest.cuda}，需要驱动 {nearest.driver}；{driver} 最高支持 CUDA {have or '11.0 之前'}",
    )
    return DstuneError(what, why, f"{instead}; {newer}" if instead else newer)


def _instead(gpu: Gpu, driver: str, engine: str) -> str:
    """The option that names another engine which starts, or ""."""
    for other in ("vllm", "transformers", "llama.cpp"):
        if other == engine:
            continue
        found = next((s for s in CANDIDATES[other](gpu, "") if not driver or starts(s, driver)), None)
        if found:
            detail = f"torch {found.torch}, CUDA {found.cuda}" if found.torch else f"CUDA {found.cuda}"
            return f"--engine {other} ({other} {found.version}, {detail})"
    return ""


def _pins(stack: str, versions: dict[str, str] | None = None) -> list[str]:
    return [f"{name}=={(versions or {}).get(name, pin)}" for name, pin in _images()["stack"][stack].items()]


@cache
def _oldest_transformers(wanted: str) -> str:
    """The first release that a requirement allows, "" where none does. Kept: every wheel of vLLM asks, for every plan."""
    known = [r["transformers"] for r in _compat()["transformers_releases"]]
    return min((v for v in known if _satisfies(v, wanted)), key=Version, default="")


def _satisfies(version: str, wanted: str) -> bool:
    """A small reading of a requirement's commas: `<5,>=4.56.0,!=5.0.*`."""
    for part in filter(None, wanted.split(",")):
        found = re.match(r"\s*(>=|<=|==|!=|<|>)\s*([\d.]+)(\.\*)?", part)
        if not found:
            continue
        op, number, star = found[1], found[2].rstrip("."), part.strip().endswith(".*")
        mine, theirs = Version(version), Version(number)
        same = mine.parts[: len(theirs.parts)] == theirs.parts if star else mine == theirs
        ok = {">=": mine >= theirs, "<=": mine <= theirs, "==": same, "!=": not same, "<": mine < theirs, ">": mine > theirs}[
            op
        ]
        if not ok:
            return False
    return True


def _at_least(extra: str) -> str:
    """The lower bound out of `torch(!=1.12.0,>=1.11)` or `torch>=2.6`; "0" without one."""
    _, _, after = extra.partition(">=")
    return ".".join(map(str, Version(after).parts)) or "0"


def _short(cuda: str) -> str:
    return ".".join(cuda.split(".")[:2])


@cache
def _known(cuda: str) -> bool:
    return any(_short(r["cuda"]) == _short(cuda) for r in _compat()["cuda_driver"])


def _cc(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


@cache
def _compat() -> dict[str, Any]:
    return load("compat.toml")["compat"]


@cache
def _images() -> dict[str, Any]:
    return load("images.toml")["images"]


def optional(package: str) -> str:
    """The pin of a package that only some plans need."""
    return f"{package}=={_images()['stack']['optional'][package]}"
