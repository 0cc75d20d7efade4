"""Host, container, CUDA and Python environments, each over a file system laid out for the test."""

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from dstune.model import Gap
from dstune.probes import container, cuda, host, software
from dstune.probes.reading import Options


def lay(root: Path, files: dict[str, str]) -> Options:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Options(root=str(root))


def values(items: Any, subject: str | None = None) -> dict[str, Any]:
    return {i.name: getattr(i, "value", i) for i in items if subject is None or i.subject == subject}


def test_cgroup_2_takes_the_lowest_limit_on_the_way_up(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    options = lay(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/app.scope\n",
            f"{base}/cgroup.controllers": "cpu memory\n",
            f"{base}/user.slice/memory.max": str(8 << 30),
            f"{base}/user.slice/app.scope/memory.max": "max",
            f"{base}/user.slice/app.scope/memory.current": str(3 << 30),
            f"{base}/user.slice/app.scope/cpu.max": "150000 100000",
            f"{base}/user.slice/app.scope/memory.events": "low 0\noom 2\noom_kill 1\n",
        },
    )
    read = values(host.cgroup(options))
    assert read["cgroup_version"] == 2
    assert (read["cgroup_memory_limit_mib"], read["cgroup_memory_used_mib"]) == (8192, 3072)
    assert (read["cgroup_cpu_cores"], read["cgroup_oom_kills"]) == (1.5, 1)


def test_cgroup_1_without_a_limit(tmp_path: Path) -> None:
    options = lay(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(1 << 30),
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    read = values(host.cgroup(options))
    assert (read["cgroup_version"], read["cgroup_limited"]) == (1, False)
    assert "cgroup_memory_limit_mib" not in read
    assert "cgroup_cpu_cores" not in read
    assert read["cgroup_memory_used_mib"] == 1024


@pytest.mark.parametrize(
    ("kernel", "dxg", "version"),
    [
        ("5.15.153.1-microsoft-standard-WSL2", True, 2),
        ("4.4.0-19041-Microsoft", False, 1),
        ("4.19.104-microsoft-standard", False, 2),
        ("6.8.0-45-generic", False, 0),
        ("6.2.0-1011-azure", False, 0),
    ],
)
def test_wsl(kernel: str, dxg: bool, version: int) -> None:
    assert host.wsl_version(kernel, dxg) == version


def test_iommu() -> None:
    assert host.iommu("quiet splash", False) == "off"
    assert host.iommu("quiet intel_iommu=on", True) == "on"
    assert host.iommu("amd_iommu=on iommu=pt", True) == "passthrough"


def test_proxies_are_named_and_their_passwords_are_not() -> None:
    env = {"HTTP_PROXY": "http://me:secret123@proxy:3128", "https_proxy": "http://proxy:3128", "HF_HUB_OFFLINE": "1"}
    items = list(host.environment(env))
    read = values(items)
    assert read["proxy_env"] == "HTTP_PROXY, https_proxy"
    assert read["no_proxy_loopback"] is False
    assert read["hf_offline"] is True
    assert "secret123" not in repr(items)
    assert values(host.environment({**env, "no_proxy": "localhost,.corp"}))["no_proxy_loopback"] is True
    assert values(host.environment({}))["proxy_env"] == "none"


def test_mounts_longest_first() -> None:
    table = host.mounts("/dev/sda / ext4 rw 0 0\nnas:/x /mnt/my\\040disk nfs4 rw 0 0\n")
    assert table[0] == ("/mnt/my disk", "nfs4")


@pytest.mark.parametrize(
    ("files", "env", "expected"),
    [
        ({".dockerenv": "", "proc/self/mountinfo": ""}, {}, "docker"),
        ({"run/.containerenv": 'engine="podman"'}, {}, "podman"),
        ({"proc/1/cgroup": "0::/kubepods.slice/pod1\n"}, {}, "kubernetes"),
        ({"proc/1/cgroup": "12:cpu:/docker/0123abc\n"}, {}, "docker"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ({"proc/1/cgroup": "0::/init.scope\n", "proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"}, {}, None),
        ({}, {}, None),
    ],
)
def test_container_runtime(tmp_path: Path, files: dict[str, str], env: dict[str, str], expected: str | None) -> None:
    inside, runtime, source = container.runtime_of(lay(tmp_path, files), env)
    assert (inside, runtime) == (expected is not None, expected)
    assert source


def test_container_without_proc_gives_facts_or_gaps(tmp_path: Path) -> None:
    options = Options(root=str(tmp_path))
    for probe in (host.probe, container.probe, cuda.read):
        assert list(probe(options))  # and no exception


def test_snap_docker_and_daemon_json(tmp_path: Path) -> None:
    config = {
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}},
        "default-runtime": "nvidia",
        "features": {"cdi": True},
    }
    options = lay(
        tmp_path,
        {
            "snap/bin/docker": "",
            "var/snap/docker/current/config/daemon.json": json.dumps(config),
            "usr/bin/nvidia-ctk": "",
            "etc/cdi/nvidia.yaml": "cdiVersion: 0.5.0\n",
            "etc/nvidia-container-runtime/config.toml": '[nvidia-container-cli]\nno-cgroups = true\n[nvidia-container-runtime]\nmode = "auto"\n',
        },
    )
    items = list(container.probe(options))
    docker, toolkit = values(items, "docker"), values(items, "container_toolkit")
    assert (docker["installed"], docker["install"], docker["nvidia_runtime"]) == (True, "snap", True)
    assert (docker["default_runtime"], docker["cdi"]) == ("nvidia", True)
    assert (toolkit["installed"], toolkit["no_cgroups"], toolkit["mode"]) == (True, True, "auto")
    assert toolkit["cdi_specs"] == ["nvidia.yaml"]


def test_unreadable_daemon_json_is_a_gap(tmp_path: Path) -> None:
    options = lay(tmp_path, {"run/docker.sock": "", "etc/docker/daemon.json": '{"runtimes": {,}'})
    gaps = [i for i in container.probe(options) if isinstance(i, Gap)]
    assert any(g.subject == "docker" and g.name == "runtimes" and "JSON" in g.reason for g in gaps)


def test_libcuda_off_the_loader_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    options = lay(tmp_path, {"usr/local/nvidia/lib64/libcuda.so.1": "", "dev/nvidia0": "", "dev/nvidiactl": ""})
    read = values(container.probe(options), "container")
    assert (read["libcuda"], read["libcuda_on_loader_path"]) == (True, False)
    assert read["gpu_devices"] == ["nvidia0", "nvidiactl"]
    lay(tmp_path, {"etc/ld.so.conf.d/nvidia.conf": "/usr/local/nvidia/lib64\n"})
    assert values(container.probe(options), "container")["libcuda_on_loader_path"] is True


def test_cuda_toolkits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda:/usr/local/cuda-12.4")
    options = lay(
        tmp_path,
        {
            "usr/local/cuda-12.4/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}',
            "usr/local/cuda-11.8/version.txt": "CUDA Version 11.8.89\n",
            "usr/local/cuda-12.4/lib64/libcudart.so.12": "",
        },
    )
    (tmp_path / "usr/local/cuda").symlink_to(tmp_path / "usr/local/cuda-12.4")
    read = values(cuda.read(options))
    assert [p.split()[1] for p in read["installations"]] == ["11.8.89", "12.4.1"]
    assert read["version"] == "12.4.1"
    assert read["home_valid"] is False
    assert read["runtime_libraries"] == ["libcudart.so.12"]


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another environment with the remains of a GPU stack in it: dist-info folders, and a torch that would not import."""
    base = tmp_path_factory.mktemp("server")
    venv.create(base / "venv", with_pip=False, symlinks=True)
    site = next((base / "venv/lib").glob("python*/site-packages"))
    for name, version in (
        ("torch", "2.4.0"), ("transformers", "4.51.3"), ("flash_attn", "2.6.3"), ("vllm", "0.6.3"), ("nvidia_cublas_cu12", "12.1.3.1"),
        ("llama_cpp_python", "0.3.36"), ("gradio_client", "1.3.0"), ("pynvml", "11.5.0"), ("nvidia_ml_py", "12.560.30"),
    ):  # fmt: skip
        (site / f"{name}-{version}.dist-info").mkdir()
    (site / "~ransformers-4.40.0.dist-info").mkdir()
    (site / "torch/lib").mkdir(parents=True)
    (site / "torch/version.py").write_text(
        "from typing import Optional\n\n__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']\n__version__ = '2.4.0+cu121'\n"
        "debug = False\ncuda: Optional[str] = '12.1'\ngit_version = 'abc'\nhip: Optional[str] = None\n"
    )
    (site / "torch/__init__.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    (site / "torch/lib/libtorch_python.so").write_bytes(
        b"\0\1sm_86\0" + b"x" * 5000 + b"\0sm_50 sm_60 sm_70 sm_80 sm_86 sm_90\0"
    )
    return base / "venv/bin/python"


def test_stack_of_another_environment(other: Path) -> None:
    items = list(software.packages(software.environment(str(other), "given"), 0))  # type: ignore[arg-type]
    python, torch = values(items, "python"), values(items, "torch")
    assert python["version"] == sys.version.split()[0]
    assert (python["environment"], python["role"]) == ("venv", "given")
    assert (python["transformers"], python["flash_attn"], python["vllm"]) == ("4.51.3", "2.6.3", "0.6.3")
    assert (python["llama_cpp_python"], python["gradio_client"]) == ("0.3.36", "1.3.0")
    assert python["cuda_libraries"] == ["nvidia-cublas-cu12 12.1.3.1"]
    assert python["leftovers"] == ["~ransformers-4.40.0.dist-info"]
    assert python["pynvml_conflict"] is True
    assert (torch["version"], torch["build"], torch["variant"], torch["cuda"]) == ("2.4.0", "2.4.0+cu121", "cu121", "12.1")
    assert torch["arch_list"] == ["sm_50", "sm_60", "sm_70", "sm_80", "sm_86", "sm_90"]
    assert torch["has_cuda"] is True


def test_given_interpreter_comes_first(other: Path) -> None:
    found = software.environments(Options(python=str(other)))
    assert isinstance(found[0], software.Environment)
    assert found[0].role == "given"
    assert {getattr(e, "role", "") for e in found} >= {"given", "own"}


def test_interpreter_that_does_not_run_is_walked(other: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text("no program")
    site = tmp_path / "lib/python3.10/site-packages"
    (site / "torch-2.1.0.dist-info").mkdir(parents=True)
    found = software.environment(str(tmp_path / "bin/python"), "given")
    assert isinstance(found, software.Environment)
    assert found.version == "3.10"
    items = list(software.packages(found, 0))
    assert values(items, "python")["torch"] == "2.1.0"
    assert any(isinstance(i, Gap) and i.subject == "torch" and i.name == "cuda" for i in items)


def test_absent_interpreter_is_a_gap(tmp_path: Path) -> None:
    found = software.environment(str(tmp_path / "nowhere/bin/python"), "given")
    assert isinstance(found, Gap)
    assert "--python" in found.hint


def test_cpu_build_of_torch(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(
        "__version__ = '2.6.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
    )
    read = values(software.torch_of(("2.6.0+cpu", str(tmp_path)), "torch"))
    assert (read["build"], read["variant"], read["has_cuda"]) == ("2.6.0+cpu", "cpu", False)
    assert "cuda" not in read
    assert "arch_list" not in read


LIST = """
import json, sys
from dstune.model import to_json
from dstune.probes import collect
names = sys.argv[1].split(",")
evidence = collect(names, python=sys.argv[2] or None)
print(json.dumps([to_json(evidence), sorted(m for m in sys.modules if m in ("torch", "transformers", "pynvml", "psutil"))]))
"""


def test_probing_imports_nothing_of_the_stack(other: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST, "software,container", str(other)], capture_output=True, text=True, check=True
    )
    data, loaded = json.loads(done.stdout)
    assert loaded == []
    assert any(f["subject"] == "torch" and f["value"] == "12.1" for f in data["facts"])
