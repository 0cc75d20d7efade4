"""The driver as the kernel shows it, and boards without a usable NVML: no library, mismatch, unified memory, Jetson."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from dstune.lang import say
from dstune.model import Fact, Gap
from dstune.probes.reading import Item, Options, facts, integer_of, line_of, listing, text_of

_UNIFIED = re.compile(r"\b(GB10|Orin|Xavier|Thor|Tegra|Jetson|nvgpu)\b", re.IGNORECASE)
_KERNEL_MODULE = re.compile(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s")


def read(options: Options) -> Iterator[Item]:
    """What /proc and /sys say of the driver and of NVIDIA devices on the bus."""
    version = text_of(options.at("/proc/driver/nvidia/version"), 4096)
    if version:
        source = "/proc/driver/nvidia/version"
        found = _KERNEL_MODULE.search(version)
        yield from facts("driver", source, loaded_version=found.group(1) if found else None)
        yield Fact("driver", "open_kernel_module", "Open Kernel Module" in version, source)
    yield Fact("driver", "module_loaded", bool(version) or os.path.isdir(options.at("/sys/module/nvidia")), "/sys/module")
    yield Fact("driver", "nouveau", os.path.isdir(options.at("/sys/module/nouveau")), "/sys/module")
    library = library_version(options)
    yield from facts("driver", "libnvidia-ml.so.1 → file name", library_version=library)
    devices = pci_gpus(options)
    if devices is not None:
        yield Fact("driver", "pci_gpus", devices, "/sys/bus/pci/devices")


def pci_gpus(options: Options) -> int | None:
    """NVIDIA display controllers on the PCI bus; None where /sys does not show the bus."""
    base = options.at("/sys/bus/pci/devices")
    if not os.path.isdir(base):
        return None
    count = 0
    for device in listing(base):
        if line_of(f"{base}/{device}/vendor") == "0x10de" and (line_of(f"{base}/{device}/class") or "").startswith("0x03"):
            count += 1
    return count


def library_version(options: Options) -> str | None:
    """Version in the file name behind libnvidia-ml.so.1 (`libnvidia-ml.so.535.54.03`)."""
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib"):
        for path in glob.glob(options.at(f"{folder}/libnvidia-ml.so.[0-9]*")):
            found = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", os.path.realpath(path))
            if found:
                return found.group(1)
    return None


def without_library(options: Options) -> Iterator[Item]:
    """No libnvidia-ml: a Jetson is read from /sys, else the gap says what is missing."""
    yield Fact("driver", "library_found", False, "dlopen libnvidia-ml.so.1")
    if (line_of(options.at("/proc/device-tree/model")) or "").startswith("NVIDIA"):
        yield from jetson(options)
        return
    devices = pci_gpus(options)
    wsl = os.path.exists(options.at("/dev/dxg"))
    if devices == 0 and not wsl and not os.path.isdir(options.at("/proc/driver/nvidia")):
        yield Fact("gpu", "count", 0, "/sys/bus/pci/devices: no NVIDIA display controller")
        yield Fact("driver", "installed", False, "dlopen libnvidia-ml.so.1, /proc/driver/nvidia")
    hint = say(
        "install the NVIDIA driver; in a container start it with `--gpus all` (capability `utility`)",
        "请安装 NVIDIA 驱动；容器需用 `--gpus all` 启动(capability 含 `utility`)",
    )
    if wsl:
        hint = say("add /usr/lib/wsl/lib to the loader path", "请把 /usr/lib/wsl/lib 加入动态库搜索路径")
    reason = say("libnvidia-ml.so.1 is not on the loader path", "动态库搜索路径中没有 libnvidia-ml.so.1")
    yield Gap("gpu", "*", reason, hint)
    for name in ("version", "cuda"):
        yield Gap("driver", name, reason, hint)


def init_failed(code: int, message: str) -> Iterator[Item]:
    """nvmlInit refused: facts of the refusal and the gap."""
    yield Fact("driver", "error", f"{code}: {message}", "nvml: Init")
    hints = {
        9: say("load the kernel module: `sudo modprobe nvidia`, or reboot", "加载内核模块：`sudo modprobe nvidia`，或重启"),
        12: say("install the driver's libraries", "请安装驱动的用户态库"),
        13: say("update the driver: it lacks nvmlInitWithFlags", "请升级驱动：缺少 nvmlInitWithFlags"),
        4: say("your user may not open /dev/nvidiactl", "当前用户无权打开 /dev/nvidiactl"),
        18: say(
            "the loaded kernel module and the installed libraries differ: reboot, or reload the nvidia modules",
            "已加载的内核模块与用户态库版本不一致：请重启，或重新加载 nvidia 模块",
        ),
    }
    reason = say(f"NVML does not start: {message}", f"NVML 初始化失败：{message}")
    if code == 18:
        yield Fact("driver", "installed", True, "nvml: Init")
        yield Fact("driver", "mismatch", True, "nvml: Init answers 18 (LIB_RM_VERSION_MISMATCH)")
    hint = hints.get(code, say("compare with `nvidia-smi`", "请与 `nvidia-smi` 对照"))
    yield Gap("gpu", "*", reason, hint)
    yield Gap("driver", "cuda", reason, hint)
    yield Gap("driver", "version", reason, hint)


def is_unified(name: str, memory_unsupported: bool) -> bool:
    """Whether CPU and GPU share one memory: known by name (GB10, Jetson), else by NVML having no memory to tell of."""
    if _UNIFIED.search(name):
        return True
    return memory_unsupported


def shared_memory(subject: str) -> Iterator[Item]:
    """Memory of a unified board from /proc/meminfo; the page cache counts as free (MemAvailable)."""
    values = meminfo(text_of("/proc/meminfo") or "")
    source = "/proc/meminfo (unified memory)"
    total, free = values.get("MemTotal"), values.get("MemAvailable")
    if total is None or free is None:
        yield Gap(subject, "memory_total_mib", say("/proc/meminfo is not readable", "无法读取 /proc/meminfo"))
        return
    yield from facts(subject, source, memory_total_mib=total, memory_free_mib=free, memory_used_mib=total - free)


def meminfo(text: str) -> dict[str, int]:
    """MiB by name out of /proc/meminfo."""
    return {m.group(1): int(m.group(2)) >> 10 for m in re.finditer(r"^(\w+(?:\(\w+\))?):\s+(\d+) kB", text, re.M)}


def jetson(options: Options) -> Iterator[Item]:
    """A Jetson without NVML: name from the device tree, load from /sys, memory from /proc/meminfo."""
    tree = "/proc/device-tree/model"
    yield Fact("gpu0", "count", 1, tree)
    yield from facts("gpu0", tree, name=line_of(options.at(tree)), unified_memory=True)
    release = line_of(options.at("/etc/nv_tegra_release")) or ""
    found = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", release)
    yield from facts("driver", "/etc/nv_tegra_release", l4t=f"{found.group(1)}.{found.group(2)}" if found else None)
    values = meminfo(text_of(options.at("/proc/meminfo")) or "")
    if "MemTotal" in values and "MemAvailable" in values:
        total, free = values["MemTotal"], values["MemAvailable"]
        yield from facts("gpu0", "/proc/meminfo", memory_total_mib=total, memory_free_mib=free, memory_used_mib=total - free)
    for path in (
        "/sys/devices/gpu.0/load",
        "/sys/devices/platform/gpu.0/load",
        "/sys/devices/platform/bus@0/17000000.gpu/load",
    ):
        load = integer_of(options.at(path))
        if load is not None:
            yield Fact("gpu0", "utilization_pct", load / 10, path)
            break
    reason = say("this Jetson release has no NVML", "该 Jetson 版本没有 NVML")
    yield Gap(
        "gpu0",
        "*",
        reason,
        say("`sudo tegrastats` shows clocks, power and temperature", "`sudo tegrastats` 可查看频率、功耗与温度"),
    )
