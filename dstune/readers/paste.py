"""What people paste into a log (nvidia-smi in all its forms, torch summaries, environments, dmesg, docker, free, df) → facts.

Cheap on an ordinary log: a table of markers is looked for first, and only what is there is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dstune.model import Document, Fact, Gap
from dstune.readers.paste_env import read_bitsandbytes, read_environment, read_packages
from dstune.readers.paste_host import read_df, read_docker, read_free, read_kernel
from dstune.readers.paste_query import read_csv, read_query
from dstune.readers.paste_sheet import Sheet
from dstune.readers.paste_smi import read_cards, read_monitor, read_names
from dstune.readers.paste_torch import read_stats, read_summary

PASTES: tuple[tuple[tuple[str, ...], Callable[[Sheet], None]], ...] = (
    (("GPU UUID", "(UUID:"), read_names),
    (("NVIDIA-SMI", "MiB /", "MiB/", "Persistence-M", "Memory-Usage"), read_cards),
    (
        (
            "NVSMI LOG",
            "FB Memory Usage",
            "Attached GPUs",
            "Clocks Event Reasons",
            "Clocks Throttle Reasons",
            "Product Architecture",
        ),
        read_query,
    ),
    (
        ("--query-", "memory.total", "memory.used", "used_gpu_memory", "utilization.gpu", "driver_version", "temperature.gpu"),
        read_csv,
    ),
    (("# gpu",), read_monitor),
    (("PyTorch CUDA memory summary",), read_summary),
    (("allocated_bytes.all.",), read_stats),
    (
        ("PyTorch version", "used to build PyTorch", "`transformers` version", "PyTorch version (", "Nvidia driver version"),
        read_environment,
    ),
    (("CUDASpecs(", "PyTorch settings found", "BitsandBytes v", "bitsandbytes v"), read_bitsandbytes),
    (("==", "Package ", "Successfully installed "), read_packages),
    (("NVRM", "Kill process", "Killed process", "oom_reaper"), read_kernel),
    (
        (
            '"HostConfig"',
            '"ShmSize"',
            '"DeviceRequests"',
            "Docker Root Dir",
            '"DockerRootDir"',
            "Default Runtime:",
            "Cgroup Driver:",
        ),
        read_docker,
    ),
    (("buff/cache", "buffers/cache", "              total        used"), read_free),
    (("Use% Mounted", "Use%", "已用%"), read_df),
)
"""Markers of which one must be in the text, and the reader of that form."""


def read(document: Document) -> Iterable[Fact | Gap]:
    """Facts of the pasted tables in a log; of several readings of one thing the last counts."""
    text = document.text
    found = [reader for markers, reader in PASTES if any(m in text for m in markers)]
    if not found:
        return ()
    sheet = Sheet(document.path, text)
    for reader in found:
        reader(sheet)
    return sheet.items()
