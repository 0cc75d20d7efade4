"""One fixed configuration: what is asked about."""

from __future__ import annotations

from dataclasses import dataclass

from dstune.catalog.gpus import Gpu
from dstune.catalog.models import ModelSpec
from dstune.plan import physics

ENGINES = ("transformers", "vllm", "llama.cpp", "sglang")
GIB = 2**30
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Ask:
    """A model on a card under an engine with its settings. Lengths in tokens, memory in MiB; 0 or "" means the engine's default.

    `batch` is how many sequences run at once, `prompt` and `output` their lengths. `total_mib` is what the driver leaves to CUDA
    (torch's total), `others_mib` what other processes hold on the card. `gpu_layers` is llama.cpp's -ngl (-1: all). `arrival` is `steady`
    (a closed loop in its stride) or `all at once`. `host_launch_us`: what one kernel launch of an eager loop costs this host, where measured. `cudnn`: sdpa
    takes torch's cuDNN kernels (its choice on Hopper) and not the flash ones.
    """

    engine: str
    gpu: Gpu
    model: ModelSpec
    version: str = ""
    gpus: int = 1
    dtype: str = "bfloat16"
    scheme: str = ""
    prompt: int = 512
    output: int = 512
    batch: int = 1
    attention: str = ""
    cache: str = "dynamic"
    kv_dtype: str = ""
    utilization: float = 0.0
    max_len: int = 0
    max_seqs: int = 0
    batched_tokens: int = 0
    eager: bool = False
    lora: bool = False
    chunked: bool | None = None
    total_mib: float = 0.0
    others_mib: float = 0.0
    gpu_layers: int = -1
    layers_on_cpu: int = 0
    cpu_offload_mib: float = 0.0
    split: str = ""
    load: str = "device_map"
    expandable: bool = False
    all_logits: bool = False
    parallel: int = 0
    micro_batch: int = 0
    steps: int = 1
    arrival: str = "steady"
    host_launch_us: float = 0.0
    cudnn: bool = False
    block: int = 0

    @property
    def total(self) -> float:
        """MiB that CUDA sees on one card."""
        return self.total_mib or visible_mib(self.gpu)

    @property
    def length(self) -> int:
        """Tokens of one sequence at its end."""
        return self.prompt + self.output

    @property
    def v1(self) -> bool:
        """Whether this vLLM is the V1 engine: its version's default, or what the version text says (`0.10.0 (V0)`)."""
        if self.engine != "vllm":
            return False
        word = self.version.lower()
        return "v1" in word or (physics.value("vllm", "engine", word) == "v1" and "v0" not in word)

    @property
    def generation(self) -> str:
        """The version that stands for this vLLM where V0 and V1 differ: a V0 of 0.8.3 to 0.10 profiles as 0.8.2, an early V1 as 0.8.3."""
        if self.engine == "vllm" and self.v1 != (physics.value("vllm", "engine", self.version) == "v1"):
            return "0.8.3" if self.v1 else "0.8.2"
        return self.version

    def at_least(self, version: str) -> bool:
        """Whether the engine's version is this one or newer."""
        return physics.release(self.engine, self.version) >= physics.numbers(version)


def visible_mib(gpu: Gpu) -> float:
    """What the driver leaves to CUDA of a card's memory: NVML's total less its reserve."""
    if gpu.unified:
        return float(gpu.memory_mib)
    if dies(gpu) > 1:
        return float(gpu.memory_mib) / dies(gpu)
    reserve = (
        physics.value("common", "driver_reserve_base")
        + physics.value("common", "driver_reserve_per_gib") * gpu.memory_mib / 1024
    )
    return float(gpu.memory_mib - min(reserve, physics.value("common", "driver_reserve_max")))


def dies(gpu: Gpu) -> int:
    """Devices that one board shows (the MI250 is two; its catalogue row holds both)."""
    return 2 if gpu.id == "mi250" else 1
