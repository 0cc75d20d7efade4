"""GPUs through the real pynvml against a stand-in libnvidia-ml.so.1: healthy, throttled, sliced, lost, mismatched, stuck boards."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dstune.catalog.vocabulary import normalise, terms
from dstune.model import Evidence, family_of, from_json
from dstune.probes import kernel_log, nvidia, nvidia_system
from dstune.probes.reading import Options

HERE = Path(__file__).parent / "fakenvml"
COLLECT = """
import json, sys
from dstune.model import to_json
from dstune.probes import collect
print(json.dumps(to_json(collect(["nvidia"], deadline_s=float(sys.argv[1])))))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the stand-in library: of today, and as an old driver has it."""
    if not shutil.which("gcc"):
        pytest.fail("these tests need gcc: it builds the stand-in NVML library")
    folders = {}
    for name, flags in (("new", []), ("old", ["-DOLD_DRIVER"])):
        folders[name] = tmp_path_factory.mktemp(f"nvml-{name}")
        target = folders[name] / "libnvidia-ml.so.1"
        soname = "-Wl,-soname,libnvidia-ml.so.1"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", soname, *flags, "-o", target, HERE / "fakenvml.c"], check=True)
    return folders


@pytest.fixture
def probe(library: dict[str, Path]) -> Callable[..., Evidence]:
    """`probe("t4")`: the evidence of a snapshot, read by a fresh interpreter that must not write a traceback."""

    def run(snapshot: str, build: str = "new", deadline_s: float = 20) -> Evidence:
        env = {
            **os.environ,
            "FAKENVML": str(HERE / f"{snapshot}.ini"),
            "LD_LIBRARY_PATH": str(library[build]),
            "LANG": "C.UTF-8",
        }
        done = subprocess.run(
            [sys.executable, "-c", COLLECT, str(deadline_s)], capture_output=True, text=True, env=env, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return from_json(Evidence, json.loads(done.stdout))

    return run


def card(evidence: Evidence, subject: str = "gpu0") -> dict[str, object]:
    return {f.name: f.value for f in evidence.facts if f.subject == subject}


def gaps(evidence: Evidence, subject: str = "gpu0") -> dict[str, str]:
    return {g.name: g.reason for g in evidence.gaps if g.subject == subject}


def test_healthy_t4(probe: Callable[..., Evidence]) -> None:
    evidence = probe("t4")
    gpu = card(evidence)
    assert gpu["name"] == "Tesla T4"
    assert gpu["compute_capability"] == "7.5"
    assert gpu["architecture"] == "Turing"
    assert (gpu["memory_total_mib"], gpu["memory_used_mib"], gpu["memory_reserved_mib"]) == (15360, 0, 443)
    assert gpu["memory_free_mib"] == 15360 - 443
    assert gpu["clock_event_reasons"] == ["gpu_idle"]
    assert gpu["idle"] is True
    assert (gpu["power_draw_w"], gpu["power_limit_w"]) == (9.8, 70.0)
    assert (gpu["pcie_gen"], gpu["pcie_gen_max"], gpu["pcie_width"], gpu["pcie_width_max"]) == (1, 3, 8, 16)
    assert gpu["ecc"] is True
    assert gpu["unified_memory"] is False
    assert gpu["lost"] is False
    assert gpu["count"] == 1
    assert "fan_pct" in gaps(evidence)
    driver = card(evidence, "driver")
    assert (driver["version"], driver["cuda"], driver["mismatch"]) == ("535.183.01", "12.2", False)


def test_identifiers_are_hashed(probe: Callable[..., Evidence]) -> None:
    text = json.dumps([f.value for f in probe("t4").facts])
    assert "31111111-2222" not in text


def test_v2_memory_leaves_the_reserve_out_of_used(probe: Callable[..., Evidence]) -> None:
    gpu = card(probe("rtx4090"))
    assert (gpu["memory_used_mib"], gpu["memory_reserved_mib"]) == (21504, 348)
    assert gpu["clock_event_reasons"] == ["sw_power_cap"]
    assert gpu["pcie_width"] == 8


def test_thermal_slowdown_names_every_reason(probe: Callable[..., Evidence]) -> None:
    gpu = card(probe("rtx4090-thermal"))
    assert gpu["clock_event_reasons"] == ["hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown"]
    assert (gpu["clock_sm_mhz"], gpu["clock_sm_max_mhz"]) == (900, 3105)
    assert (gpu["temperature_c"], gpu["temperature_slowdown_c"], gpu["temperature_memory_c"]) == (91, 90, 104)


def test_mig_slices_and_a_lost_card(probe: Callable[..., Evidence]) -> None:
    evidence = probe("h100-mig")
    gpu = card(evidence)
    assert gpu["mig"] is True
    assert gpu["mig_slices"] == ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"]
    assert gpu["mig_slice_total_mib"] == [9856, 40448]
    assert gpu["mig_slice_free_mib"] == [9844, 20448]
    assert gpu["nvlinks"] == 18
    assert "utilization_pct" in gaps(evidence)
    assert card(evidence, "gpu1")["lost"] is True
    assert "lost" in gaps(evidence, "gpu1")["*"]


def test_lost_card_beside_a_healthy_one(probe: Callable[..., Evidence]) -> None:
    evidence = probe("h100-lost")
    assert card(evidence)["memory_used_mib"] == 74210
    assert card(evidence, "gpu1")["lost"] is True
    assert "memory_total_mib" not in card(evidence, "gpu1")


def test_card_lost_while_it_is_read_keeps_what_was_said(probe: Callable[..., Evidence]) -> None:
    evidence = probe("lost-midway")
    gpu = card(evidence)
    assert gpu["name"] == "NVIDIA GeForce RTX 3090"
    assert gpu["memory_total_mib"] == 24576
    assert gpu["lost"] is True
    assert "temperature_c" not in gpu


def test_mismatch_of_module_and_libraries(probe: Callable[..., Evidence]) -> None:
    evidence = probe("mismatch")
    driver = card(evidence, "driver")
    assert driver["mismatch"] is True
    assert str(driver["error"]).startswith("18:")
    assert "*" in gaps(evidence, "gpu")
    assert "reboot" in next(g.hint for g in evidence.gaps if g.subject == "gpu")


def test_unified_memory_board_counts_host_memory(probe: Callable[..., Evidence]) -> None:
    evidence = probe("gb10")
    gpu = card(evidence)
    assert gpu["unified_memory"] is True
    assert gpu["compute_capability"] == "12.1"
    host = nvidia_system.meminfo(Path("/proc/meminfo").read_text())
    assert gpu["memory_total_mib"] == host["MemTotal"]
    assert 0 < int(str(gpu["memory_free_mib"])) <= host["MemTotal"]
    assert "bar1_total_mib" in gaps(evidence)


def test_foreign_memory_is_told_apart(probe: Callable[..., Evidence]) -> None:
    evidence = probe("two-3090-foreign")
    gpu, other = card(evidence), card(evidence, "gpu1")
    assert gpu["count"] == other["count"] == 2
    assert gpu["processes"] == 2
    listed = [f.value for f in evidence.find("process", "memory_mib")]
    assert listed == [18000, 2000]
    if "memory_used_by_others_mib" in gpu:  # absent in a PID namespace of our own, where it cannot be known
        assert gpu["memory_used_by_others_mib"] == 20000
        assert gpu["memory_unattributed_mib"] == 300
        assert other["memory_used_by_others_mib"] == 0
    else:
        assert "memory_used_by_others_mib" in gaps(evidence)


def test_laptop_card_and_unknown_process_memory(probe: Callable[..., Evidence]) -> None:
    evidence = probe("laptop-3060")
    assert card(evidence)["memory_total_mib"] == 6144
    assert {"power_limit_w", "power_default_limit_w", "fan_pct"} <= gaps(evidence).keys()
    assert "memory_used_by_others_mib" in gaps(evidence)
    assert "memory_mib" in gaps(evidence, "process")


def test_old_driver_without_newer_symbols(probe: Callable[..., Evidence]) -> None:
    evidence = probe("old-driver", build="old")
    gpu = card(evidence)
    assert gpu["memory_used_mib"] == 700
    assert gpu["clock_event_reasons"] == ["gpu_idle"]
    assert gpu["processes"] == 1
    assert "older than this NVML call" in gaps(evidence)["memory_reserved_mib"]
    source = next(f.source for f in evidence.facts if f.name == "memory_used_mib")
    assert "v1" in source


@pytest.mark.slow
def test_driver_that_stops_answering_becomes_a_gap(probe: Callable[..., Evidence]) -> None:
    start = time.monotonic()
    evidence = probe("stuck", deadline_s=3)
    assert time.monotonic() - start < 15
    assert card(evidence)["memory_total_mib"] == 24564
    assert "no answer within" in gaps(evidence)["*"]


SNAPSHOTS = sorted(p.stem for p in HERE.glob("*.ini") if p.stem != "stuck")


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
def test_every_fact_is_in_the_vocabulary_and_of_its_type(snapshot: str, probe: Callable[..., Evidence]) -> None:
    evidence = probe(snapshot)
    assert evidence.facts
    for fact in evidence.facts:
        name = f"{family_of(fact.subject)}.{fact.name}"
        assert name in terms(), name
        assert normalise(name, fact.value) == fact.value, name
        assert fact.source
    for gap in evidence.gaps:
        assert gap.name == "*" or f"{family_of(gap.subject)}.{gap.name}" in terms(), gap
        assert gap.reason


def test_reasons_without_a_name_are_still_shown() -> None:
    assert nvidia.reasons(0) == []
    assert nvidia.reasons(0x1 | 0x80 | 0x1000) == ["gpu_idle", "hw_power_brake_slowdown", "bit_0x1000"]


def test_absent_library_with_a_card_on_the_bus(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030000\n")
    items = list(nvidia_system.without_library(Options(root=str(tmp_path))))
    assert not any(getattr(i, "name", "") == "count" for i in items)
    assert any(i.subject == "gpu" and i.name == "*" for i in items)


def test_no_card_on_the_bus_means_none(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    facts = {(i.subject, i.name): getattr(i, "value", None) for i in nvidia_system.without_library(Options(root=str(tmp_path)))}
    assert facts["gpu", "count"] == 0


def test_jetson_without_nvml(tmp_path: Path) -> None:
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_text("NVIDIA Jetson Orin Nano Developer Kit\0")
    (tmp_path / "proc/meminfo").write_text("MemTotal:        7800000 kB\nMemAvailable:    6000000 kB\n")
    (tmp_path / "sys/devices/gpu.0").mkdir(parents=True)
    (tmp_path / "sys/devices/gpu.0/load").write_text("153\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nv_tegra_release").write_text("# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic\n")
    items = list(nvidia_system.without_library(Options(root=str(tmp_path))))
    facts = {(i.subject, i.name): getattr(i, "value", None) for i in items}
    assert facts["gpu0", "name"] == "NVIDIA Jetson Orin Nano Developer Kit"
    assert facts["gpu0", "unified_memory"] is True
    assert facts["gpu0", "memory_total_mib"] == 7800000 // 1024
    assert facts["gpu0", "utilization_pct"] == 15.3
    assert facts["driver", "l4t"] == "36.4.3"


def test_kernel_module_and_its_version(tmp_path: Path) -> None:
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U16)\nGCC version:  gcc 13\n"
    )
    facts = {i.name: getattr(i, "value", None) for i in nvidia_system.read(Options(root=str(tmp_path)))}
    assert facts["loaded_version"] == "570.124.06"
    assert facts["open_kernel_module"] is True
    assert facts["module_loaded"] is True


XID = (
    "[12.0] NVRM: Xid (PCI:0000:01:00): 31, pid=100, name=python\n[90.1] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"
    "[95.0] Out of memory: Killed process 4242 (python3) total-vm:1kB\n"
)


def test_xid_goes_to_its_card() -> None:
    items = list(kernel_log.gpu_errors((XID, "log"), {"gpu0": "0000:01:00.0", "gpu1": "0000:02:00.0"}, []))
    values = {(i.subject, i.name): getattr(i, "value", None) for i in items}
    assert values == {("gpu0", "xid"): 79, ("gpu0", "xid_count"): 2, ("gpu1", "xid"): 0, ("gpu1", "xid_count"): 0}
    assert kernel_log.oom_kills(XID) == ["python3"]


def test_xid_of_a_card_that_no_longer_tells_its_address() -> None:
    items = list(kernel_log.gpu_errors((XID, "log"), {"gpu0": "0000:02:00.0"}, ["gpu1"]))
    assert {(i.subject, getattr(i, "value", None)) for i in items if i.name == "xid"} == {("gpu0", 0), ("gpu1", 79)}


def test_closed_kernel_log_is_a_gap() -> None:
    (item,) = kernel_log.gpu_errors(None, {"gpu0": "0000:01:00.0"}, [])
    assert item.name == "xid"
    assert "dmesg" in getattr(item, "hint", "")
