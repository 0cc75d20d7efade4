"""The host: memory, processors, kernel, limits, disks. The one door to psutil."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dstune.lang import say
from dstune.model import Fact, Gap
from dstune.probes import kernel_log
from dstune.probes.reading import Item, Options, facts, integer_of, line_of, listing, numbered, text_of
from dstune.redact import redact

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def probe(options: Options) -> Iterator[Item]:
    """Everything about the machine that is not the GPU."""
    yield from _system(options)
    yield from _memory(options)
    yield from _processors(options)
    yield from cgroup(options)
    yield from _limits()
    yield from environment(os.environ)
    yield from _tools(options)
    yield from disks(options)
    log = kernel_log.read(options)
    if log is None:
        hint = say("sudo dmesg | grep -i 'out of memory'", "执行 sudo dmesg | grep -i 'out of memory'")
        yield Gap("host", "oom_kills", say("the kernel log is not readable for this user", "当前用户无权读取内核日志"), hint)
    else:
        yield Fact("host", "oom_kills", kernel_log.oom_kills(log[0])[-20:], log[1])


def _system(options: Options) -> Iterator[Item]:
    yield Fact("host", "os", platform.system().lower(), "uname")
    release = text_of(options.at("/etc/os-release")) or ""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', release, re.M)
    yield from facts("host", "/etc/os-release", distribution=found.group(1) if found else None)
    kernel = line_of(options.at("/proc/sys/kernel/osrelease")) or platform.release()
    yield Fact("host", "kernel", kernel, "/proc/sys/kernel/osrelease")
    yield Fact("host", "architecture", platform.machine(), "uname")
    version = wsl_version(kernel, os.path.exists(options.at("/dev/dxg")))
    yield Fact("host", "wsl", version > 0, "/proc/sys/kernel/osrelease")
    if version:
        yield Fact("host", "wsl_version", version, "/proc/sys/kernel/osrelease")
        yield Fact("host", "wsl_gpu", os.path.exists(options.at("/dev/dxg")), "/dev/dxg")
    flags = text_of(options.at("/proc/cpuinfo"), 16384) or ""
    yield Fact("host", "virtual", bool(re.search(r"^flags\s*:.*\bhypervisor\b", flags, re.M)), "/proc/cpuinfo")
    groups = options.at("/sys/kernel/iommu_groups")
    if os.path.isdir(groups):
        source = "/sys/kernel/iommu_groups, /proc/cmdline"
        yield Fact("host", "iommu", iommu(line_of(options.at("/proc/cmdline")) or "", bool(listing(groups))), source)
    else:
        yield Gap("host", "iommu", say("/sys/kernel/iommu_groups is not there", "没有 /sys/kernel/iommu_groups"))


def iommu(command_line: str, groups: bool) -> str:
    """`off`, `passthrough` or `on`: groups exist only when an IOMMU is active; `iommu=pt` gives devices their own addresses."""
    if not groups:
        return "off"
    return "passthrough" if re.search(r"\biommu=pt\b|\biommu\.passthrough=1\b", command_line) else "on"


def wsl_version(kernel: str, dxg: bool) -> int:
    """0: not WSL. WSL 1 says `4.4.0-19041-Microsoft`, WSL 2 `5.15.153.1-microsoft-standard-WSL2`."""
    low = kernel.lower()
    if "microsoft" not in low:
        return 0
    return 2 if dxg or "wsl2" in low or "microsoft-standard" in low else 1


def _memory(options: Options) -> Iterator[Item]:
    from dstune.probes.nvidia_system import meminfo

    values = meminfo(text_of(options.at("/proc/meminfo")) or "")
    if "MemTotal" in values:
        yield from facts(
            "host",
            "/proc/meminfo",
            ram_total_mib=values["MemTotal"],
            ram_available_mib=values.get("MemAvailable"),
            ram_free_mib=values.get("MemFree"),
            page_cache_mib=values.get("Cached"),
            swap_total_mib=values.get("SwapTotal"),
            swap_used_mib=values.get("SwapTotal", 0) - values.get("SwapFree", 0),
        )
        return
    yield from _psutil("ram_total_mib", lambda psutil: psutil.virtual_memory().total >> 20)
    yield from _psutil("ram_available_mib", lambda psutil: psutil.virtual_memory().available >> 20)
    yield from _psutil("swap_total_mib", lambda psutil: psutil.swap_memory().total >> 20)
    yield from _psutil("swap_used_mib", lambda psutil: psutil.swap_memory().used >> 20)


def _psutil(name: str, ask: Callable[[Any], int | None]) -> Iterator[Item]:
    """A reading where /proc has none; importing psutil costs 20 ms, so nothing else goes through it."""
    try:
        import psutil

        value = ask(psutil)
    except Exception as error:  # not installed, or a platform that it cannot read
        yield Gap("host", name, f"psutil: {error}")
        return
    yield from facts("host", "psutil", **{name: value})


def _processors(options: Options) -> Iterator[Item]:
    yield from facts("host", "os.cpu_count", cpu_count=os.cpu_count())
    topology = text_of(options.at("/proc/cpuinfo"), 4 << 20) or ""
    cores = set(re.findall(r"^physical id\s*: (\d+)$.*?^core id\s*: (\d+)$", topology, re.M | re.S))
    if cores:
        yield Fact("host", "cpu_physical", len(cores), "/proc/cpuinfo")
    else:
        yield from _psutil("cpu_physical", lambda psutil: psutil.cpu_count(logical=False))
    if hasattr(os, "sched_getaffinity"):
        yield Fact("host", "cpu_usable", len(os.sched_getaffinity(0)), "sched_getaffinity")
    found = re.search(r"^model name\s*:\s*(.+)", text_of(options.at("/proc/cpuinfo"), 16384) or "", re.M)
    yield from facts("host", "/proc/cpuinfo", cpu_model=found.group(1).strip() if found else None)
    load = (line_of(options.at("/proc/loadavg")) or "").split()
    if len(load) > 2:
        yield from facts("host", "/proc/loadavg", load_1m=float(load[0]), load_5m=float(load[1]))
    governor = line_of(options.at("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    yield from facts("host", "/sys/devices/system/cpu/cpu0/cpufreq", cpu_governor=governor or None)


def cgroup(options: Options) -> Iterator[Item]:
    """Limits that the control group sets: memory and processor time, version 1 or 2."""
    base = options.at("/sys/fs/cgroup")
    if not os.path.isdir(base):
        yield Gap("host", "cgroup_version", say("/sys/fs/cgroup is not mounted", "/sys/fs/cgroup 未挂载"))
        return
    unified = os.path.exists(f"{base}/cgroup.controllers")
    yield Fact("host", "cgroup_version", 2 if unified else 1, "/sys/fs/cgroup")
    if unified:
        folder = _own_group(options, base, "")
        limit, used = _lowest(base, folder, "memory.max"), integer_of(f"{folder}/memory.current")
        quota = (line_of(f"{folder}/cpu.max") or "max").split()
        cores = int(quota[0]) / int(quota[1]) if len(quota) == 2 and quota[0].isdigit() else None
        kills = re.search(r"^oom_kill (\d+)", text_of(f"{folder}/memory.events") or "", re.M)
        source = folder.removeprefix(options.root if options.root != "/" else "") or "/sys/fs/cgroup"
    else:
        folder = _own_group(options, f"{base}/memory", "memory")
        limit, used = _lowest(f"{base}/memory", folder, "memory.limit_in_bytes"), integer_of(f"{folder}/memory.usage_in_bytes")
        processor = _own_group(options, f"{base}/cpu", "cpu")
        share, period = integer_of(f"{processor}/cpu.cfs_quota_us"), integer_of(f"{processor}/cpu.cfs_period_us")
        cores = share / period if share and period and share > 0 else None
        kills = re.search(r"^oom_kill (\d+)", text_of(f"{folder}/memory.oom_control") or "", re.M)
        source = "/sys/fs/cgroup/memory"
    if limit is not None and limit >= 1 << 60:  # version 1 writes 2**63 rounded to a page for "none"
        limit = None
    yield Fact("host", "cgroup_limited", limit is not None, source)
    yield from facts("host", source, cgroup_memory_limit_mib=None if limit is None else limit >> 20)
    yield from facts("host", source, cgroup_memory_used_mib=None if used is None else used >> 20)
    yield from facts("host", source, cgroup_cpu_cores=cores, cgroup_oom_kills=int(kills.group(1)) if kills else None)


def _own_group(options: Options, base: str, controller: str) -> str:
    """Folder of our own group. In a container the tree is often mounted at our group: then the base itself."""
    for line in (text_of(options.at("/proc/self/cgroup")) or "").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if controller in names.split(",") if controller else names == "":
            folder = os.path.normpath(f"{base}/{path}")
            return folder if os.path.isdir(folder) else base
    return base


def _lowest(base: str, folder: str, name: str) -> int | None:
    """The smallest limit from our group up to the root of the tree."""
    limits = []
    while folder.startswith(base):
        value = integer_of(f"{folder}/{name}")
        if value is not None:
            limits.append(value)
        folder = os.path.dirname(folder)
    return min(limits, default=None)


def _limits() -> Iterator[Item]:
    if sys.platform == "win32":
        return
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield from facts("host", "getrlimit", nofile_limit=None if soft == resource.RLIM_INFINITY else soft)
    memlock = getattr(resource, "RLIMIT_MEMLOCK", None)
    if memlock is not None:
        soft, _ = resource.getrlimit(memlock)
        endless = soft == resource.RLIM_INFINITY
        yield Fact("host", "memlock_unlimited", endless, "getrlimit")
        yield from facts("host", "getrlimit", memlock_limit_mib=None if endless else round(soft / 2**20, 2))


def environment(env: Mapping[str, str]) -> Iterator[Item]:
    """What the environment decides for CUDA, PyTorch and the hub. Of proxies only the names: their values hold passwords."""
    source = "environment"
    proxies = sorted(name for name in env if name.lower() in _PROXIES and env[name])
    yield Fact("host", "proxy_env", ", ".join(proxies) or "none", source)
    if proxies:
        exempt = {h.strip().lstrip(".") for h in (env.get("no_proxy") or env.get("NO_PROXY") or "").split(",")}
        yield Fact("host", "no_proxy_loopback", "*" in exempt or bool(exempt & set(_LOOPBACK)), "no_proxy")
    names = {
        "cuda_visible_devices": "CUDA_VISIBLE_DEVICES",
        "hf_endpoint": "HF_ENDPOINT",
        "hf_home": "HF_HOME",
        "pytorch_alloc_conf": "PYTORCH_CUDA_ALLOC_CONF",
        "torch_cuda_arch_list": "TORCH_CUDA_ARCH_LIST",
        "ld_library_path": "LD_LIBRARY_PATH",
        "cuda_launch_blocking": "CUDA_LAUNCH_BLOCKING",
    }
    for fact, name in names.items():
        if name in env:
            yield Fact("host", fact, redact(env[name]), f"${name}")
    if "PYTORCH_ALLOC_CONF" in env and "PYTORCH_CUDA_ALLOC_CONF" not in env:
        yield Fact("host", "pytorch_alloc_conf", env["PYTORCH_ALLOC_CONF"], "$PYTORCH_ALLOC_CONF")
    offline = any(env.get(n, "").upper() in ("1", "ON", "YES", "TRUE") for n in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    yield Fact("host", "hf_offline", offline, "$HF_HUB_OFFLINE, $TRANSFORMERS_OFFLINE")
    yield Fact("host", "hf_token_set", bool(env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN")), "$HF_TOKEN")


def _tools(options: Options) -> Iterator[Item]:
    import shutil

    compiler = next((p for p in (os.environ.get("CC") or "cc", "gcc", "clang") if shutil.which(p)), None)
    yield Fact("host", "c_compiler", compiler is not None, "PATH: $CC, cc, gcc, clang")
    loopback = text_of(options.at("/etc/hosts")) or ""
    found = re.search(r"^\s*::1\s+.*\blocalhost\b", loopback, re.M)
    yield Fact("host", "localhost_ipv6", bool(found), "/etc/hosts")


def disks(options: Options) -> Iterator[Item]:
    """Free space where models and caches go, each file system once; network and Windows mounts are named."""
    home = os.path.expanduser("~")
    hub = os.environ.get("HF_HUB_CACHE") or os.path.join(os.environ.get("HF_HOME") or f"{home}/.cache/huggingface", "hub")
    scope = os.environ.get("MODELSCOPE_CACHE") or f"{home}/.cache/modelscope"
    places = [("hf_cache", hub), ("modelscope_cache", scope), ("tmp", os.environ.get("TMPDIR") or "/tmp")]
    places += [("working_directory", _cwd()), ("docker", "/var/lib/docker")]
    places += [("model", folder) for folder in options.model_dirs]
    table = mounts(text_of(options.at("/proc/self/mounts")) or "")
    by_mount: dict[str, tuple[str, str, list[str]]] = {}
    for use, path in places:
        there = _existing(options.at(path))
        if use == "docker" and there != options.at(path):
            continue
        where, kind = _mount_of(os.path.realpath(there), table)
        by_mount.setdefault(where, (there, kind, []))[2].append(use)
    for number, (where, (there, kind, uses)) in enumerate(by_mount.items()):
        subject = numbered("disk", number)
        try:
            room = os.statvfs(there)
        except OSError as error:
            yield Gap(subject, "free_mib", f"statvfs {redact(there)}: {error.strerror}")
            continue
        yield from facts(
            subject,
            f"statvfs {redact(there)}",
            mount=redact(where),
            uses=uses,
            filesystem=kind or None,
            network=bool(
                re.match(r"nfs|cifs|smb|fuse\.(sshfs|s3|goofys|juicefs|gcs|ceph|gluster)|lustre|ceph|9p|beegfs|gpfs", kind)
            ),
            total_mib=room.f_blocks * room.f_frsize >> 20,
            free_mib=room.f_bavail * room.f_frsize >> 20,
            free_inodes_pct=round(100 * room.f_favail / room.f_files, 1) if room.f_files else None,
        )
    yield from _shared_memory(options)


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # the folder is gone
        return "/"


def _shared_memory(options: Options) -> Iterator[Item]:
    try:
        room = os.statvfs(options.at("/dev/shm"))
    except OSError:
        yield Gap("host", "shm_total_mib", say("/dev/shm is not there", "没有 /dev/shm"))
        return
    size, free = room.f_blocks * room.f_frsize >> 20, room.f_bavail * room.f_frsize >> 20
    yield from facts("host", "statvfs /dev/shm", shm_total_mib=size, shm_free_mib=free)


def _existing(path: str) -> str:
    while path != "/" and not os.path.exists(path):
        path = os.path.dirname(path)
    return path or "/"


def mounts(text: str) -> list[tuple[str, str]]:
    """(mount point, file system) out of /proc/self/mounts, longest first."""
    rows = [line.split() for line in text.splitlines()]
    pairs = [(r[1].replace("\\040", " "), r[2]) for r in rows if len(r) > 2]
    return sorted(pairs, key=lambda pair: len(pair[0]), reverse=True)


def _mount_of(path: str, table: list[tuple[str, str]]) -> tuple[str, str]:
    for where, kind in table:
        if path == where or path.startswith(where.rstrip("/") + "/"):
            return where, kind
    return "/", ""
