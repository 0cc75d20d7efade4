"""Configuration files: vLLM's YAML, .env, requirements, Kubernetes, and what cannot be parsed."""

from dstune.model import Document, Fact, Gap
from dstune.readers import config


def read(name: str, text: str) -> tuple[dict[str, object], list[Gap]]:
    facts: dict[str, object] = {}
    gaps = []
    for item in config.read(Document(name, "config", text)):
        if isinstance(item, Gap):
            gaps.append(item)
        else:
            facts.setdefault(f"{item.subject}.{item.name}", item.value)
    return facts, gaps


VLLM = """# engine
model: org/m
max-model-len: 8192   # short
gpu-memory-utilization: 0.9
enforce-eager: true
"""


def test_vllm_yaml() -> None:
    facts, _ = read("vllm.yaml", VLLM)
    assert {k: facts[k] for k in ("vllm.model", "vllm.max_model_len", "vllm.gpu_memory_utilization", "vllm.enforce_eager")} == {
        "vllm.model": "org/m", "vllm.max_model_len": 8192, "vllm.gpu_memory_utilization": 0.9, "vllm.enforce_eager": True,
    }  # fmt: skip
    line = next(
        f.line for f in config.read(Document("a.yaml", "config", VLLM)) if isinstance(f, Fact) and f.name == "max_model_len"
    )
    assert line == 3


def test_vllm_yaml_written() -> None:
    out = config.write(VLLM, {"vllm.max_model_len": 4096, "vllm.enforce_eager": None, "vllm.max_num_seqs": 64})
    assert out == VLLM.replace("8192   #", "4096   #").replace("enforce-eager: true\n", "max-num-seqs: 64\n")


def test_other_yaml_is_not_vllm() -> None:
    text = "model:\n  path: /m\nserver:\n  port: 7860\n"
    facts, gaps = read("config.yaml", text)
    assert not facts
    assert not gaps
    assert config.write(text, {"vllm.port": 1}) == text


def test_env_file() -> None:
    text = "# keys\nHF_HOME=/hf\nHF_HUB_OFFLINE=1\nLLAMA_API_KEY=abcdefgh12345\n"
    facts, _ = read(".env", text)
    assert (facts["env.hf_home"], facts["env.hf_hub_offline"], facts["llamacpp.api_key"]) == ("/hf", True, "(given)")
    assert (
        config.write(text, {"env.hf_home": "/x", "env.hf_hub_offline": None})
        == "# keys\nHF_HOME=/x\nLLAMA_API_KEY=abcdefgh12345\n"
    )


def test_requirements() -> None:
    facts, _ = read(
        "requirements.txt",
        "torch==2.6.0+cu124\ntransformers>=4.41,<5\ngradio==4.33.0  # old\nnumpy<2\nflash-attn==2.5.8\naccelerate\n",
    )
    expected = {
        "requirements.torch": "2.6.0+cu124", "requirements.torch_cuda": "12.4", "requirements.gradio": "4.33.0", "requirements.flash_attn": "2.5.8",
        "requirements.unpinned": ["accelerate"],
    }  # fmt: skip
    assert {k: facts.get(k) for k in expected} == expected


def test_kubernetes() -> None:
    text = """apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.11.0
          command: ["vllm", "serve", "org/m"]
          args: ["--max-model-len", "4096", "--disable-log-requests"]
          env:
            - name: HF_HOME
              value: /hf
          resources:
            limits:
              nvidia.com/gpu: "1"
"""
    facts, _ = read("deploy.yaml", text)
    assert (facts["vllm.max_model_len"], facts["vllm.version"], facts["vllm.removed_flag"], facts["docker.gpu_request"], facts["env.hf_home"]) == (
        4096, "0.11.0", "--disable-log-requests", "kubernetes", "/hf",
    )  # fmt: skip


def test_kubernetes_shared_memory() -> None:
    pod = "spec:\n  containers:\n    - name: a\n      image: vllm/vllm-openai:v0.11.0\n      args: [--model, m, -tp, '2']\n"
    assert read("pod.yaml", pod)[0]["docker.ipc_host"] is False
    assert read("pod.yaml", pod + "      volumeMounts: [{name: shm, mountPath: /dev/shm}]\n")[0]["docker.ipc_host"] is True


def test_model_files() -> None:
    facts, _ = read(
        "config.json",
        '{"model_type": "qwen2", "architectures": ["X"], "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "awq"}}',
    )
    assert any(v == "awq" for v in facts.values())


def test_broken_file_is_a_gap() -> None:
    _, gaps = read("config.json", "{broken")
    assert gaps
    _, gaps = read("a.yaml", "a: [1, 2\nb: 3\n")
    assert gaps
