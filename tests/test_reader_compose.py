"""Compose files: GPU requests in every form, mounts, commands, slips, and settings put back with comments kept."""

import pytest

from dstune.model import Document, Fact, Gap
from dstune.readers import compose


def read(text: str) -> list[Fact | Gap]:
    return list(compose.read(Document("compose.yaml", "compose", text)))


def facts(text: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for item in read(text):
        if isinstance(item, Fact):
            found.setdefault(f"{item.subject}.{item.name}", item.value)
    return found


def service(*lines: str) -> str:
    return "services:\n  llm:\n    image: vllm/vllm-openai:v0.11.0\n" + "".join(f"    {x}\n" for x in lines)


DEPLOY = "deploy: {resources: {reservations: {devices: [%s]}}}"


@pytest.mark.parametrize(
    ("lines", "form"),
    [
        (["gpus: all"], "gpus"),
        (["gpus:", "  - driver: nvidia", "    count: 2"], "gpus"),
        (["runtime: nvidia"], "runtime nvidia"),
        ([DEPLOY % "{driver: nvidia, count: all, capabilities: [gpu]}"], "deploy"),
        ([DEPLOY % "{capabilities: [gpu]}"], "deploy"),
        ([DEPLOY % "{driver: nvidia, device_ids: ['0'], capabilities: [gpu, utility]}"], "deploy"),
        ([DEPLOY % "{driver: cdi, device_ids: ['nvidia.com/gpu=all'], capabilities: [gpu]}"], "cdi"),
        (["devices: ['nvidia.com/gpu=all']"], "cdi"),
        (["devices: ['/dev/nvidia0:/dev/nvidia0', '/dev/nvidiactl:/dev/nvidiactl']"], "devices"),
        (["devices: ['/dev/kfd', '/dev/dri']"], "other vendor"),
        (["privileged: true"], "privileged"),
        (["environment: ['NVIDIA_VISIBLE_DEVICES=all']"], "environment"),
        (["environment: {NVIDIA_VISIBLE_DEVICES: all}"], "environment"),
        (["deploy: {resources: {reservations: {generic_resources: [{discrete_resource_spec: {kind: gpu, value: 1}}]}}}"], "generic resources"),
        (["restart: always"], "none"),
    ],
)  # fmt: skip
def test_gpu_requests(lines: list[str], form: str) -> None:
    found = facts(service(*lines))
    assert (found["docker.gpu_request"], found["docker.gpu_requested"], found["docker.needs_gpu"]) == (
        form,
        form != "none",
        True,
    )


@pytest.mark.parametrize(
    ("image", "needs"),
    [("vllm/vllm-openai:latest", True), ("vllm/vllm-openai-cpu:v0.11.0", False), ("rocm/vllm:latest", False), ("ghcr.io/ggml-org/llama.cpp:server-cuda", True),
     ("ghcr.io/ggml-org/llama.cpp:server", False), ("ghcr.io/open-webui/open-webui:main", False), ("my/client:1", None), ("nvidia/cuda:12.4.1-base-ubuntu22.04", True)],
)  # fmt: skip
def test_which_images_need_a_gpu(image: str, needs: bool | None) -> None:
    assert facts(f"services:\n  a:\n    image: {image}\n").get("docker.needs_gpu") == needs


def test_cpu_on_purpose_needs_none() -> None:
    assert facts(service("command: --model m --device cpu"))["docker.needs_gpu"] is False


def test_service_in_full() -> None:
    found = facts(
        service("command: >", "  --model org/m", "  --max-model-len 8192", "shm_size: 2gb", "ipc: host", "mem_limit: 12g", "ports: ['8000:8000']",
                "volumes:", "  - ./hf:/root/.cache/huggingface", "healthcheck: {test: [CMD, curl, localhost:8000/health]}")
    )  # fmt: skip
    expected = {
        "docker.shm_mib": 2048.0, "docker.ipc_host": True, "docker.memory_mib": 12288.0, "docker.cache_mounted": True, "docker.publishes": True,
        "docker.healthcheck": True, "vllm.max_model_len": 8192, "vllm.model": "org/m", "vllm.version": "0.11.0",
    }  # fmt: skip
    assert {k: found.get(k) for k in expected} == expected
    assert "docker.localhost_url" not in found  # its own health check is no address of another server


@pytest.mark.parametrize(
    ("command", "repeats"),
    [("vllm serve org/m --port 1", True), ("[vllm, serve, org/m]", True), ("python -m vllm.entrypoints.openai.api_server --model m", True),
     ("--model org/m", False), ("[--model, org/m]", False)],
)  # fmt: skip
def test_command_behind_an_entry_point(command: str, repeats: bool) -> None:
    assert ("docker.repeats_entrypoint" in facts(service(f"command: {command}"))) is repeats
    own = facts(service("entrypoint: ['/bin/sh', '-c']", "command: ['vllm serve m --port 1']"))
    assert "docker.repeats_entrypoint" not in own
    assert own["vllm.port"] == 1


def test_cache_follows_hf_home() -> None:
    lines = ["command: --model org/m", "volumes: ['./hf:/data/hf']"]
    assert facts(service(*lines))["docker.cache_mounted"] is False
    assert facts(service(*lines, "environment: ['HF_HOME=/data/hf']"))["docker.cache_mounted"] is True
    assert "docker.cache_mounted" not in facts(service("command: --model /models/m", "volumes: ['./hf:/models']"))


def test_localhost_of_another_service() -> None:
    text = "services:\n  ui:\n    image: my/ui:1\n    environment:\n      - OPENAI_API_BASE_URL=http://localhost:8000/v1\n"
    assert facts(text)["docker.localhost_url"] == "http://localhost:8000/v1"
    assert "docker.localhost_url" not in facts(text + "    network_mode: host\n")
    assert "docker.localhost_url" not in facts(
        text.replace("OPENAI_API_BASE_URL", "NEXT_PUBLIC_API_BASE_URL")
    )  # the browser's view
    assert "docker.localhost_url" not in facts(text.replace("localhost", "vllm"))


def test_undeclared_names() -> None:
    text = "services:\n  a:\n    image: x:1\n    networks: [llm]\n    volumes: ['data:/data', './b:/b', '/c:/c']\n"
    found = facts(text)
    assert (found["compose.undeclared_network"], found["compose.undeclared_volume"]) == ("llm", "data")
    assert not any(k.startswith("compose.") for k in facts(text + "networks: {llm: {}}\nvolumes: {data: {}}\n"))


def test_broken_yaml_gives_line_and_gap() -> None:
    items = read("services:\n  a:\n    image: x\n   ports:\n      - 1:1\n")
    fact = next(i for i in items if isinstance(i, Fact))
    assert (fact.subject, fact.name, fact.line) == ("compose", "invalid", 4)
    assert any(isinstance(i, Gap) for i in items)


def test_anchors_and_extends() -> None:
    text = "x-gpu: &gpu\n  deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}}\n"
    assert facts(text + service("<<: *gpu"))["docker.gpu_requested"] is True
    assert "docker.gpu_requested" not in facts(service("extends: {file: base.yaml, service: gpu}"))


def test_wrong_reservation() -> None:
    assert facts(service(DEPLOY % "{driver: nvidia, count: 1}"))["docker.gpu_reservation_fault"] == "capabilities"
    assert "docker.gpu_reservation_fault" not in facts(service(DEPLOY % "{count: 1, capabilities: [gpu]}"))


TEXT = """# top
services:
  llm:
    image: vllm/vllm-openai:v0.11.0   # pinned
    command:
      - --model
      - org/m   # the model
      - --max-num-seqs
      - "256"
    ports:
      - "8000:8000"

  db:
    image: postgres:16
"""


def test_write_list_command_keeps_comments() -> None:
    out = compose.write(TEXT, {"vllm.max_num_seqs": 64})
    assert out == TEXT.replace('"256"', '"64"') or out == TEXT.replace('- "256"', "- '64'")
    out = compose.write(TEXT, {"vllm.max_model_len": 4096, "vllm.max_num_seqs": None})
    assert "# the model" in out
    assert "--max-num-seqs" not in out
    assert facts(out)["vllm.max_model_len"] == 4096


def test_write_docker_settings() -> None:
    out = compose.write(TEXT, {"docker.gpus": "all", "docker.shm_mib": 1024, "env.hf_home": "/hf"})
    found = facts(out)
    assert (found["docker.gpu_request"], found["docker.shm_mib"], found["env.hf_home"]) == ("deploy", 1024.0, "/hf")
    assert "# pinned" in out
    assert out.endswith("\n\n  db:\n    image: postgres:16\n")
    assert compose.write(out, {"docker.gpus": "all"}) == out


def test_write_text_command() -> None:
    text = service("command: --model org/m --max-num-seqs 256 --quantization awq")
    assert compose.write(text, {"vllm.max_num_seqs": 64, "vllm.quantization": None}) == service(
        "command: --model org/m --max-num-seqs 64"
    )


def test_write_leaves_what_has_no_place() -> None:
    assert compose.write(TEXT, {"sglang.tp_size": 2}) == TEXT
