"""How a container is started → facts of family `docker`: shared by `docker run`, compose services and Kubernetes containers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dstune.catalog.vocabulary import terms
from dstune.model import Value
from dstune.readers import image as images
from dstune.readers.given import given
from dstune.readers.launch import Launch

_CACHES = {"vllm": "/root/.cache/huggingface", "sglang": "/root/.cache/huggingface", "tgi": "/data", "ollama": "/root/.ollama"}
_LOCAL = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?[^\s,;'\"]*")
MODEL_SERVERS = frozenset(("vllm", "sglang", "tgi", "llamacpp", "ollama", "lmdeploy", "hfserve"))


@dataclass(slots=True)
class Container:
    """What is asked of the container runtime. `settings` are `docker.*` names without the family; `env` variables by name."""

    settings: dict[str, Value] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    launch: Launch | None = None
    gpu_request: str = ""
    """How GPUs are asked for besides the settings (`deploy`, `cdi`, `limits`), "" = not."""
    gpu_count: int | None = None
    """Cards that a reservation of compose names; None = all, or not said."""


def derived(it: Container) -> Iterator[tuple[str, Value]]:
    """(name, value) of the derived facts of family `docker`."""
    settings, launch = it.settings, it.launch
    reference = str(settings.get("image") or "")
    image = images.parse(reference)
    engine = (launch.engine if launch else "") or (image.engine if image else "")
    asked = request(it)
    gpu = images.gpu_of(reference)
    wants = _wants(gpu, engine, it)
    yield "gpu_request", asked or "none"
    yield "gpu_requested", bool(asked)
    if (cards := _cards(it)) is not None:
        yield "gpu_count", cards
    if wants is not None:
        yield "needs_gpu", wants
    if engine:
        yield "engine", engine
    if gpu:
        yield "image_gpu", gpu
    if image is not None:
        if gpu not in ("none", ""):
            yield "image_floating", image.floating
        if image.cuda:
            yield "image_cuda", image.cuda_line
            if floor := images.driver_floor(image.cuda):
                yield "driver_min", floor
        if images.end_of_life(image):
            yield "image_end_of_life", True
        if image.version and engine in ("vllm", "sglang"):
            yield "engine_version", image.version
        if image.program and launch is not None and launch.program and _repeats(image.program, launch):
            yield "repeats_entrypoint", image.program
    ipc = str(settings.get("ipc") or "")
    yield "ipc_host", ipc in ("host", "shareable") or ipc.startswith(("container:", "service:"))
    yield from _cache(it, engine)
    yield from _addresses(it, engine)


def request(it: Container) -> str:
    """The form in which a GPU is asked for ("" = none is)."""
    s, env = it.settings, it.env
    items = s.get("devices")
    devices = " ".join(map(str, items)) if isinstance(items, list) else str(items or "")
    if it.gpu_request:
        return it.gpu_request
    if str(s.get("gpus") or "").strip() not in ("", "0", "none", "None"):
        return "gpus"
    if "nvidia" in str(s.get("runtime") or ""):
        return "runtime nvidia"
    if "nvidia.com/gpu" in devices:
        return "cdi"
    if re.search(r"gpu|nvidia", str(s.get("generic_resource") or ""), re.I):
        return "generic resources"
    if "/dev/nvidia" in devices or "/dev/dxg" in devices:
        return "devices"
    if re.search(r"/dev/(kfd|dri|davinci|accel|mali|renderD)|amd\.com/gpu|intel\.com", devices):
        return "other vendor"
    if s.get("privileged"):
        return "privileged"
    visible = env.get("NVIDIA_VISIBLE_DEVICES", "")
    return "environment" if visible and visible not in ("void", "none") else ""


def _cards(it: Container) -> int | None:
    """How many cards the container is given; None where all of them, or where it is not said."""
    found = [it.gpu_count] if it.gpu_count is not None else []
    asked = str(it.settings.get("gpus") or "").strip("'\" ")
    if re.fullmatch(r"\d+", asked):
        found.append(int(asked))
    elif named := re.search(r"device=([\w,:.-]+)", asked):
        found.append(len([d for d in named[1].split(",") if d]))
    if re.fullmatch(r"\d+(?:,\d+)*", visible := it.env.get("NVIDIA_VISIBLE_DEVICES", "").replace(" ", "")):
        found.append(len(visible.split(",")))
    return min(found, default=None)


def _wants(gpu: str, engine: str, it: Container) -> bool | None:
    """Whether it needs an NVIDIA GPU; None = cannot be said."""
    words = [w.text for w in it.launch.args] if it.launch else []
    text = " ".join(words)
    if gpu in ("cpu", "none", "rocm", "xpu"):
        return False
    if (
        re.search(r"--device[ =]cpu\b", text)
        or it.env.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        or it.env.get("VLLM_TARGET_DEVICE") == "cpu"
    ):
        return False
    if it.env.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none"):
        return False
    if it.launch is not None and it.launch.program in ("pip", "python", "nvcc"):
        return None
    if gpu == "cuda" and (
        engine in MODEL_SERVERS or it.launch is None or not it.launch.program or "nvidia-smi" in it.launch.program
    ):
        return True
    if gpu == "cuda":
        return True
    return True if engine in ("vllm", "sglang") else None


def _repeats(program: str, launch: Launch) -> bool:
    """Whether the arguments name the program that the image's entry point starts already."""
    return launch.named and launch.program in {"vllm serve": ("vllm serve", "vllm openai", "vllm"), "ollama": ("ollama serve", "ollama run"),
        "text-generation-launcher": ("tgi",), "llama-server": ("llama-server",)}.get(program, ())  # fmt: skip


def targets(volumes: Value) -> list[str]:
    """Folders in the container that mounts cover."""
    found: list[str] = []
    for volume in volumes if isinstance(volumes, list) else [volumes] if volumes else []:
        text = str(volume)
        if match := re.search(r"(?:target|dst|destination)=([^,]+)", text):
            found.append(match[1])
        elif colon := re.search(r":(/[^:]*|~[^:]*)(?::[\w,]+)?$", text):
            found.append(colon[1])
        elif text.startswith("/"):
            found.append(text)
    return [f.rstrip("/") or "/" for f in found]


def _cache(it: Container, engine: str) -> Iterator[tuple[str, Value]]:
    """Whether the folder that the engine downloads models to outlives the container."""
    folder = _CACHES.get(engine, "")
    env = it.env
    if engine in ("vllm", "sglang"):
        folder = env.get("HF_HUB_CACHE") or env.get("HF_HOME") or env.get("TRANSFORMERS_CACHE") or folder
        if env.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
            folder = env.get("MODELSCOPE_CACHE", "/root/.cache/modelscope")
    elif engine == "tgi":
        folder = env.get("HUGGINGFACE_HUB_CACHE") or env.get("HF_HOME") or folder
    model = ""
    for setting in given(engine, it.launch.args) if it.launch and engine else ():
        name = setting.term.name.partition(".")[2]
        if name == "download_dir":
            folder = str(setting.value)
        if name in ("model", "model_path", "model_id"):
            model = str(setting.value)
    if it.launch and not model and it.launch.args and not it.launch.args[0].text.startswith("-"):
        model = it.launch.args[0].text
    model = model or env.get("MODEL_ID", "")
    home = str(it.settings.get("user") or "root").split(":")[0]
    if (
        not folder
        or (home not in ("root", "0") and "/root/" in folder)
        or (engine != "ollama" and (not model or model.startswith(("/", ".", "$", "<"))))
    ):
        return
    mounts = targets(it.settings.get("volumes"))
    yield "cache_folder", folder
    yield (
        "cache_mounted",
        any(folder == m or folder.startswith(m.rstrip("/") + "/") or m.startswith(folder.rstrip("/") + "/") for m in mounts),
    )
    yield "cache_other_mounts", ", ".join(mounts)


def _names_server(name: str, value: str) -> bool:
    """Whether a variable tells a program where a model server is (and no browser where this site is)."""
    if re.search(
        r"NEXT_PUBLIC|VITE_|REACT_APP|CORS|PUBLIC|FRONTEND|CALLBACK|REDIRECT|WEBUI_URL|PROXY|HEALTH|ORIGIN", name.upper()
    ):
        return False
    return bool(
        re.search(r"OPENAI|OLLAMA|VLLM|LLM|SGLANG|INFERENCE|LITELLM|EMBED|TGI|LMSTUDIO", name.upper())
        or re.search(r":11434|/v1\b", value)
    )


def _addresses(it: Container, engine: str) -> Iterator[tuple[str, Value]]:
    """Addresses that mean the container itself where another machine is meant, and servers that nobody outside can reach."""
    network = str(it.settings.get("network") or "")
    yield "network_host", network == "host"
    if network != "host" and not network.startswith(("container:", "service:")):
        words = [w.text for w in it.launch.args] if it.launch else []
        sources = [f"{k}={v}" for k, v in it.env.items() if _names_server(k, v)]
        for text in [*sources, *words]:
            if (
                (found := _LOCAL.search(text))
                and engine not in MODEL_SERVERS
                and "healthcheck" not in text
                and "curl" not in words
            ):
                yield "localhost_url", found[0]
                break
    published = it.settings.get("publish")
    yield "publishes", bool(published) or network == "host"
    if engine in ("vllm", "sglang") and network != "host" and (wrong := _unheard(it, engine)):
        yield "published_port", wrong[0]
        yield "listens_port", wrong[1]


def _unheard(it: Container, engine: str) -> tuple[int, int] | None:
    """(port of the container that is published, port that the engine listens on) where no mapping leads to the engine."""
    items = it.settings.get("publish")
    targets = []
    for item in items if isinstance(items, list) else [items] if items else []:
        found = re.fullmatch(r"(?:.*:)?(\d+)(?:/tcp)?", str(item).strip("'\" "))
        if found is None:
            return None  # a range, a variable, UDP
        targets.append(int(found[1]))
    port: Value = terms()[f"{engine}.port"].spec.get("default")
    words = it.launch.args if it.launch else []
    if any("$" in w.text for w in words):
        return None
    port = next((g.value for g in given(engine, words) if g.term.name == f"{engine}.port"), port)
    if not targets or not isinstance(port, int | float) or int(port) in targets:
        return None
    return targets[0], int(port)


def accumulate(settings: dict[str, Value], name: str, value: Value) -> None:
    """A setting that may be given several times joins its list."""
    old = settings.get(name)
    settings[name] = [*old, *value] if isinstance(old, list) and isinstance(value, list) else value


def environment(pairs: Sequence[str]) -> dict[str, str]:
    """`["A=b", "C"]` → `{"A": "b"}`."""
    return {k: v.strip("'\"") for k, m, v in (p.partition("=") for p in pairs) if m}
