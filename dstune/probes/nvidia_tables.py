"""What is asked of NVML, by name: readings, the bits of the clock-event reasons, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dstune.lang import say
from dstune.model import Gap

NOT_SUPPORTED, NO_PERMISSION, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, LOST, RESET_REQUIRED, MISMATCH = 3, 4, 12, 13, 15, 16, 18
NO_INSTANCE = 0xFFFFFFFF
"""`gpuInstanceId` of a process on a card without MIG."""
_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
}
_ARCHITECTURES |= {13: "Rubin"}
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_EVENT_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of nvmlClocksEventReasons (nvml.h); the last two are NVML's older names."""

Convert = Callable[[Any], Any]
_W: Convert = lambda mw: round(mw / 1000, 1)  # noqa: E731
_MIB_S: Convert = lambda kb: round(kb / 1024, 1)  # noqa: E731
_SAME: Convert = lambda value: value  # noqa: E731

READINGS: tuple[tuple[str, str, tuple[int, ...], Convert], ...] = (
    ("compute_capability", "CudaComputeCapability", (), lambda v: f"{v[0]}.{v[1]}"),
    ("architecture", "Architecture", (), lambda v: _ARCHITECTURES.get(v, str(v))),
    ("cuda_cores", "NumGpuCores", (), _SAME),
    ("memory_bus_bits", "MemoryBusWidth", (), _SAME),
    ("clock_sm_mhz", "ClockInfo", (1,), _SAME),
    ("clock_sm_max_mhz", "MaxClockInfo", (1,), _SAME),
    ("clock_graphics_mhz", "ClockInfo", (0,), _SAME),
    ("clock_graphics_max_mhz", "MaxClockInfo", (0,), _SAME),
    ("clock_memory_mhz", "ClockInfo", (2,), _SAME),
    ("clock_memory_max_mhz", "MaxClockInfo", (2,), _SAME),
    ("power_draw_w", "PowerUsage", (), _W),
    ("power_limit_w", "EnforcedPowerLimit", (), _W),
    ("power_default_limit_w", "PowerManagementDefaultLimit", (), _W),
    ("power_max_limit_w", "PowerManagementLimitConstraints", (), lambda v: _W(v[1])),
    ("temperature_c", "Temperature", (0,), _SAME),
    ("temperature_shutdown_c", "TemperatureThreshold", (0,), _SAME),
    ("temperature_slowdown_c", "TemperatureThreshold", (1,), _SAME),
    ("temperature_memory_max_c", "TemperatureThreshold", (2,), _SAME),
    ("temperature_max_c", "TemperatureThreshold", (3,), _SAME),
    ("fan_pct", "FanSpeed", (), _SAME),
    ("pcie_gen", "CurrPcieLinkGeneration", (), _SAME),
    ("pcie_gen_max", "MaxPcieLinkGeneration", (), _SAME),
    ("pcie_width", "CurrPcieLinkWidth", (), _SAME),
    ("pcie_width_max", "MaxPcieLinkWidth", (), _SAME),
    ("pcie_replays", "PcieReplayCounter", (), _SAME),
    ("pcie_tx_mib_s", "PcieThroughput", (0,), _MIB_S),
    ("pcie_rx_mib_s", "PcieThroughput", (1,), _MIB_S),
    ("ecc", "EccMode", (), lambda v: bool(v[0])),
    ("ecc_pending", "EccMode", (), lambda v: bool(v[1])),
    ("ecc_corrected", "TotalEccErrors", (0, 0), _SAME),
    ("ecc_uncorrected", "TotalEccErrors", (1, 0), _SAME),
    ("ecc_corrected_lifetime", "TotalEccErrors", (0, 1), _SAME),
    ("ecc_uncorrected_lifetime", "TotalEccErrors", (1, 1), _SAME),
    ("rows_remapped", "RemappedRows", (), lambda v: v[0] + v[1]),
    ("row_remap_pending", "RemappedRows", (), lambda v: bool(v[2])),
    ("row_remap_failed", "RemappedRows", (), lambda v: bool(v[3])),
    ("persistence", "PersistenceMode", (), bool),
    ("compute_mode", "ComputeMode", (), lambda v: _COMPUTE_MODES.get(v, str(v))),
    ("display_active", "DisplayActive", (), bool),
)
"""fact, NVML function without `nvmlDeviceGet`, its arguments, conversion."""


def reasons(mask: int) -> list[str]:
    """Names of the bits that are set; a bit without a name is shown as `bit_0x…`."""
    named = [name for bit, name in _EVENT_REASONS.items() if mask & bit]
    rest = mask & ~sum(_EVENT_REASONS)
    return named + [f"bit_{1 << i:#x}" for i in range(rest.bit_length()) if rest >> i & 1]


def code_of(error: Exception) -> int:
    """NVML's return code in an exception; a symbol this pynvml or driver lacks counts as "function not found"."""
    if isinstance(error, AttributeError) or type(error).__name__ == "NVMLLibraryMismatchError":
        return FUNCTION_NOT_FOUND
    return int(getattr(error, "value", 999))


def gap(subject: str, name: str, error: Exception) -> Gap:
    """The gap that an NVML error means."""
    code = code_of(error)
    texts = {
        NOT_SUPPORTED: (
            say("this card or driver does not report it (Not Supported)", "该显卡或驱动不提供此项(Not Supported)"),
            "",
        ),
        NO_PERMISSION: (
            say("not permitted here (Insufficient Permissions)", "当前用户无权读取(Insufficient Permissions)"),
            say("run as root or on the host", "请用 root 或在宿主机上运行"),
        ),
        FUNCTION_NOT_FOUND: (
            say(
                "the driver is older than this NVML call (Function Not Found)",
                "驱动版本过旧，没有该 NVML 函数(Function Not Found)",
            ),
            say("update the driver", "请升级驱动"),
        ),
        LOST: (
            say("the GPU has fallen off the bus (GPU is lost)", "GPU 已从总线掉线(GPU is lost)"),
            say(
                "look for Xid 79 in `sudo dmesg`; reboot, then check power and seating",
                "用 `sudo dmesg` 查找 Xid 79；重启后检查供电与插槽",
            ),
        ),
        RESET_REQUIRED: (
            say("the GPU needs a reset (GPU requires restart)", "GPU 需要复位(GPU requires restart)"),
            say("`sudo nvidia-smi --gpu-reset` or reboot", "执行 `sudo nvidia-smi --gpu-reset` 或重启"),
        ),
    }
    fallback = (
        say(f"NVML answers: {error}", f"NVML 返回：{error}"),
        say("compare with `nvidia-smi -q`", "请与 `nvidia-smi -q` 对照"),
    )
    reason, hint = texts.get(code, fallback)
    return Gap(subject, name, reason, hint)
