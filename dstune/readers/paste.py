"""What people paste into a log (nvidia-smi in all its forms, torch summaries, environments, dmesg, docker, free, df) → facts.

Cheap on an ordinary log: a table of markers is looked for first, and only what is there is parsed, by modules that are loaded then.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from dstune.model import Document, Fact, Gap

PASTES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("GPU UUID", "(UUID:"), "paste_smi", "read_names"),
    (("NVIDIA-SMI", "MiB /", "MiB/", "Persistence-M", "Memory-Usage"), "paste_smi", "read_cards"),
    (
        (
            "NVSMI LOG",
            "FB Memory Usage",
            "Attached GPUs",
            "Clocks Event Reasons",
            "Clocks Throttle Reasons",
            "Product Architecture",
        ),
        "paste_query",
        "read_query",
    ),
    (
        ("--query-", "memory.total", "memory.used", "used_gpu_memory", "utilization.gpu", "driver_version", "temperature.gpu"),
        "paste_query",
        "read_csv",
    ),
    (("# gpu",), "paste_smi", "read_monitor"),
    (("PyTorch CUDA memory summary",), "paste_torch", "read_summary"),
    (("allocated_bytes.all.",), "paste_torch", "read_stats"),
    (
        ("PyTorch version", "used to build PyTorch", "`transformers` version", "PyTorch version (", "Nvidia driver version"),
        "paste_env",
        "read_environment",
    ),
    (("CUDASpecs(", "PyTorch settings found", "BitsandBytes v", "bitsandbytes v"), "paste_env", "read_bitsandbytes"),
    (("==", "Package ", "Successfully installed "), "paste_env", "read_packages"),
    (("NVRM", "Kill process", "Killed process", "oom_reaper"), "paste_host", "read_kernel"),
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
        "paste_host",
        "read_docker",
    ),
    (("buff/cache", "buffers/cache", "              total        used"), "paste_host", "read_free"),
    (("Use% Mounted", "Use%", "已用%"), "paste_host", "read_df"),
)
"""Markers of which one must be in the text, and the reader of that form."""


def read(document: Document) -> Iterable[Fact | Gap]:
    """Facts of the pasted tables in a log; of several readings of one thing the last counts."""
    text = document.text
    found = [where for markers, *where in PASTES if any(m in text for m in markers)]
    if not found:
        return ()
    from dstune.readers.paste_sheet import Sheet

    sheet = Sheet(document.path, text)
    for module, reader in found:
        getattr(importlib.import_module(f"dstune.readers.{module}"), reader)(sheet)
    return sheet.items()
