"""The whole rule set on texts of the driver, the container engine and the Python stack: the first finding is the cause, and look-alikes are told apart."""

from typing import Any

import pytest

from dstune.catalog.vocabulary import said
from dstune.derive import derive
from dstune.diagnose import diagnose
from dstune.model import Document, Evidence, Fact, Finding
from dstune.readers import read_document

GPUS = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
NO_DRIVER = "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx"
LIBCUDA = (
    "./server: error while loading shared libraries: libcuda.so.1: cannot open shared object file: No such file or directory"
)
KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device"

CASES: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("container-toolkit-missing", {"log": GPUS}, {}),
    ("container-docker-snap", {"log": GPUS}, {"docker.install": "snap"}),
    ("container-docker-snap", {"log": GPUS + "\n Docker Root Dir: /var/snap/docker/common/var-lib-docker"}, {}),
    ("container-runtime-not-registered", {"log": GPUS}, {"container_toolkit.installed": "1.17.4"}),
    ("container-runtime-not-registered", {"log": "docker: Error response from daemon: Unknown runtime specified nvidia."}, {}),
    ("container-runtime-not-registered", {"log": 'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "nvidia" is configured'}, {}),
    ("container-toolkit-missing", {"log": 'Error response from daemon: unable to retrieve OCI runtime error: fork/exec /usr/bin/nvidia-container-runtime: no such file or directory: unknown'}, {}),
    ("container-rootless-config", {"log": GPUS, "command": "export DOCKER_HOST=unix:///run/user/1000/docker.sock\ndocker run --gpus all img"}, {}),
    ("container-rootless-config", {"log": "nvidia-container-cli: mount error: open failed: /sys/fs/cgroup/devices/user.slice/devices.allow: permission denied: unknown"}, {}),
    ("container-cdi-spec-missing", {"log": "Error: error setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"}, {}),
    ("container-cdi-spec-missing", {"log": 'docker: Error response from daemon: could not select device driver "cdi" with capabilities: [].'}, {}),
    ("container-gpu-lost-daemon-reload", {"log": "Failed to initialize NVML: Unknown Error"}, {}),
    ("container-device-permission-denied", {"log": "Failed to initialize NVML: Insufficient Permissions"}, {"container.inside": True}),
    ("driver-library-mismatch", {"log": "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183"}, {"container.inside": True}),
    ("driver-library-mismatch", {"log": "Error 803: system has unsupported display driver / cuda driver combination"}, {}),
    ("cuda-forward-compat-on-geforce", {"log": "Error 804: forward compatibility was attempted on non supported HW"}, {"gpu.name": "NVIDIA GeForce RTX 4090"}),
    ("nvidia-fabricmanager-missing", {"log": "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"}, {}),
    ("driver-too-old-for-torch-cuda", {"log": "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."}, {}),
    ("driver-too-old-for-torch-cuda", {"log": "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version"}, {}),
    ("driver-too-old-for-torch-cuda", {"log": "ImportError: /usr/lib/python3/site-packages/vllm/_C.abi3.so: undefined symbol: cuTensorMapEncodeTiled"}, {}),
    ("driver-too-old-for-torch-cuda", {}, {"torch.build": "2.9.0+cu130", "driver.version": "550.54.14", "gpu.name": "NVIDIA A10"}),
    ("driver-not-installed", {"log": NO_DRIVER}, {"container.inside": False}),
    ("driver-not-installed", {"log": "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown."}, {}),
    ("driver-needs-open-module", {"log": "NVRM: installed in this system requires use of the NVIDIA open kernel modules.\nNVRM: No NVIDIA GPU found."}, {}),
    ("container-libcuda-not-on-loader-path", {"log": LIBCUDA, "command": "docker run --rm --gpus all img"}, {}),
    ("container-no-gpu-requested", {"log": LIBCUDA, "command": "docker run --rm -p 80:80 img"}, {}),
    ("image-missing-shared-library", {"log": "/app/llama-server: error while loading shared libraries: libcurl.so.4: cannot open shared object file: No such file or directory"}, {"container.inside": True}),
    ("cuda-runtime-lib-missing", {"log": "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"}, {}),
    ("wsl-no-gpu-adapter", {"log": "Failed to initialize NVML: GPU access blocked by the operating system\nFailed to properly shut down NVML: GPU access blocked by the operating system"}, {}),
    ("gpu-fallen-off-bus", {"log": "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.  Reboot the system to recover this GPU"}, {}),
    ("torch-cpu-only-wheel", {"log": "AssertionError: Torch not compiled with CUDA enabled"}, {}),
    ("torch-cpu-only-wheel", {}, {"torch.build": "2.5.1+cpu", "gpu.count": 1}),
    ("cuda-visible-devices-hides-gpu", {"log": "RuntimeError: No CUDA GPUs are available", "command": "CUDA_VISIBLE_DEVICES=1 python app.py"}, {"gpu.count": 1}),
    ("cuda-visible-devices-hides-gpu", {"log": "ValueError: invalid literal for int() with base 10: 'MIG-2c5e'"}, {}),
    ("cuda-init-before-visible-devices", {"log": "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 101: invalid device ordinal"}, {}),
    ("cuda-init-before-fork", {"log": "RuntimeError: Cannot re-initialize CUDA in forked subprocess."}, {}),
    ("torch-no-kernel-image", {"log": KERNEL}, {"gpu.compute_capability": "12.0", "torch.cuda": "12.4"}),
    ("extension-no-kernel-image", {"log": KERNEL}, {"gpu.compute_capability": "8.9", "torch.cuda": "12.4"}),
    ("extension-no-kernel-image", {"log": "ggml_cuda_compute_forward: CUDA kernel mul_mat_vec has no device code compatible with CUDA arch 520."}, {}),
    ("torchvision-torch-mismatch", {"log": "RuntimeError: operator torchvision::nms does not exist"}, {}),
    ("flash-attn-abi-mismatch", {"log": "ImportError: /opt/lib/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops5zeros4callEN3c108ArrayRefINS2_6SymIntEEE"}, {}),
    ("torch-extension-abi-mismatch", {"log": "ImportError: /usr/local/lib/python3.10/dist-packages/xformers/_C.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs"}, {}),
    ("cuda-home-malformed", {"log": "/bin/sh: 1: :/usr/local/cuda-12.8/bin/nvcc: not found"}, {}),
    ("cuda-toolkit-missing-nvcc", {"log": "FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'"}, {}),
    ("vllm-flashinfer-jit-needs-nvcc", {"log": "ERROR [core.py:387] File \"/opt/flashinfer/jit/cpp_ext.py\", line 51\nERROR [core.py:387] RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist\nRuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"}, {}),
    ("vllm-flashinfer-jit-nvcc-too-old", {"log": "FAILED: /root/.cache/flashinfer/0.5.3/120a/cached_ops/sampling/sampling.cuda.o\nnvcc fatal   : Unsupported gpu architecture 'compute_120a'\nninja: build stopped: subcommand failed.\nRuntimeError: Ninja build failed"}, {}),
    ("python-headers-missing", {"log": "/tmp/x/cuda_utils.c:6:10: fatal error: Python.h: No such file or directory\nsubprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/x/cuda_utils.c']' returned non-zero exit status 1."}, {}),
    ("triton-no-c-compiler", {"log": "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.\nRuntimeError: Engine core initialization failed."}, {}),
    ("transformers-too-old-for-arch", {"log": "KeyError: 'qwen3_moe'"}, {}),
    ("wrong-python-environment", {"log": "KeyError: 'qwen3_moe'"}, {"python.transformers": "4.57.1"}),
    ("transformers-broken-install", {"log": "ImportError: huggingface-hub>=0.34.0,<1.0 is required for a normal functioning of this module, but found huggingface-hub==1.2.0."}, {}),
    ("autoawq-transformers-break", {"log": "ImportError: cannot import name 'shard_checkpoint' from 'transformers.modeling_utils'"}, {}),
    ("safetensors-too-old", {"log": "KeyError: 'F8_E8M0'"}, {}),
    ("bitsandbytes-no-binary-for-cuda", {"log": "Could not find the bitsandbytes CUDA binary at PosixPath('/opt/bitsandbytes/libbitsandbytes_cuda128.so')"}, {}),
    ("host-ram-oom-kill", {"log": "Loading checkpoint shards:  50%|█████     | 2/4 [00:40<00:40, 20.1s/it]\nKilled"}, {}),
    ("host-ram-oom-kill", {"log": "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes."}, {}),
    ("windows-sysmem-fallback", {"log": "12%|█▏ | 3/25 [01:10<08:40, 23.6s/it]"}, {"host.os": "Windows", "driver.version": "546.17", "gpu.name": "RTX 3060"}),
    ("gpu-throttled-thermal-power", {"log": "    SW Thermal Slowdown                            : Active"}, {}),
    ("gpu-throttled-thermal-power", {}, {"gpu.name": "NVIDIA A100-PCIE-40GB", "gpu.temperature_c": 94}),
    ("nvml-memory-query-unsupported-uma", {"log": "RuntimeError: Failed to get free memory for device 0 (global index: 0): Not Supported"}, {"gpu.name": "NVIDIA GB10"}),
    ("spawn-without-main-guard", {"log": "RuntimeError:\n        An attempt has been made to start a new process before the\n        current process has finished its bootstrapping phase."}, {}),
]  # fmt: skip


def findings(texts: dict[str, str], facts: dict[str, Any]) -> tuple[Finding, ...]:
    seen = Evidence()
    for kind, text in texts.items():
        name = {"log": "server.log", "app": "app.py", "command": "launch.sh"}[kind]
        seen = seen.merged(read_document(Document(name, kind, text)))
    return diagnose(derive(seen.plus(i for i in said(facts) if isinstance(i, Fact)))).findings


@pytest.mark.parametrize(("cause", "texts", "facts"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_first_finding(cause: str, texts: dict[str, str], facts: dict[str, Any]) -> None:
    found = findings(texts, facts)
    assert [f.cause for f in found][:1] == [cause], [(f.cause, f.confidence) for f in found]


HARMLESS: list[tuple[str, dict[str, Any]]] = [
    ("UserWarning: \n    Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.\n    Minimum and Maximum cuda capability supported by this version of PyTorch is\n    (8.0) - (12.0)", {}),
    ("WARNING Failed to get device capability: SM 12.x requires CUDA >= 12.9\nINFO Using FlashInfer for top-p & top-k sampling.\nINFO Application startup complete.", {}),
    ("[    2.1] misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22", {"host.wsl": True}),
    ("UserWarning: The detected CUDA version (12.2) has a minor version mismatch with the version that was used to compile PyTorch (12.4). Most likely this shouldn't be a problem.", {}),
    ("WARNING We must use the `spawn` multiprocessing start method. Overriding VLLM_WORKER_MULTIPROC_METHOD to 'spawn'.", {}),
    ("resource_tracker: There appear to be 1 leaked shared_memory objects to clean up at shutdown", {}),
    ('"OOMKilled": false,\n"ExitCode": 0,', {}),
    ("Device 1 [GeForce GTX 1080 Ti] PCIe GEN 1@16x", {"gpu.idle": True}),
    ("INFO selector.py:261] Cannot use FlashAttention-2 backend for Volta and Turing GPUs.\nINFO selector.py:144] Using XFormers backend.", {"gpu.compute_capability": "7.5"}),
]  # fmt: skip


def test_a_card_at_its_own_power_limit_is_a_remark() -> None:
    """True of the clocks, and normal under full load: never more than low."""
    log = "Clocks Event Reasons\n    SW Power Cap                        : Active\n    HW Thermal Slowdown                  : Not Active"
    assert [(f.cause, f.confidence) for f in findings({"log": log}, {})] == [("gpu-throttled-thermal-power", "low")]


@pytest.mark.parametrize(("log", "facts"), HARMLESS)
def test_harmless_lines(log: str, facts: dict[str, Any]) -> None:
    assert [f.cause for f in findings({"log": log}, facts) if f.severity != "info"] == []
