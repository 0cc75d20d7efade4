"""The example logs and a saved scrape name their cause first, and texts that fit several causes are told apart."""

from pathlib import Path

import pytest

from dstune.derive import derive
from dstune.diagnose import diagnose
from dstune.model import Diagnosis, Evidence, Example
from dstune.probes.server import read_metrics
from dstune.readers import read_files
from tests.support import evidence_of

LOGS = Path(__file__).parents[1] / "examples" / "logs"
SCRAPE = Path(__file__).parent / "data" / "scenario_queue.prom"

FIRST = {
    "oom-at-load-other-process.log": "gpu-memory-used-by-other-process",
    "docker-no-gpu.log": "container-toolkit-missing",
    "endless-newlines.log": "endless-newlines",
    "vllm-kv-cache-too-small.log": "vllm-max-len-exceeds-kv",
    "driver-too-old-804.log": "cuda-forward-compat-on-geforce",
    "gradio-localhost-not-accessible.log": "gradio-localhost-starlette",
}

LOCALHOST = (
    "ValueError: When localhost is not accessible, a shareable link must be created. Please set share=True or check your "
    "proxy settings to allow access to localhost."
)
NAN = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
NO_MODEL = (
    "Incorrect path_or_model_id: '{}'. Please provide either the path to a local folder or the repo_id of a model on the Hub."
)

# what is given → the first cause, and causes that must not be claimed with certainty
CONFUSED: dict[str, tuple[dict[str, str], dict[str, object], str, set[str]]] = {
    "localhost, a proxy is set": ({"log": LOCALHOST}, {"host.proxy_env": "http_proxy"}, "proxy-intercepts-localhost", {"gradio-pydantic-break"}),
    "localhost, no proxy, new pydantic": (
        {"log": LOCALHOST}, {"host.proxy_env": "none", "python.pydantic": "2.11.3"}, "gradio-pydantic-break", {"proxy-intercepts-localhost"},
    ),
    "localhost, the schema failed": (
        {"log": f"TypeError: argument of type 'bool' is not iterable\n{LOCALHOST}"}, {}, "gradio-pydantic-break", {"proxy-intercepts-localhost"},
    ),
    "localhost, the template failed": (
        {"log": f"  File \"x/gradio/routes.py\", line 401, in main\nTypeError: unhashable type: 'dict'\n{LOCALHOST}"}, {},
        "gradio-localhost-starlette", {"proxy-intercepts-localhost", "gradio-pydantic-break"},
    ),
    "NaN, float16 asked for": ({"log": NAN, "app": "m = X.from_pretrained(p, torch_dtype=torch.float16)"}, {}, "fp16-activation-overflow", {"bad-finetune-weights"}),
    "NaN, the training ended in NaN": ({"log": f"{{'loss': 0.0, 'grad_norm': nan}}\n{NAN}"}, {}, "bad-finetune-weights", {"fp16-activation-overflow"}),
    "disk full": ({"log": "OSError: [Errno 28] No space left on device: '/root/.cache/huggingface/x'"}, {}, "disk-full", {"container-shm-too-small"}),
    "offline and not cached": (
        {"log": "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
         "command": "HF_HUB_OFFLINE=1 python app.py"}, {}, "hub-offline-cache-miss", {"network-proxy-blocked"},
    ),
    "online and blocked": (
        {"log": "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files."},
        {}, "network-proxy-blocked", {"hub-offline-cache-miss"},
    ),
    "ModelScope's escape": ({"log": NO_MODEL.format("/r/.cache/huggingface/deepseek-ai/Qwen-1___5B")}, {}, "modelscope-path-escaping", {"hub-auth-gated"}),
    "ModelScope's old layout": ({"log": NO_MODEL.format("/r/.cache/modelscope/hub/Qwen/Qwen2-7B")}, {}, "modelscope-layout-changed", {"hub-auth-gated"}),
    "a plain wrong path": ({"log": NO_MODEL.format("/models/qwen")}, {}, "model-path-not-found", {"modelscope-path-escaping", "hub-auth-gated"}),
    "a pointer": ({"log": "_pickle.UnpicklingError: invalid load key, 'v'."}, {}, "git-lfs-pointer-files", {"model-files-corrupted"}),
    "a short file": (
        {"log": "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"}, {},
        "model-download-truncated", {"git-lfs-pointer-files"},
    ),
}  # fmt: skip


def first_of(evidence: Evidence) -> Diagnosis:
    return diagnose(derive(evidence))


@pytest.mark.parametrize("name", FIRST)
def test_example_log(name: str) -> None:
    evidence, _ = read_files([str(LOGS / name)])
    findings = first_of(evidence).findings
    assert findings[0].cause == FIRST[name]
    assert findings[0].fixes


def test_every_example_log_is_in_the_list() -> None:
    assert {p.name for p in LOGS.glob("*.log")} == set(FIRST)


def test_saved_metrics_give_both_causes() -> None:
    evidence = Evidence().plus(read_metrics(SCRAPE.read_text(), SCRAPE.name))
    found = {f.cause: f for f in first_of(evidence).findings if not f.because}
    assert set(found) == {"admission-limit-with-free-kv", "runaway-output"}
    admission, runaway = found["admission-limit-with-free-kv"], found["runaway-output"]
    assert [f.set for f in admission.fixes] == [{"vllm.max_num_seqs": "64"}]
    assert {"client.max_tokens": "800"} in [f.set for f in runaway.fixes]
    assert {c.text for c in admission.evidence}.isdisjoint({c.text for c in runaway.evidence})


@pytest.mark.parametrize("name", CONFUSED)
def test_told_apart(name: str) -> None:
    texts, facts, cause, wrong = CONFUSED[name]
    findings = first_of(evidence_of(Example("fires", facts, texts))).findings
    assert findings[0].cause == cause
    assert not {f.cause for f in findings if f.confidence != "low"} & wrong


def test_advice_that_explains_a_failure_comes_before_another_error() -> None:
    log = "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.\n"
    texts = {
        "log": log + "libcuda.so.1: cannot open shared object file: No such file or directory",
        "command": "vllm serve /models/Qwen2.5-7B-Instruct",
    }
    causes = [f.cause for f in first_of(evidence_of(Example("fires", {}, texts))).findings if not f.because]
    assert causes[:2] == ["hub-offline-flag-not-set", "container-no-gpu-requested"]
