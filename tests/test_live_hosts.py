"""A look at a machine that works gives no error and no warning: inside a container with a card, and where there is no card."""

import json
from pathlib import Path

import pytest

from dstune.derive import derive
from dstune.diagnose import diagnose
from dstune.model import Evidence, Fact, Value, from_json

H200 = Path(__file__).parent / "evidence" / "h200-idle" / "ev.json"

OLDER_DRIVER: dict[str, Value] = {
    "driver.version": "535.129.03", "driver.loaded_version": "535.129.03", "driver.library_version": "535.129.03", "driver.cuda": "12.2",
    "torch.cuda": "12.8", "torch.build": "2.9.0+cu128", "python.torch": "2.9.0+cu128",
}  # fmt: skip

CONTAINERS: dict[str, dict[str, Value]] = {
    "as recorded": {},
    "image one minor version above the driver": {"container.image_cuda": "12.8.1", **OLDER_DRIVER},
    "image with cuda-compat": {"container.image_cuda": "12.8.1", "container.cuda_compat_on_loader_path": True, **OLDER_DRIVER},
    "capabilities without compute, driver library there": {"container.driver_capabilities": "utility"},
    "small /dev/shm, one card": {"container.shm_mib": 64},
    "GeForce at rest, link lowered": {"gpu0.name": "NVIDIA GeForce RTX 4090", "gpu0.pcie_gen": 1, "gpu0.pcie_gen_max": 4},
    "card whose slot has 8 lanes": {
        "gpu0.pcie_width": 8,
        "gpu0.pcie_width_max": 16,
        "gpu0.pcie_gen": 1,
        "gpu0.pcie_gen_max": 4,
    },
    "processes of other containers are not listed": {"gpu0.memory_used_mib": 90000, "gpu0.processes": 0},
    "two cards, IOMMU on": {"host.iommu": "on", "gpu0.count": 2},
    "an out-of-memory kill of last week": {"host.cgroup_oom_kills": 3},
    "PCIe replays of months": {"gpu0.pcie_replays": 5000},
    "no compiler, no toolkit": {"cuda_toolkit.installed": False, "host.c_compiler": False, "python.headers": False},
    "toolkit 13.2": {"cuda_toolkit.version": "13.2.78"},
}

NO_CARD: dict[str, Value] = {
    "driver.installed": False, "driver.module_loaded": False, "driver.nouveau": False, "driver.pci_gpus": 0,
    "driver.library_found": False, "gpu.count": 0, "host.os": "linux", "host.wsl": False, "container.libcuda": False,
    "container.libcuda_on_loader_path": False, "container.gpu_devices": [],
}  # fmt: skip

BARE: dict[str, dict[str, Value]] = {
    "container": {"container.inside": True, "container.shm_mib": 64},
    "no container": {"container.inside": False},
    "no container, no toolkit": {"container.inside": False, "container_toolkit.installed": False, "docker.installed": True},
    "torch with CUDA": {"container.inside": True, "torch.build": "2.9.0+cu130", "torch.cuda": "13.0", "torch.has_cuda": True},
    "torch without CUDA": {"container.inside": True, "torch.build": "2.9.0+cpu", "torch.has_cuda": False},
    "toolkit 13.2": {"container.inside": False, "cuda_toolkit.installed": True, "cuda_toolkit.version": "13.2.78"},
    "Docker from snap": {"container.inside": False, "docker.install": "snap", "docker.installed": True},
}


def with_facts(base: Evidence, changed: dict[str, Value]) -> Evidence:
    """The evidence with facts replaced or added, `subject.name` → value."""
    kept = [f for f in base.facts if f"{f.subject}.{f.name}" not in changed]
    fresh = [Fact(*name.split(".", 1), value, "said") for name, value in changed.items()]
    return derive(Evidence(facts=(*fresh, *kept), gaps=base.gaps))


def loud(evidence: Evidence) -> list[tuple[str, str, str]]:
    """What a person would see first: errors and warnings."""
    return [(f.cause, f.severity, f.confidence) for f in diagnose(evidence).findings if f.severity != "info"]


@pytest.mark.parametrize("name", list(CONTAINERS))
def test_container_with_a_card(name: str) -> None:
    recorded = from_json(Evidence, json.loads(H200.read_text(encoding="utf-8")))
    assert loud(with_facts(recorded, CONTAINERS[name])) == []


@pytest.mark.parametrize("name", list(BARE))
def test_machine_without_a_card(name: str) -> None:
    assert loud(with_facts(Evidence(), NO_CARD | BARE[name])) == []


def test_a_real_fault_is_still_seen() -> None:
    recorded = from_json(Evidence, json.loads(H200.read_text(encoding="utf-8")))
    assert loud(with_facts(recorded, {"torch.build": "2.9.0+cpu", "torch.has_cuda": False}))[0][0] == "torch-cpu-only-wheel"
    assert loud(with_facts(recorded, {"gpu0.xid": 79}))[0][0] == "gpu-fallen-off-bus"
