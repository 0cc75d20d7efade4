"""Real failures out of public issues (tests/cases/*.yaml, each with its source): doctor's first finding is the cause.

A case holds what its user had: `log`, `app`, `command`, `container` texts and `facts`; `accept` lists further right answers.
Facts are dotted names of the vocabulary, or the short names below.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from dstune.catalog.rules import rules
from dstune.diagnose import diagnose
from dstune.model import Diagnosis, Example
from tests.support import evidence_of

FILES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
KINDS = ("log", "app", "command", "container", "config")
SHORT = {
    "gpu": "gpu.name", "n_gpus": "gpu.count", "vram_total_mb": "gpu.memory_total_mib",
    "vram_used_by_others_mb": "gpu.memory_used_by_others_mib", "compute_capability": "gpu.compute_capability",
    "unified_memory": "gpu.unified_memory", "driver": "driver.version", "driver_cuda": "driver.cuda",
    "in_container": "container.inside", "image_cuda": "container.image_cuda", "shm_mb": "container.shm_mib",
    "torch_build": "torch.build", "torch_cuda": "torch.cuda", "ram_total_mb": "host.ram_total_mib", "os": "host.os",
    "in_wsl2": "host.wsl", "in_wsl": "host.wsl", "docker_install": "docker.install",
    "nvidia_container_toolkit": "container_toolkit.installed", "power_draw_w": "gpu.power_draw_w", "xid": "gpu.xid",
    "gpu_temp_c": "gpu.temperature_c", "gpu_idle": "gpu.idle", "kernel": "host.kernel", "cgroup_version": "host.cgroup_version",
    "wsl_version": "host.wsl_version", "iommu": "host.iommu", "proxy_env": "host.proxy_env", "pydantic": "python.pydantic",
    "cuda_toolkit": "cuda_toolkit.version",
}  # fmt: skip


@cache
def cases() -> dict[str, dict[str, Any]]:
    """All cases by id."""
    found: dict[str, dict[str, Any]] = {}
    for file in FILES:
        for case in YAML(typ="safe").load(file) or []:
            assert case["id"] not in found, f"two cases are called {case['id']}"
            found[case["id"]] = case
    return found


def doctor(case: dict[str, Any]) -> Diagnosis:
    """What `dstune doctor --no-host --facts … FILES` judges."""
    facts = {SHORT.get(k, k): v for k, v in (case.get("facts") or {}).items()}
    return diagnose(evidence_of(Example("fires", facts, {k: case[k] for k in KINDS if case.get(k)})))


@pytest.mark.parametrize("name", sorted(cases()))
def test_first_finding_is_the_cause(name: str) -> None:
    case = cases()[name]
    right = {case["cause_id"], *case.get("accept", ())}
    found = doctor(case).findings
    if case["cause_id"].startswith("benign-"):
        assert not [f.cause for f in found if f.severity == "error"]
        return
    assert found, f"nothing was found; it is {case['cause_id']}"
    assert found[0].cause in right, [(f.cause, f.confidence, f.message[:120]) for f in found]


def test_cases_have_a_source_and_a_known_cause() -> None:
    known = set(rules())
    for name, case in cases().items():
        assert "#" in case["source"] or "/" in case["source"], name
        assert {case["cause_id"], *case.get("accept", ())} <= known, name
