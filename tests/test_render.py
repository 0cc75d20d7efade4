"""Generated files: golden texts per machine, and what must hold of every one of them."""

import itertools
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from dstune import lang
from dstune.catalog.flags import check
from dstune.catalog.gpus import Gpu, find
from dstune.catalog.models import get
from dstune.errors import DstuneError
from dstune.model import Value
from dstune.model.plan import MemoryLine, Plan, Setting
from dstune.render import RENDERERS, Context, render
from dstune.render import app as program
from dstune.render.command import command, has_flag
from dstune.render.size import size
from dstune.render.stack import Stack, choose, covers, cuda_of, family_driver, matching_driver, reaches, starts
from dstune.render.template import note

GOLDEN = Path(__file__).parent / "golden" / "render"
R1 = get("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
MODEL = R1.id


def setting(key: str, value: Value, en: str, zh: str) -> Setting:
    return Setting(key, value, {"en": en, "zh": zh}, "test")


SAMPLING = (
    setting("generate.temperature", 0.6, "vendor's advice; greedy decoding loops", "官方建议；贪心解码会重复"),
    setting("generate.top_p", 0.95, "", ""),
)
SETTINGS: dict[str, tuple[Setting, ...]] = {
    "vllm": (
        setting("vllm.dtype", "bfloat16", "the checkpoint's own type", "与检查点一致"),
        setting("vllm.max_model_len", 8192, "8,192 tokens cost 224 MiB", "8,192 token 占 224 MiB"),
        setting("vllm.gpu_memory_utilization", 0.9, "the rest is the CUDA context", "其余留给 CUDA 上下文"),
        setting("vllm.max_num_seqs", 32, "as many as asked for", "按要求的并发"),
    ),
    "transformers": (
        setting("transformers.load_in_4bit", True, "16 bit does not fit", "16 位放不下"),
        setting("transformers.attn_implementation", "sdpa", "fastest that every card has", "各卡都有的最快实现"),
        setting("generate.max_new_tokens", 1024, "bounds the KV cache", "限制 KV 缓存"),
    ),
    "llama.cpp": (setting("llamacpp.n_gpu_layers", 99, "all layers fit", "全部层放得下"), setting("llamacpp.ctx_size", 8192, "one slot", "一个槽位")),
    "sglang": (setting("sglang.context_length", 8192, "as asked", "按要求"), setting("sglang.mem_fraction_static", 0.85, "weights and pool", "权重与缓存池")),
    "hf-serve": (setting("hfserve.continuous_batching", True, "requests are batched", "请求合批"),),
}  # fmt: skip


def make_plan(engine: str, gpu: str, version: str, gpus: int = 1, extra: tuple[Setting, ...] = (), launch: str = "") -> Plan:
    own = {s.key: s for s in (*SETTINGS[engine], *extra)}
    return Plan(
        engine,
        version,
        MODEL,
        gpu,
        gpus,
        (*own.values(), *SAMPLING),
        (MemoryLine("weights", 3390.0 / gpus),),
        {},
        launch=launch,
    )


HALF = (setting("vllm.dtype", "float16", "no bf16 before Ampere", "Ampere 之前没有 bf16"),)
TWO = (setting("vllm.tensor_parallel_size", 2, "each layer split over the cards", "每层切分到多卡"),)
MACHINES: dict[str, tuple[str, str, int, tuple[Setting, ...], str]] = {
    "4090": ("RTX 4090", "vllm", 1, (), ""),
    "t4": ("T4", "vllm", 1, HALF, ""),
    "a100": ("A100", "vllm", 1, (), ""),
    "laptop-6gb": ("RTX 3060 laptop", "transformers", 1, (), ""),
    "orin": ("agx orin", "llama.cpp", 1, (), "llama-server -hf bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF:Q8_0"),
    "2x3090": ("RTX 3090", "vllm", 2, TWO, ""),
}


def deployment(machine: str, driver: str = "", version: str = "") -> tuple[Plan, Context]:
    name, engine, count, extra, launch = MACHINES[machine]
    gpu = find(name)
    version = version or choose(engine, gpu, driver).version
    return make_plan(engine, gpu.label, version, count, extra, launch), Context(gpu, R1, driver, version)


def all_files() -> list[tuple[str, str, str]]:
    """(name, file name, text) over engines, cards and drivers; each pair of Dockerfile and compose file, and the latter alone."""
    out = []
    for engine, card, driver in itertools.product(
        SETTINGS, ("RTX 4090", "T4", "agx orin", "RTX 5090", "GTX 1080 Ti", "GB10"), ("", "535", "580")
    ):
        gpu = find(card)
        try:
            version = choose(engine, gpu, driver).version
        except DstuneError:
            continue
        plan, context = make_plan(engine, gpu.label, version), Context(gpu, R1, driver, version)
        for kinds in (("dockerfile", "compose"), ("compose",), ("launch",)):
            for artifact in render(kinds, plan, context):
                out.append((f"{engine}-{gpu.id}-{driver or 'any'}-{'+'.join(kinds)}", artifact.path, artifact.text))
        if engine == "transformers":
            for artifact in program.render(plan, context, size(gpu, R1, "latency")):
                if artifact.path in ("Dockerfile", "compose.yaml"):
                    out.append((f"app-{gpu.id}-{driver or 'any'}", artifact.path, artifact.text))
    return out


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", RENDERERS)
def test_golden(machine: str, kind: str) -> None:
    plan, context = deployment(machine)
    if kind == "config" and plan.engine == "llama.cpp":
        with pytest.raises(DstuneError, match="reads no configuration file"):
            render([kind], plan, context)
        return
    text = render([kind], plan, context)[0].text
    file = GOLDEN / f"{machine}.{kind}"
    if os.environ.get("DSTUNE_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", RENDERERS)
def test_golden_chinese(kind: str) -> None:
    lang.use("zh")
    file = GOLDEN / f"t4.{kind}.zh"
    text = render([kind], *deployment("t4"))[0].text
    if os.environ.get("DSTUNE_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_every_file_holds_the_rules() -> None:
    files = all_files()
    assert len(files) > 100
    for name, path, text in files:
        assert "None" not in text.replace("NONE", ""), name
        assert not re.search(r"[ \t]+$", text, re.M), f"{name}: trailing blanks"
        assert text.endswith("\n"), name
        assert not text.endswith("\n\n"), name
        assert (
            max(len(line) for line in text.splitlines() if line.lstrip().startswith("# ") and " docker run " not in line) <= 120
        ), name
        assert ":latest" not in text, name
        {"Dockerfile": holds_dockerfile, "compose.yaml": holds_compose, "launch.sh": holds_launch}[path](name, text)


def holds_dockerfile(name: str, text: str) -> None:
    lines = text.splitlines()
    base = next(line.split()[1] for line in lines if line.startswith("FROM "))
    assert ":" in base, name
    assert not base.endswith(":latest"), name
    user = next(i for i, line in enumerate(lines) if line.startswith("USER "))
    assert lines[user] != "USER root", name
    assert user < next(i for i, line in enumerate(lines) if line.startswith("ENTRYPOINT "))
    assert "HEALTHCHECK " in text, name
    assert "HF_HOME=/home/app/" in text, name
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in text, name
    for pin in re.findall(r"^ {6}(\S+)", text, re.M):
        assert "==" in pin, f"{name}: {pin} is not pinned"
    assert not re.search(r"COPY .*(models|\.cache|safetensors)", text), f"{name}: weights are baked in"


def holds_compose(name: str, text: str) -> None:
    (service,) = yaml.safe_load(text)["services"].values()
    gpu = service.get("runtime") == "nvidia" or service["deploy"]["resources"]["reservations"]["devices"][0][
        "capabilities"
    ] == ["gpu"]
    assert gpu, name
    assert service["environment"]["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility", name
    assert service["ports"][0].startswith("127.0.0.1:"), name
    assert service["restart"] == "unless-stopped", name
    assert ("shm_size" in service) == (name.split("-")[0] in ("vllm", "sglang")), name
    assert service["volumes"], name
    if "build" in service:
        assert "command" not in service, name
    else:
        assert not set(service["entrypoint"]) & set(service["command"]), f"{name}: the program stands twice"
        seconds = int(service["healthcheck"]["start_period"].rstrip("s"))
        assert 240 <= seconds <= 900, name  # 3.3 GiB over 100 Mbit/s are 284 s


def holds_launch(name: str, text: str) -> None:
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == "", name
    words = shlex.split(text.partition("exec ")[2].partition('"$@"')[0].replace("\\\n", " "))
    assert words[0] in ("vllm", "python3", "llama-server", "transformers"), name


@pytest.mark.parametrize("version", ["0.6.6.post1", "0.8.5.post1", "0.11.0", "0.32.0"])
def test_vllm_options_exist_in_their_version(version: str) -> None:
    everything = [
        setting("vllm.dtype", "half", "", ""), setting("vllm.max_model_len", 4096, "", ""), setting("vllm.max_num_seqs", 16, "", ""),
        setting("vllm.max_num_batched_tokens", 4096, "", ""), setting("vllm.enforce_eager", False, "", ""), setting("vllm.enable_prefix_caching", True, "", ""),
        setting("vllm.swap_space", 0, "", ""), setting("vllm.kv_cache_dtype", "fp8", "", ""), setting("vllm.disable_log_requests", True, "", ""),
        setting("vllm.kv_cache_memory_bytes", 1 << 30, "", ""),
    ]  # fmt: skip
    plan = make_plan("vllm", "T4", version, extra=tuple(everything))
    made = command(plan, R1, "vllm", version, (MODEL,), "127.0.0.1", 8000, ("vllm", "serve"))
    assert check(made.args, version) == []
    given = {o.flag for o in made.options}
    left = {s.key for s in made.left}
    assert ("--reasoning-parser" in given) == (version != "0.6.6.post1")
    assert ("--enable-reasoning" in given) == (version == "0.8.5.post1")
    assert ("vllm.swap_space" in left) == (version == "0.32.0")
    assert ("vllm.kv_cache_memory_bytes" in left) == (version in ("0.6.6.post1", "0.8.5.post1"))
    assert "--enable-prefix-caching" in given


def test_a_driver_decides_over_cuda() -> None:
    card = find("4090")
    assert choose("vllm", card).image == "vllm/vllm-openai:v0.32.0"
    old = choose("vllm", card, "535")
    assert (old.image, old.labelled, old.driver, old.torch) == ("python:3.12-slim-bookworm", False, "525.60.13", "2.10.0")
    assert choose("transformers", find("t4"), "470.57").index.endswith("/cu118")
    with pytest.raises(DstuneError) as refused:
        choose("vllm", card, "535", "0.32.0")
    assert "--engine-version 0.19.1" in refused.value.next
    assert "580.65.06" in refused.value.next
    with pytest.raises(DstuneError) as blackwell:
        choose("vllm", find("5090"), "535")
    assert "570.26" in blackwell.value.why
    with pytest.raises(DstuneError, match="no build for"):
        choose("vllm", find("P100"))
    with pytest.raises(DstuneError, match="no container recipe"):
        choose("vllm", find("MI300X"))


def attempt(engine: str, gpu: Gpu, driver: str) -> tuple[Stack | None, DstuneError | None]:
    try:
        return choose(engine, gpu, driver), None
    except DstuneError as error:
        return None, error


@pytest.mark.parametrize("engine", SETTINGS)
@pytest.mark.parametrize("driver", ["470.57", "525.60.13", "535", "550.54.15", "570.86", "580.65.06", "595"])
@pytest.mark.parametrize("card", ["V100", "T4", "A100", "4090", "H100", "5090", "P100"])
def test_what_is_chosen_starts(engine: str, driver: str, card: str) -> None:
    stack, refused = attempt(engine, find(card), driver)
    if refused is not None:
        assert refused.why
        assert refused.next or driver == "470.57"
        return
    assert stack is not None
    assert starts(stack, driver)
    assert reaches(driver, matching_driver(stack.cuda) if stack.labelled else family_driver(stack.cuda))
    assert all("==" in r for r in stack.requirements)


def test_drivers_and_architectures() -> None:
    assert cuda_of("535") == "12.2"
    assert cuda_of("535.54") == "12.1"
    assert cuda_of("390") == ""
    assert reaches("535", "535.104.05")
    assert not reaches("535.54.03", "535.104.05")
    assert covers(["8.0", "8.6"], [], (8, 9)) == "code"
    assert covers(["7.5", "8.0"], [], (7, 0)) == ""
    assert covers(["9.0"], ["12.0"], (12, 1)) == "ptx"


def test_awq_under_transformers_is_refused() -> None:
    plan = make_plan("transformers", "RTX 4090", "5.24.0", extra=(setting("transformers.quantization", "awq", "", ""),))
    with pytest.raises(DstuneError, match="cannot be installed"):
        render(["dockerfile"], plan, Context(find("4090"), R1))


def test_a_folder_is_mounted_and_offline() -> None:
    plan, context = deployment("t4")
    folder = Context(context.gpu, R1, "", context.version, folder="./my model")
    docker, compose = render(["dockerfile", "compose"], plan, folder)
    (service,) = yaml.safe_load(compose.text)["services"].values()
    assert service["volumes"] == ["./my model:/models/my model:ro"]
    assert service["environment"]["HF_HUB_OFFLINE"] == "1"
    assert '"/models/my model"' in docker.text
    assert "exec vllm serve './my model' \\" in render(["launch"], plan, folder)[0].text


def test_public_opens_the_port() -> None:
    plan, context = deployment("t4")
    (artifact,) = render(["compose"], plan, Context(context.gpu, R1, "", context.version, public=True, port=9000))
    (service,) = yaml.safe_load(artifact.text)["services"].values()
    assert service["ports"] == ["9000:8000"]


def test_config_is_yaml_with_the_vendors_sampling() -> None:
    plan, context = deployment("laptop-6gb")
    made = yaml.safe_load(render(["config"], plan, context)[0].text)
    assert made["generation"]["default"]["temperature"] == 0.6
    assert made["generation"]["default"]["max_new_tokens"] == 1024
    assert made["prompt"]["system"] is None
    assert "\\boxed{}" in made["prompt"]["math_directive"]
    assert made["model"]["load_in_4bit"] is True
    served = yaml.safe_load(render(["config"], *deployment("t4"))[0].text)
    assert served["max-model-len"] == 8192
    assert served["dtype"] == "float16"
    for key in served:
        assert has_flag(key, "0.32.0"), key


def test_notes_wrap_both_scripts() -> None:
    assert note("a b", 2) == "  # a b"
    assert all(len(line) <= 40 for line in note("word " * 40, width=40).splitlines())
    wide = note("显存" * 60, width=40).splitlines()
    assert len(wide) > 5
    assert all(sum(2 if ord(c) > 0x2E7F else 1 for c in line) <= 40 for line in wide)
