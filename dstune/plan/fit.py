"""What exists and fits: engine, number format and attention against a card and a version, with the reason where not."""

from __future__ import annotations

from dstune.catalog import load
from dstune.catalog.gpus import Gpu
from dstune.model import Text
from dstune.plan import physics, quant
from dstune.plan.ask import Ask
from dstune.plan.memory import Memory, memory

HARDWARE_MARGIN_MIB = 256
"""Left free beside the plan: a driver's housekeeping and what a few large requests fragment."""

_FP8_NATIVE, _MARLIN, _BF16, _FA2 = (8, 9), (8, 0), (8, 0), (8, 0)


def engine_reason(engine: str, gpu: Gpu, version: str = "") -> Text | None:
    """Why an engine's official builds do not run on this card, or None."""
    if not gpu.supported:
        return _text(f"{gpu.name} is beyond every current driver and wheel", f"{gpu.name} 已不被任何现行驱动和安装包支持")
    cc = gpu.compute_capability
    if gpu.vendor != "NVIDIA":
        if engine == "llama.cpp" or (engine in ("vllm", "transformers") and gpu.architecture.startswith("CDNA")):
            return None
        return _text(f"no official {engine} build for {gpu.architecture}", f"{engine} 没有面向 {gpu.architecture} 的官方构建")
    if engine == "vllm":
        need = str(physics.value("vllm", "min_cc", version))
        if gpu.cc < physics.numbers(need):
            return _text(
                f"vLLM wheels need compute capability {need}, this card has {cc}",
                f"vLLM 安装包要求计算能力 {need}，该卡为 {cc}",
            )
        if gpu.id.startswith("jetson"):
            return _text(
                "no vLLM wheel on PyPI covers a Jetson; only vendor containers do",
                "PyPI 上的 vLLM 不含 Jetson，只有厂商容器可用",
            )
    if engine == "sglang":
        need = str(physics.value("sglang", "min_cc"))
        if gpu.cc < physics.numbers(need) or gpu.id.startswith("jetson"):
            return _text(f"SGLang's FlashInfer needs compute capability {need}", f"SGLang 的 FlashInfer 要求计算能力 {need}")
    if engine == "transformers" and gpu.id.startswith("jetson"):
        return _text(
            "torch wheels of PyPI are not for Jetson (L4T); only the vendor's are",
            "PyPI 的 torch 不支持 Jetson（L4T），只有厂商构建可用",
        )
    if engine == "transformers" and not torch_build(gpu):
        return _text(f"no current torch wheel holds code for {cc}", f"现行 torch 安装包不含 {cc} 的代码")
    return None


def torch_build(gpu: Gpu) -> str:
    """Tag of the newest torch build (`2.11.0+cu130`) whose wheels hold code for this card, "" for none."""
    if not gpu.cc[0]:
        return "rocm" if gpu.vendor == "AMD" else ""
    for row in reversed(load("compat.toml")["compat"]["torch"]):
        for build in reversed(row.get("cuda_builds") or ()):
            if any(_covers(physics.numbers(arch), gpu.cc) for arch in build["archs"]):
                return f"{row['torch']}+{build['tag']}"
    return ""


def _covers(arch: tuple[int, ...], cc: tuple[int, int]) -> bool:
    """Machine code for X.y runs on X.z with z >= y (compat.toml, cubin_rule)."""
    return len(arch) == 2 and arch[0] == cc[0] and arch[1] <= cc[1]


def newest_vllm(gpu: Gpu, driver_cuda: str = "") -> str:
    """The newest vLLM release whose wheels run on this card (and under a driver of this CUDA version), "" for none."""
    if gpu.vendor != "NVIDIA":
        return str(physics.table("vllm")["version"]["latest"])
    for row in reversed(load("compat.toml")["compat"]["vllm"]):
        version = row["vllm"]
        if driver_cuda and physics.numbers(row["wheel_cuda"])[:1] > physics.numbers(driver_cuda)[:1]:
            continue
        if gpu.cc >= physics.numbers(row.get("min_cc_wheel") or str(physics.value("vllm", "min_cc", version))):
            return str(version)
    return ""


def driver_floor(version: str) -> tuple[str, str]:
    """(CUDA of a vLLM release's wheel, oldest Linux driver that runs it); ("", "") for an unknown release."""
    compat = load("compat.toml")["compat"]
    cuda = next((str(r["wheel_cuda"]) for r in compat["vllm"] if r["vllm"] == version), "")
    family = f"{cuda.split('.')[0]}.x"
    floors = {r["family"]: r["linux_min"] for r in compat["cuda_minor_version_compatibility"]["rows"]}
    return cuda, floors.get(family, "")


def dtype_reason(dtype: str, gpu: Gpu) -> Text | None:
    """Why a dtype is not for this card."""
    if dtype == "bfloat16" and gpu.vendor == "NVIDIA" and gpu.cc < _BF16:
        return _text(
            f"bfloat16 needs compute capability 8.0, this card has {gpu.compute_capability}: float16",
            f"bfloat16 要求计算能力 8.0，该卡为 {gpu.compute_capability}，应用 float16",
        )
    return None


def scheme_reason(scheme: str, engine: str, gpu: Gpu, version: str = "") -> Text | None:
    """Why a number format does not run under this engine on this card, or None."""
    if not scheme:
        return None
    kind, cc, have = quant.kernel(scheme), gpu.cc, gpu.compute_capability or gpu.architecture
    if kind == "gguf" or scheme == "F16":
        return None if engine == "llama.cpp" else _text(f"{scheme} files are for llama.cpp", f"{scheme} 文件属于 llama.cpp")
    if engine == "llama.cpp":
        return _text(f"llama.cpp reads GGUF, not {scheme}", f"llama.cpp 读取 GGUF，不读取 {scheme}")
    floors = {"w4": (7, 5), "w8": (7, 5), "fp8": (7, 5), "bnb4": (6, 0), "bnb8": (7, 5)}
    if engine == "vllm" and kind in ("bnb4", "bnb8") and physics.release("vllm", version) >= (0, 33):
        return _text("vLLM 0.33 has no bitsandbytes method", "vLLM 0.33 已不支持 bitsandbytes")
    if gpu.vendor == "NVIDIA" and cc < floors[kind]:
        need = ".".join(map(str, floors[kind]))
        return _text(
            f"{scheme} kernels need compute capability {need}, this card has {have}",
            f"{scheme} 内核要求计算能力 {need}，该卡为 {have}",
        )
    if scheme == "nvfp4" and cc < (10, 0):
        return _text(f"NVFP4 needs Blackwell, this card has {have}", f"NVFP4 需要 Blackwell，该卡为 {have}")
    return None


def fp8_native(gpu: Gpu) -> bool:
    """Whether the card multiplies fp8 (Ada, Hopper, Blackwell); others only store it."""
    return gpu.cc >= _FP8_NATIVE


def can_compile(gpu: Gpu) -> bool:
    """Whether torch.compile has a back end here (its warning: Triton needs compute capability 7.0)."""
    return gpu.vendor != "NVIDIA" or gpu.cc >= (7, 0)


def flash2_reason(gpu: Gpu) -> Text | None:
    """Why FlashAttention-2 does not run here, or None."""
    if gpu.vendor == "NVIDIA" and gpu.cc < _FA2:
        return _text(
            f"FlashAttention-2 needs compute capability 8.0, this card has {gpu.compute_capability}",
            f"FlashAttention-2 要求计算能力 8.0，该卡为 {gpu.compute_capability}",
        )
    return None


def fits(ask: Ask) -> tuple[bool, Memory]:
    """Whether the configuration fits its card (for vLLM and SGLang: its pool also holds one whole sequence)."""
    mem = memory(ask)
    ok = mem.room_mib >= HARDWARE_MARGIN_MIB
    if mem.kv_tokens is not None:
        ok = ok and mem.kv_tokens >= max(ask.max_len, ask.prompt + 1)
    return ok, mem


def _text(en: str, zh: str) -> Text:
    return {"en": en, "zh": zh}
