"""What an image reference says: name, tag, whose GPU it is for, which CUDA, which engine its entry point already starts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dstune.catalog import load
from dstune.expr import Version

_SERVERS = (
    # (image, engine, words its entry point already runs). Sources: vllm docker/Dockerfile, tgi Dockerfile, ggml-org/llama.cpp .devops,
    # ollama Dockerfile, InternLM/lmdeploy docker/Dockerfile (no entry point), sglang docker/Dockerfile (no entry point)
    (r"(?:^|/)vllm/vllm-openai(?:-\w+)?$|(?:^|/)vllm-openai(?:-\w+)?$", "vllm", "vllm serve"),
    (r"(?:^|/)rocm/vllm(?:-\w+)?$|(?:^|/)intel/vllm$|nvcr\.io/nvidia/vllm$", "vllm", ""),
    (r"(?:^|/)lmsysorg/sglang$|(?:^|/)sglang$", "sglang", ""),
    (r"text-generation-inference$", "tgi", "text-generation-launcher"),
    (r"ggml-org/llama\.cpp$|ggerganov/llama\.cpp$", "llamacpp", ""),
    (r"(?:^|/)ollama/ollama$", "ollama", "ollama"),
    (r"openmmlab/lmdeploy$", "lmdeploy", ""),
)
_NO_GPU = re.compile(
    r"(?:^|/)(?:nginx|postgres|redis|mongo|mysql|mariadb|busybox|alpine|caddy|traefik|grafana/|prom/|open-webui/|node:|adminer|minio/|qdrant/|rabbitmq)"
)
_CUDA = re.compile(r"(?:cuda|cu)[-_]?(\d{2})\.?(\d)(?:\.(\d+))?(?!\d)")


@dataclass(frozen=True, slots=True)
class Image:
    """A parsed reference. `gpu` is cuda, rocm, xpu, cpu or "" (not known); `program` what its entry point starts ("" = nothing known).

    `cuda` is what the name says, else what its release has at least.
    """

    text: str
    name: str
    tag: str
    digest: str
    gpu: str
    cuda: str
    engine: str
    program: str
    version: str

    @property
    def cuda_line(self) -> str:
        """CUDA as major.minor, which is what a driver is asked for."""
        return ".".join(self.cuda.split(".")[:2])

    @property
    def floating(self) -> bool:
        """Whether the reference may mean another image tomorrow."""
        return not self.digest and (
            self.tag in ("", "latest", "nightly", "main", "master", "dev", "stable", "server-cuda", "server", "full-cuda")
        )


def parse(text: str) -> Image | None:
    """The reference in a text; None for what is a variable or a placeholder."""
    text = text.strip().strip("'\"")
    if not text or re.search(r"[\s$]", text):
        return None
    rest, _, digest = text.partition("@")
    head, slash, last = rest.rpartition("/")
    name, _, tag = last.partition(":")
    name = f"{head}{slash}{name}".lower()
    whole = f"{name}:{tag}".lower()
    engine, program = next(((e, p) for pattern, e, p in _SERVERS if re.search(pattern, name)), ("", ""))
    if engine == "llamacpp":
        program = "llama-server" if "server" in tag else ""
    cuda = _CUDA.search(whole)
    version = re.search(r"\d+(?:\.\d+)*", f"{cuda[1]}.{cuda[2]}" + (f".{cuda[3]}" if cuda[3] else "")) if cuda else None
    if version is None and re.search(r"(?:^|/)nvidia/cuda$|(?:^|/)cuda$", name):
        version = re.match(r"\d+\.\d+(?:\.\d+)?", tag)
    gpu = _gpu(name, tag, engine)
    release = (
        re.search(r"v?(\d+\.\d+(?:\.\d+)?(?:\.post\d+|rc\d+)?)", tag)
        if engine in ("vllm", "sglang", "tgi", "ollama", "lmdeploy")
        else None
    )
    number = release[1] if release else ""
    built = version[0] if version else _of_release(engine, number) if gpu == "cuda" else ""
    return Image(text, name, tag, digest, gpu, built, engine, program, number)


def _of_release(engine: str, release: str) -> str:
    """CUDA of an engine's release whose tag does not say it: that of its wheel, which its image is at least ("" = not in the table)."""
    rows = load("compat.toml").get("compat", {}).get("vllm", ()) if engine == "vllm" else ()
    return next((str(row["wheel_cuda"]) for row in rows if row["vllm"] == release), "")


def _gpu(name: str, tag: str, engine: str) -> str:
    whole = f"{name}:{tag}".lower()
    if re.search(r"rocm|[-_:]amd\b", whole):
        return "rocm"
    if re.search(r"xpu|intel|ipex|openvino|hpu|gaudi|sycl", whole):
        return "xpu"
    if re.search(r"[-_:/]cpu\b", whole):
        return "cpu"
    if re.search(r"cuda|nvcr\.io/nvidia|(?:^|/)nvidia/|[-_]gpu\b|cudnn|[-_:]cu1\d\d", whole):
        return "cuda"
    if engine in ("vllm", "sglang", "tgi", "lmdeploy"):
        return "cuda"
    if engine == "llamacpp":
        return "cpu"
    return "none" if _NO_GPU.search(f"{whole}") else ""


def driver_floor(cuda: str, windows: bool = False) -> str:
    """The oldest driver that a CUDA runtime works with under minor-version compatibility ("" = not in the table)."""
    system = "windows" if windows else "linux"
    best = ""
    for row in load("compat.toml").get("compat", {}).get("cuda_driver", ()):
        if ".".join(row["cuda"].split(".")[:2]) == ".".join(cuda.split(".")[:2]):
            best = best or str(row.get(f"{system}_driver_min_minor_compat", ""))
    return best


def end_of_life(image: Image) -> bool:
    """Whether this is an nvidia/cuda tag of a CUDA release that NVIDIA no longer builds and may remove (12.1 and older).

    Source: hub.docker.com/r/nvidia/cuda, "Unsupported tags".
    """
    return bool(re.search(r"(?:^|/)nvidia/cuda$", image.name) and image.cuda and Version(image.cuda) < Version("12.2"))


def gpu_of(text: str) -> str:
    """Whose GPU an image (or a placeholder for one, `<cuda image>`) is for: cuda, rocm, xpu, cpu, none or ""."""
    image = parse(text)
    return image.gpu if image is not None else _gpu(text.lower(), "", "")
