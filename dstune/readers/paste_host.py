"""Host and container in pastes: dmesg (Xid, OOM killer), `free`, `df`, `docker inspect` and `docker info` as JSON or text."""

from __future__ import annotations

import re

from dstune.catalog.vocabulary import to_mib
from dstune.readers.paste_sheet import Sheet

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<xid>\d+)")
_MODULE = re.compile(r"(?:NVRM version: .*?|Kernel Module for \S+|Kernel Module)\s+(?P<version>\d+\.\d+(?:\.\d+)?)\s")
_KILL = re.compile(r"Kill(?:ed)? process \d+ \((?P<name>[^)]*)\)")


def read_kernel(sheet: Sheet) -> None:
    """Xid per card (by PCI address where a table names it, else in order of appearance), OOM kills, version of the module."""
    by_bus = {str(f.value).rpartition(".")[0].lstrip("0:"): f.subject for f in sheet.facts.values() if f.name == "pci_bus_id"}
    counts: dict[str, int] = {}
    killed: list[str] = []
    for line, text in sheet.having("NVRM", "Kill process", "Killed process"):
        if xid := _XID.search(text):
            bus = xid["bus"].lower().partition(".")[0].lstrip("0:")
            subject = by_bus.setdefault(bus, f"gpu{len(by_bus)}")
            counts[subject] = counts.get(subject, 0) + 1
            sheet.put(subject, "xid", int(xid["xid"]), line, text)
            sheet.put(subject, "xid_count", counts[subject], line, text)
            if int(xid["xid"]) == 79:
                sheet.put(subject, "lost", True, line, text)
        elif kill := _KILL.search(text):
            killed.append(kill["name"])
            sheet.put("host", "oom_kills", list(killed), line, text)
        elif module := _MODULE.search(text):
            sheet.put("driver", "loaded_version", module["version"], line, text)
            sheet.put("driver", "module_loaded", True, line, text)


_COLUMNS = {
    "total": "total",
    "used": "used",
    "free": "free",
    "available": "available",
    "buff/cache": "cache",
    "buffers/cache": "cache",
}
_MEMORY = {"total": "ram_total_mib", "free": "ram_free_mib", "available": "ram_available_mib", "cache": "page_cache_mib"}
_SWAP = {"total": "swap_total_mib", "used": "swap_used_mib"}


def read_free(sheet: Sheet) -> None:
    """`free` with any unit: bare numbers are GiB below 1,000, MiB below 4 million, else KiB (or bytes above 4 thousand million)."""
    columns: list[str] = []
    for line, text in sheet.lines:
        words = text.split()
        if words[:2] == ["total", "used"]:
            columns = [_COLUMNS.get(w, "") for w in words]
        elif columns and words and words[0] in ("Mem:", "Swap:", "内存：", "交换："):
            names = _MEMORY if words[0] in ("Mem:", "内存：") else _SWAP
            total = words[1] if len(words) > 1 else ""
            for column, word in zip(columns, words[1:], strict=False):
                if column in names:
                    sheet.put("host", names[column], _amount(word, total), line, text)


def _amount(word: str, total: str) -> float | None:
    if not word[-1:].isdigit():
        return to_mib(word if word[-1:] in "Bb" else word.rstrip("i") + "iB") if word[:1].isdigit() else None
    if not re.fullmatch(r"\d+(?:\.\d+)?", word):
        return None
    number, scale = float(word), float(total) if total.isdigit() else float(word)
    if scale >= 4e9:
        return number / 2**20
    if scale >= 4e6:
        return number / 1024
    return number if scale >= 1000 else number * 1024


def read_df(sheet: Sheet) -> None:
    """`df -h` (also `-T`, `-m`, `-k`): one disk per row; /dev/shm also as the host's, and the container's where / is an overlay."""
    head: list[str] = []
    unit = ""
    disk = 0
    inside = any(re.match(r"\s*overlay\s.*\s/\s*$", t) for _, t in sheet.having("overlay"))
    for line, text in sheet.lines:
        words = text.split()
        if words[:1] in (["Filesystem"], ["文件系统"]):
            head = [w for w in words if w not in ("Mounted", "on")]
            unit = (
                "KiB"
                if any("1K-blocks" in w or "1K-块" in w for w in words)
                else "MiB"
                if any("1M-blocks" in w for w in words)
                else ""
            )
        elif not head or len(words) < len(head) or not words[-1].startswith("/"):
            head = [] if head and words else head
        else:
            at = 2 if len(head) > 1 and head[1] in ("Type", "类型") else 1
            total, free = _size(words[at], unit), _size(words[at + 2], unit)
            mount = words[-1]
            if mount == "/dev/shm":
                sheet.put("host", "shm_total_mib", total, line, text)
                sheet.put("host", "shm_free_mib", free, line, text)
                if inside:
                    sheet.put("container", "shm_mib", total, line, text)
                    sheet.put("container", "inside", True, line, text)
                continue
            if total is None or words[0] in ("tmpfs", "devtmpfs", "udev", "shm", "none") or words[0].startswith("/dev/loop"):
                continue
            subject = f"disk{disk or ''}"
            sheet.put(subject, "mount", mount, line, text)
            sheet.put(subject, "filesystem", words[1] if at == 2 else None, line, text)
            sheet.put(subject, "total_mib", total, line, text)
            sheet.put(subject, "free_mib", free, line, text)
            disk += 1


def _size(word: str, unit: str) -> float | None:
    if not word[:1].isdigit():
        return None
    if word[-1].isdigit():
        return to_mib(word + unit) if unit else (0.0 if word == "0" else None)
    return to_mib(word if word[-1] in "Bb" else word.rstrip("i") + "iB")


_INSPECT: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), subject, name)
    for pattern, subject, name in (
        (r'"?CUDA_VERSION=(?P<value>\d[\d.]*)', "container", "image_cuda"),
        (r'"?NVIDIA_VISIBLE_DEVICES=(?P<value>[\w,:.-]+)', "container", "visible_devices"),
        (r'"?NVIDIA_DRIVER_CAPABILITIES=(?P<value>[\w,]+)', "container", "driver_capabilities"),
        (r'"?NVIDIA_REQUIRE_CUDA=(?P<value>[^"\n]+)', "container", "require_cuda"),
        (r'"Runtime": *"(?P<value>[\w.-]+)"', "docker", "runtime"),
        (r'"IpcMode": *"(?P<value>[\w:.-]+)"', "docker", "ipc"),
        (r'"PidMode": *"(?P<value>[\w:.-]+)"', "docker", "pid"),
        (r'"NetworkMode": *"(?P<value>[\w:.-]+)"', "docker", "network"),
        (r'"Privileged": *(?P<value>true|false)', "docker", "privileged"),
        (r"^\s*Server Version: (?P<value>\d[\w.+-]*)", "docker", "version"),
        (r'"ServerVersion": *"(?P<value>\d[\w.+-]*)"', "docker", "version"),
        (r"^\s*Default Runtime: (?P<value>\S+)", "docker", "default_runtime"),
        (r'"DefaultRuntime": *"(?P<value>[^"]+)"', "docker", "default_runtime"),
        (r"^\s*Cgroup Driver: (?P<value>\S+)", "docker", "cgroup_driver"),
        (r'"CgroupDriver": *"(?P<value>[^"]+)"', "docker", "cgroup_driver"),
        (r"^\s*Cgroup Version: (?P<value>\d)", "host", "cgroup_version"),
        (r'"CgroupVersion": *"(?P<value>\d)"', "host", "cgroup_version"),
        (r"^\s*Docker Root Dir: (?P<value>\S+)", "docker", "data_root"),
        (r'"DockerRootDir": *"(?P<value>[^"]+)"', "docker", "data_root"),
        (r"^\s*Kernel Version: (?P<value>\S+)", "host", "kernel"),
        (r'"KernelVersion": *"(?P<value>[^"]+)"', "host", "kernel"),
        (r"^\s*Total Memory: (?P<value>[\d.]+[KMGT]iB)", "host", "ram_total_mib"),
    )
)


def read_docker(sheet: Sheet) -> None:
    """Line by line, so that cut or prefixed JSON is read too."""
    inspected = '"HostConfig"' in sheet.text or '"ShmSize"' in sheet.text
    for line, text in sheet.lines:
        if '"' not in text and ":" not in text and "rootless" not in text:
            continue
        for pattern, subject, name in _INSPECT:
            if found := pattern.search(text):
                sheet.put(subject, name, found["value"], line, text)
        if inspected:
            _inspected(sheet, line, text)
        if runtimes := re.search(r"^\s*Runtimes: (?P<names>.+)$", text):
            _runtimes(sheet, runtimes["names"].split(), line, text)
        elif runtimes := re.search(r'"Runtimes": *\{(?P<names>.*)', text):
            names = re.findall(r'"([\w.-]+)": *\{', runtimes["names"])
            _runtimes(sheet, names or (["nvidia"] if '"nvidia":' in sheet.text else []), line, text)
        elif (
            "rootless" in text
            and ("Security" in sheet.text or '"SecurityOptions"' in sheet.text)
            and re.fullmatch(r'\s*"?(?:name=)?rootless"?,?\s*', text)
        ):
            sheet.put("docker", "rootless", True, line, text)
    root = sheet.facts.get(("docker", "data_root"))
    if root is not None and "/snap/" in str(root.value):
        sheet.put("docker", "install", "snap", root.line or 0, root.text)
    kernel = sheet.facts.get(("host", "kernel"))
    if kernel is not None and "microsoft" in str(kernel.value).lower():
        sheet.put("host", "wsl", True, kernel.line or 0, kernel.text)


def _inspected(sheet: Sheet, line: int, text: str) -> None:
    if shm := re.search(r'"ShmSize": *(\d+)', text):
        sheet.put("container", "shm_mib", int(shm[1]) / 2**20, line, text)
        sheet.put("container", "inside", True, line, text)
    elif (memory := re.search(r'"Memory": *(\d+)', text)) and memory[1] != "0":
        sheet.put("docker", "memory_mib", int(memory[1]) / 2**20, line, text)
    elif devices := re.search(r'"DeviceRequests": *(null|\[)', text):
        asked = devices[1] != "null" and "[]" not in text
        other = re.search(r'"Runtime": *"nvidia|"Privileged": *true|/dev/(?:nvidia|dxg|kfd|dri)|nvidia\.com/gpu', sheet.text)
        sheet.put("docker", "gpu_requested", asked or other is not None, line, text)


def _runtimes(sheet: Sheet, names: list[str], line: int, text: str) -> None:
    sheet.put("docker", "installed", True, line, text)
    sheet.put("docker", "runtimes", names, line, text)
    sheet.put("docker", "nvidia_runtime", any("nvidia" in n for n in names), line, text)
