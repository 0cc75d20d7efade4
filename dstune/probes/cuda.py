"""CUDA toolkits and runtime libraries, read from files; only nvcc is run, for its version."""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Iterator

from dstune.model import Fact, parse_json
from dstune.probes.container import loader_folders
from dstune.probes.reading import Item, Options, facts, run, text_of
from dstune.redact import redact

_LIBRARIES = ("libcudart", "libcublas", "libcudnn", "libnccl", "libcusparseLt", "libnvrtc", "libnvJitLink")


def read(options: Options) -> Iterator[Item]:
    """Facts of `cuda_toolkit`; `version` is nvcc's, else that of /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = shutil.which("nvcc") if options.root == "/" else None
    yield Fact("cuda_toolkit", "nvcc_on_path", nvcc is not None, "PATH")
    if home is not None:
        there = os.path.isdir(home) and ":" not in home
        yield Fact("cuda_toolkit", "home", redact(home), "$CUDA_HOME")
        yield Fact("cuda_toolkit", "home_valid", there, "$CUDA_HOME")
    if nvcc is None:
        candidates = [f"{f}/bin/nvcc" for f in (home, "/usr/local/cuda") if f]
        nvcc = next((c for c in candidates if os.path.isfile(options.at(c))), None)
    yield from facts("cuda_toolkit", "PATH, $CUDA_HOME, /usr/local/cuda", nvcc=redact(nvcc) if nvcc else None)
    installed = installations(options)
    yield Fact(
        "cuda_toolkit", "installations", [f"{path} {version}" for path, version in installed], "/usr/local/cuda*/version.json"
    )
    said = run((nvcc, "--version"), 3.0) if nvcc and options.root == "/" else None
    release = re.search(r"release (\d+\.\d+), V([\d.]+)", said or "")
    main = next((v for p, v in installed if p == "/usr/local/cuda"), installed[-1][1] if installed else None)
    version, source = (release.group(2), f"{nvcc} --version") if release else (main, "version.json")
    yield Fact("cuda_toolkit", "installed", version is not None, "nvcc, /usr/local/cuda*")
    yield from facts("cuda_toolkit", source, version=version)
    found: dict[str, None] = {}
    folders = [*loader_folders(options), *(f"{p}/lib64" for p, _ in installed)]
    for folder in folders:
        for library in _LIBRARIES:
            for path in glob.glob(options.at(f"{folder}/{library}.so.*")):
                found[os.path.basename(os.path.realpath(path))] = None
    yield Fact("cuda_toolkit", "runtime_libraries", sorted(found), "loader path, toolkits")


def installations(options: Options) -> list[tuple[str, str]]:
    """(folder, version) of /usr/local/cuda*, links once, by version.json or the older version.txt, else by the name."""
    result: dict[str, tuple[str, str]] = {}
    for path in sorted(glob.glob(options.at("/usr/local/cuda*"))):
        if not os.path.isdir(path):
            continue
        version = None
        try:
            version = parse_json(text_of(f"{path}/version.json") or "")["cuda"]["version"]
        except (ValueError, KeyError, TypeError):
            found = re.search(r"CUDA Version ([\d.]+)", text_of(f"{path}/version.txt") or "")
            named = re.search(r"cuda-(\d+\.\d+)$", os.path.realpath(path))
            version = found.group(1) if found else named.group(1) if named else None
        if version:
            result.setdefault(
                os.path.realpath(path), (path if options.root == "/" else path[len(options.root) :], str(version))
            )
    return sorted(result.values(), key=lambda pair: [int(n) for n in re.findall(r"\d+", pair[1])])
