"""Pasted tables give the facts that stand in them, with the line; what holds no figure is a gap; an ordinary log gives nothing."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

from dstune.catalog.vocabulary import terms
from dstune.model import Document, Fact, Gap, family_of
from dstune.readers.paste import read

PASTES = Path(__file__).parent / "pastes"


def sheet(name: str, text: str | None = None) -> dict[str, Fact]:
    """Facts by `subject.name`."""
    text = (PASTES / name).read_text() if text is None else text
    return {f"{f.subject}.{f.name}": f for f in read(Document(name, "log", text)) if isinstance(f, Fact)}


def gaps(name: str) -> dict[str, Gap]:
    return {f"{g.subject}.{g.name}": g for g in read(Document(name, "log", (PASTES / name).read_text())) if isinstance(g, Gap)}


EXPECTED: dict[str, dict[str, Any]] = {
    "nvidia-smi.idle.txt": {"driver.version": "580.159.04", "driver.cuda": "13.0", "gpu0.name": "NVIDIA H200", "gpu0.memory_used_mib": 0,
        "gpu0.memory_total_mib": 143771, "gpu0.utilization_pct": 0, "gpu0.processes": 0, "gpu0.mig": False, "gpu0.ecc": True, "gpu0.count": 1},
    "nvidia-smi.loaded.txt": {"gpu0.utilization_pct": 99, "gpu0.idle": False, "gpu0.power_draw_w": 595, "gpu0.power_limit_w": 700, "gpu0.temperature_c": 55,
        "gpu0.processes": 1, "process.pid": 475, "process.memory_mib": 5856, "process.kind": "compute", "gpu0.pci_bus_id": "0000:00:06.0"},
    "nvidia-smi-two-cards.txt": {"gpu0.temperature_c": 88, "gpu1.temperature_c": 31, "gpu0.idle": False, "gpu1.idle": True, "gpu1.count": 2,
        "gpu0.memory_used_mib": 21857, "gpu1.memory_used_mib": 12, "process1.memory_mib": 21834, "process.kind": "graphics", "driver.version": "535.129.03"},
    "nvidia-smi-old-flat.txt": {"driver.cuda": "10.1", "gpu0.memory_used_mib": 8110, "gpu0.memory_total_mib": 11019, "gpu0.compute_mode": "exclusive_process",
        "process1.name": "python3", "process1.memory_mib": 8061, "gpu0.display_active": True},
    "nvidia-smi-gb10.txt": {"gpu0.name": "NVIDIA GB10", "gpu0.unified_memory": True, "gpu0.power_draw_w": 4},
    "nvidia-smi-err.txt": {"gpu0.memory_used_mib": 1212, "gpu0.power_limit_w": 360},
    "nvidia-smi-windows.txt": {"host.os": "windows", "gpu0.memory_used_mib": 7902, "process.name": "C:\\Windows\\explorer.exe", "gpu0.name": "NVIDIA GeForce RTX 4070"},
    "nvidia-smi-mig.txt": {"gpu0.mig": True, "gpu0.mig_slice_total_mib": [40192, 20096], "gpu0.mig_slice_free_mib": [40155, 8096], "gpu0.memory_total_mib": 81920},
    "nvidia-smi-L.txt": {"gpu0.name": "NVIDIA H200", "gpu0.count": 1},
    "nvidia-smi-q.loaded.txt": {"gpu0.clock_event_reasons": ["sw_power_cap"], "gpu0.pcie_gen": 5, "gpu0.pcie_width_max": 16, "gpu0.power_draw_w": 654.75,
        "gpu0.power_default_limit_w": 700.0, "gpu0.temperature_memory_c": 47, "gpu0.clock_sm_mhz": 1680, "gpu0.clock_sm_max_mhz": 1980,
        "gpu0.memory_reserved_mib": 616, "gpu0.row_remap_failed": False, "process.name": "python3", "gpu0.idle": False, "gpu0.architecture": "Hopper"},
    "nvidia-smi-q-memory.loaded.txt": {"gpu0.memory_total_mib": 143771, "gpu0.memory_used_mib": 5865, "gpu0.bar1_total_mib": 262144, "driver.cuda": "13.0"},
    "query-gpu.loaded.csv": {"gpu0.name": "NVIDIA H200", "gpu0.memory_used_mib": 5865, "gpu0.power_draw_w": 654.75, "gpu0.pcie_width": 16,
        "gpu0.compute_capability": "9.0", "gpu0.ecc": True, "gpu0.performance_state": 0, "driver.version": "580.159.04"},
    "query-gpu-reasons.loaded.csv": {"gpu0.clock_event_reasons": ["sw_power_cap"], "gpu0.memory_reserved_mib": 616},
    "query-gpu-watch.loaded.csv": {"gpu0.utilization_pct": 99, "gpu0.memory_total_mib": 143771},
    "query-gpu-nounits-two.csv": {"gpu1.memory_used_mib": 312, "gpu0.memory_used_mib": 20110, "gpu1.pcie_width": 8, "gpu0.pcie_width": 16, "gpu0.count": 2},
    "query-gpu-growing.csv": {"gpu0.memory_growth_mib": 8231, "gpu0.memory_used_mib": 18031, "gpu0.count": 1},
    "query-compute-apps.loaded.csv": {"process.pid": 475, "process.memory_mib": 5856, "process.name": "python3"},
    "dmon.loaded.txt": {"gpu0.power_draw_w": 694, "gpu0.temperature_memory_c": 51, "gpu0.clock_sm_mhz": 1755, "gpu0.utilization_pct": 99},
    "dmon-s-u.loaded.txt": {"gpu0.utilization_pct": 99, "gpu0.memory_utilization_pct": 40},
    "pmon.loaded.txt": {"process.pid": 475, "process.name": "python3", "process.kind": "compute"},
    "torch-memory-summary.txt": {"torch.memory_allocated_mib": 3424, "torch.memory_allocated_peak_mib": 4905, "torch.memory_reserved_mib": 5170, "torch.ooms": 0},
    "torch-memory-stats.txt": {"torch.memory_allocated_mib": 3424.3, "torch.memory_reserved_mib": 5170, "torch.allocation_retries": 0},
    "collect_env.txt": {"torch.build": "2.11.0+cu130", "torch.cuda": "13.0", "gpu0.name": "NVIDIA H200", "driver.version": "580.159.04",
        "python.version": "3.12.3", "python.torchvision": "0.26.0", "cuda_toolkit.version": "13.0.88", "host.os": "linux"},
    "vllm-collect-env.txt": {"torch.build": "2.7.1+cu126", "gpu1.name": "NVIDIA GeForce RTX 3090", "gpu0.count": 2, "host.wsl": True, "python.vllm": "0.9.2",
        "python.transformers": "4.53.1", "python.flashinfer_python": "0.2.6.post1", "driver.version": "576.52"},
    "transformers-env.txt": {"python.transformers": "4.39.3", "torch.build": "2.2.2+cpu", "torch.has_cuda": False, "gpu0.name": "Tesla T4",
        "python.safetensors": "0.4.2", "host.kernel": "5.15.0-91-generic"},
    "bitsandbytes.txt": {"python.bitsandbytes": "0.46.1", "torch.build": "2.7.0+cu128", "torch.cuda": "12.8", "gpu0.compute_capability": "8.6"},
    "pip-list.txt": {"python.flash_attn": "2.7.4.post1", "torch.build": "2.6.0+cu124", "python.vllm": "0.8.5.post1", "torch.cuda": "12.4"},
    "pip-install.txt": {"python.gptqmodel": "7.7.0", "torch.build": "2.14.1", "python.huggingface_hub": "0.35.3"},
    "dmesg.txt": {"gpu0.xid": 79, "gpu0.xid_count": 2, "gpu0.lost": True, "host.oom_kills": ["python3"], "driver.loaded_version": "550.54.14"},
    "free-h.txt": {"host.ram_total_mib": 63488, "host.ram_available_mib": 51200, "host.swap_used_mib": 512},
    "free-k.txt": {"host.ram_total_mib": pytest.approx(32025.3, abs=0.1), "host.swap_total_mib": 0},
    "df-container.txt": {"disk.mount": "/", "disk.free_mib": 15360, "container.shm_mib": 64, "container.inside": True, "disk1.mount": "/models"},
    "docker-inspect.txt": {"container.shm_mib": 64, "docker.gpu_requested": False, "docker.memory_mib": 16384, "container.image_cuda": "12.4.1",
        "container.driver_capabilities": "compute,utility", "docker.runtime": "runc"},
    "docker-info.txt": {"docker.nvidia_runtime": False, "docker.install": "snap", "docker.rootless": True, "docker.cgroup_driver": "systemd",
        "host.cgroup_version": 2, "host.wsl": True, "host.ram_total_mib": pytest.approx(15861.8, abs=0.1)},
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_facts(name: str) -> None:
    found = sheet(name)
    assert {k: found[k].value if k in found else "absent" for k in EXPECTED[name]} == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_line_and_text(name: str) -> None:
    lines = (PASTES / name).read_text().split("\n")
    for full, fact in sheet(name).items():
        assert f"{family_of(fact.subject)}.{fact.name}" in terms(), full
        assert fact.line is not None
        assert 1 <= fact.line <= len(lines), full
        assert fact.text
        assert fact.text[:12].strip("| ") in lines[fact.line - 1], full


def test_every_sample_is_expected() -> None:
    assert {p.name for p in PASTES.iterdir()} == set(EXPECTED)


def test_faults_are_gaps() -> None:
    found = gaps("nvidia-smi-err.txt")
    assert {"gpu0.fan_pct", "gpu0.temperature_c", "gpu0.power_draw_w", "gpu0.utilization_pct"} <= set(found)
    assert "ERR!" in found["gpu0.temperature_c"].reason
    assert "dmesg" in found["gpu0.temperature_c"].hint
    assert "gpu0.memory_total_mib" in gaps("nvidia-smi-gb10.txt")
    assert gaps("nvidia-smi-old-flat.txt")["gpu0.name"].hint == "nvidia-smi -L"


def test_thermal_reasons_of_an_older_driver() -> None:
    text = (PASTES / "nvidia-smi-q.loaded.txt").read_text().replace("Clocks Event Reasons", "Clocks Throttle Reasons")
    text = text.replace(
        "SW Thermal Slowdown                            : Not Active", "SW Thermal Slowdown                            : Active"
    )
    assert sheet("q", text)["gpu0.clock_event_reasons"].value == ["sw_power_cap", "sw_thermal_slowdown"]


def test_query_without_indentation() -> None:
    text = "\n".join(line.strip() for line in (PASTES / "nvidia-smi-q.loaded.txt").read_text().split("\n"))
    found = sheet("q", text)
    assert found["gpu0.pcie_width"].value == 16
    assert found["gpu0.memory_used_mib"].value == 5865


def test_last_reading_counts() -> None:
    text = (PASTES / "nvidia-smi.loaded.txt").read_text() + (PASTES / "nvidia-smi.idle.txt").read_text()
    found = sheet("watch", text)
    assert found["gpu0.utilization_pct"].value == 0
    assert "gpu0.memory_growth_mib" not in found


def test_rows_without_their_header_are_counted_in_order() -> None:
    row = "|  0%   35C    P8    10W / 250W |  24100MiB / 24576MiB |      0%      Default |"
    found = sheet("row", f"{row}\n{row.replace('24100MiB', '  300MiB')}\n")
    assert [found[f"gpu{i}.memory_used_mib"].value for i in (0, 1)] == [24100, 300]
    assert found["gpu1.count"].value == 2


def test_xid_goes_to_the_card_of_its_address() -> None:
    table = (PASTES / "nvidia-smi-two-cards.txt").read_text()
    found = sheet("both", table + "\n[ 88.1] NVRM: Xid (PCI:0000:2A:00): 79, pid=1, GPU has fallen off the bus.\n")
    assert found["gpu1.xid"].value == 79
    assert "gpu0.xid" not in found


def test_a_gpu_requested_container() -> None:
    text = (PASTES / "docker-inspect.txt").read_text().replace('"DeviceRequests": null', '"DeviceRequests": [')
    assert sheet("inspect", text)["docker.gpu_requested"].value is True


def test_secrets_do_not_pass() -> None:
    text = "| NVIDIA-SMI 535.1  Driver Version: 535.1  CUDA Version: 12.2 |\n| Processes: |\n| 0 N/A N/A 77 C /home/alice/venv/bin/python 12MiB |\n"
    assert "alice" not in str(sheet("p", text)["process.name"].value)


@pytest.mark.parametrize("text", [
    "INFO 12:00:00 api_server.py:31] Started server process [77]\nINFO: 127.0.0.1:5000 - \"POST /v1/chat/completions HTTP/1.1\" 200 OK\n",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 216.00 MiB.\n",
    "assert x == 3\nif a == 2.0:\n    pass\n",
])  # fmt: skip
def test_ordinary_logs_give_nothing(text: str) -> None:
    assert list(read(Document("server.log", "log", text))) == []


def test_cheap_on_a_large_log() -> None:
    line = 'INFO 11-30 12:00:00 [logger.py:41] Received request chatcmpl-1: prompt: "a" params: SamplingParams(n=1, temperature=0.6)\n'
    document = Document("server.log", "log", line * 60_000)
    start = time.process_time()
    assert list(read(document)) == []
    assert time.process_time() - start < 0.5


def test_damaged_pastes_raise_nothing() -> None:
    """Cut, shuffled and garbled tables: facts or none, never an exception."""
    dice = random.Random(7)
    texts = [p.read_text() for p in sorted(PASTES.iterdir())]
    for _ in range(400):
        text = dice.choice(texts)
        start = dice.randrange(len(text))
        lines = text[start : start + 3000].split("\n") if dice.random() < 0.5 else text.split("\n")
        if dice.random() < 0.3:
            dice.shuffle(lines)
        garbled = "".join(c if dice.random() > 0.01 else dice.choice("|:,. \t9X-") for c in "\n".join(lines))
        for item in read(Document("x", "log", garbled)):
            assert isinstance(item, Fact | Gap)
