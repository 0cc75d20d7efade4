"""Shell lines in the forms that people write: what they start, with which settings, slips, and settings put back in place."""

import pytest

from dstune.model import Document, Fact
from dstune.readers import command
from dstune.readers.shell import commands


def facts(text: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for item in command.read(Document("launch.sh", "command", text)):
        if isinstance(item, Fact):
            found.setdefault(f"{item.subject}.{item.name}", item.value)
    return found


def line_of(text: str, subject: str, name: str) -> int | None:
    return next(
        f.line
        for f in command.read(Document("x.sh", "command", text))
        if isinstance(f, Fact) and (f.subject, f.name) == (subject, name)
    )


@pytest.mark.parametrize(
    ("text", "program", "expected"),
    [
        ("vllm serve org/m --max-model-len 8k -tp 2", "vllm serve", {"vllm.model": "org/m", "vllm.max_model_len": 8000, "vllm.tensor_parallel_size": 2}),
        ("python3 -m vllm.entrypoints.openai.api_server --model=m --enforce_eager", "vllm openai", {"vllm.model": "m", "vllm.enforce_eager": True}),
        ("python -m vllm.entrypoints.api_server --model m -q awq", "vllm demo", {"vllm.quantization": "awq"}),
        ("CUDA_VISIBLE_DEVICES=1 nohup vllm serve m --no-enable-prefix-caching > log 2>&1 &", "vllm serve", {"vllm.enable_prefix_caching": False, "env.cuda_visible_devices": "1"}),
        ("docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.6.3 --model m --dtype half", "vllm serve", {"vllm.dtype": "half", "docker.gpu_requested": True}),
        ("docker run --entrypoint python3 vllm/vllm-openai -m vllm.entrypoints.openai.api_server --model m", "vllm openai", {"vllm.model": "m"}),
        ("podman run --device nvidia.com/gpu=all --shm-size=1g quay.io/x/vllm --model m", "vllm serve", {"docker.gpu_request": "cdi", "docker.shm_mib": 1024.0}),
        ('docker run --rm img bash -c "pip install x && vllm serve m --max-num-seqs 8"', "vllm serve", {"vllm.max_num_seqs": 8}),
        ("python -m sglang.launch_server --model-path m --tp 8 --mem-fraction-static 0.8", "sglang", {"sglang.tp_size": 8, "sglang.mem_fraction_static": 0.8}),
        ("./llama-server -m m.gguf -ngl 99 -c 8192 --flash-attn", "llama-server", {"llamacpp.n_gpu_layers": "99", "llamacpp.ctx_size": 8192, "llamacpp.flash_attn": "on"}),
        ("llama-server -m m.gguf -ngl -1", "llama-server", {"llamacpp.n_gpu_layers": "-1"}),
        ("python -m llama_cpp.server --model m.gguf --n_gpu_layers 35", "llama-cpp-python", {"llamacpp.n_gpu_layers": "35"}),
        ("transformers serve org/m --continuous-batching", "transformers serve", {"hfserve.continuous_batching": True}),
        ("text-generation-launcher --model-id m --max-total-tokens 4096", "tgi", {"tgi.max_total_tokens": 4096}),
        ("lmdeploy serve api_server m --cache-max-entry-count 0.5", "lmdeploy", {"lmdeploy.cache_max_entry_count": 0.5}),
        ("uvicorn main:app --workers 4 --host 0.0.0.0", "uvicorn", {"web.workers": 4, "web.app": "main:app"}),
        ("OLLAMA_NUM_PARALLEL=4 ollama serve", "ollama serve", {"ollama.num_parallel": 4}),
        ("M=org/m\nvllm serve ${M} --port ${PORT:-9000}", "vllm serve", {"vllm.model": "org/m", "vllm.port": 9000}),
        ("vllm serve m ^\n  --max-model-len 4096 ^\n  --dtype half", "vllm serve", {"vllm.max_model_len": 4096, "vllm.dtype": "half"}),
        ("vllm serve m `\n  --max-model-len 4096", "vllm serve", {"vllm.max_model_len": 4096}),
        ("ExecStart=/opt/venv/bin/vllm serve m --max-model-len 4096", "vllm serve", {"vllm.max_model_len": 4096}),
        ("user@box:~/x$ vllm serve m --max-num-seqs 2", "vllm serve", {"vllm.max_num_seqs": 2}),
        ("python benchmark_throughput.py --model <plain-mistral-7b> --quantization awq", "vllm script", {"vllm.quantization": "awq", "vllm.model": "<plain-mistral-7b>"}),
        ("vllm serve m --served-model-name a b --port 1", "vllm serve", {"vllm.served_model_name": ["a", "b"], "vllm.port": 1}),
    ],
)  # fmt: skip
def test_launches(text: str, program: str, expected: dict[str, object]) -> None:
    found = facts(text)
    assert found["command.program"] == program
    assert {k: found.get(k) for k in expected} == expected


def test_comments_and_here_documents_are_no_commands() -> None:
    found = facts("# vllm serve a --api-key sk-1234567890abcdef\ncat > x <<'EOF'\nvllm serve b --dtype half\nEOF\necho done\n")
    assert not any(k.startswith("vllm.") for k in found)


def test_lines_are_right_in_continued_commands() -> None:
    text = "#!/bin/sh\nvllm serve m \\\n  --dtype half \\\n  --max-num-seqs 8\n"
    assert line_of(text, "vllm", "max_num_seqs") == 4


def test_several_commands_of_one_engine_are_numbered() -> None:
    found = facts("vllm serve a --port 1 &\nvllm serve b --port 2 &\n")
    assert (found["vllm.model"], found["vllm1.model"], found["vllm1.port"]) == ("a", "b", 2)


def test_an_api_key_is_never_shown() -> None:
    items = [
        f
        for f in command.read(Document("x", "command", "vllm serve m --api-key sk-abcdefghijklmnop1234"))
        if isinstance(f, Fact)
    ]
    assert any(f.name == "api_key" for f in items)
    assert "abcdefghijklmnop" not in str(items)


def test_docker_facts() -> None:
    found = facts(
        "docker run --runtime nvidia -v ~/.cache/huggingface:/root/.cache/huggingface --memory 12g --ipc=host vllm/vllm-openai:latest --model org/m"
    )
    assert found["docker.gpu_request"] == "runtime nvidia"
    assert found["docker.cache_mounted"] is True
    assert (found["docker.memory_mib"], found["docker.ipc_host"], found["docker.image_floating"]) == (12288.0, True, True)
    found = facts("docker run -v ./models:/models vllm/vllm-openai:v0.11.0 --model org/m")
    assert (found["docker.gpu_requested"], found["docker.needs_gpu"], found["docker.cache_mounted"]) == (False, True, False)
    assert found["vllm.version"] == "0.11.0"
    assert facts("docker run nginx:1.27")["docker.needs_gpu"] is False
    assert facts("docker run vllm/vllm-openai-cpu:v0.11.0 --model m")["docker.needs_gpu"] is False
    assert facts("docker run -it --rm <cuda image>")["docker.needs_gpu"] is True


def test_flag_facts() -> None:
    found = facts("vllm serve m --disable-log-requests --reasoning-parser deepseek_r1 --max-model-length 5")
    assert (found["vllm.removed_flag"], found["vllm.removed_flag_gone"]) == ("--disable-log-requests", "0.32.0")
    assert (found["vllm.newest_flag"], found["vllm.newest_flag_since"]) == ("--reasoning-parser", "0.8.5.post1")
    assert (found["vllm.unknown_flag"], found["vllm.unknown_flag_close"]) == ("--max-model-length", "--max-model-len")
    clean = facts("vllm serve m --max-model-len 4096 --dtype half")
    assert not any("flag" in k for k in clean)


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        ("vllm serve m \\\n  --dtype half\n  --port 1\n", "lost_backslash", 2),
        ("vllm serve m \\ \n  --dtype half\n", "space_after_backslash", 1),
        ("vllm serve m \\\n  --port 1 \\\n\n  --dtype half\n", "lost_backslash", 3),
        ("vllm serve m \\\n# a note\n  --dtype half\n", "comment_in_continuation", 2),
        ("vllm serve m \\\n  --dtype half \\ # a note\n  --port 1\n", "comment_in_continuation", 2),
        ('docker run -v "~/.cache:/root/.cache" vllm/vllm-openai --model m\n', "quoted_tilde", 1),
        ("vllm serve m --download-dir=~/models\n", "quoted_tilde", 1),
        ("vllm serve m \u2013dtype half\n", "odd_character", 1),
        ("vllm serve m --served-model-name \u201cx\u201d\n", "odd_character", 1),
        ("vllm serve m\u00a0--dtype half\n", "odd_character", 1),
    ],
)
def test_slips(text: str, kind: str, line: int) -> None:
    assert line_of(text, "command", kind) == line


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m \\\n  --dtype half \\\n  --port 1\n\ncurl localhost:1/health\n",
        "vllm serve m\n  --dtype half\n",  # a wrapped paste: no continuation anywhere, so no proof of a slip
        "docker run -v ~/.cache:/root/.cache vllm/vllm-openai --model ~/m\n",
        "export HF_HOME=~/hf\n",
        "vllm serve m \\\n  --dtype half\n# note\n",
        "vllm serve m --dtype half \\\n  # --port 1\n",
        'curl x -d \'{"content": "你好，“世界”"}\'\n',
        "cat <<EOF\na \\\n--b\nEOF\n",
        "# vllm serve m \\\n#   --dtype half\n",
    ],
)
def test_no_slips(text: str) -> None:
    found = facts(text)
    assert not {
        "command." + k
        for k in ("lost_backslash", "space_after_backslash", "comment_in_continuation", "quoted_tilde", "odd_character")
    } & set(found)


BLOCK = """#!/bin/bash
# start
export HF_HOME=/data/hf

vllm serve org/m \\
    --dtype half \\
    --quantization awq \\
    --max-model-len 4096   # short
"""


@pytest.mark.parametrize(
    ("settings", "old", "new"),
    [
        ({"vllm.max_model_len": 8192}, "--max-model-len 4096   #", "--max-model-len 8192   #"),
        ({"vllm.quantization": None}, "    --quantization awq \\\n", ""),
        ({"vllm.dtype": None}, "    --dtype half \\\n", ""),
        ({"vllm.max_num_seqs": 64}, "4096   # short", "4096 \\\n    --max-num-seqs 64   # short"),
        ({"vllm.model": "/m o"}, "serve org/m", "serve '/m o'"),
        ({"env.hf_home": "/x"}, "HF_HOME=/data/hf", "HF_HOME=/x"),
        ({"env.hf_home": None}, "export HF_HOME=/data/hf\n", ""),
        ({"vllm.enable_prefix_caching": False}, "4096   #", "4096 \\\n    --no-enable-prefix-caching   #"),
        ({"vllm.enforce_eager": None, "sglang.tp_size": 2}, "", ""),
    ],
)
def test_write_keeps_everything_else(settings: dict[str, object], old: str, new: str) -> None:
    assert command.write(BLOCK, settings) == (BLOCK.replace(old, new) if old else BLOCK)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        ("vllm serve m --dtype half\n", {"vllm.max_num_seqs": 8}, "vllm serve m --dtype half --max-num-seqs 8\n"),
        ("vllm serve m --dtype=half --port 1 &\n", {"vllm.dtype": "bfloat16"}, "vllm serve m --dtype=bfloat16 --port 1 &\n"),
        ("vllm serve m --dtype=half --port 1 > log\n", {"vllm.max_num_seqs": 8}, "vllm serve m --dtype=half --port 1 --max-num-seqs 8 > log\n"),
        ('vllm serve m --dtype "half"\n', {"vllm.dtype": "auto"}, 'vllm serve m --dtype "auto"\n'),
        ("vllm serve m --enforce-eager --port 1\n", {"vllm.enforce_eager": None}, "vllm serve m --port 1\n"),
        ("docker run vllm/vllm-openai --model m\n", {"docker.gpus": "all", "docker.shm_mib": 1024}, "docker run --gpus all --shm-size 1g vllm/vllm-openai --model m\n"),
        ("docker run --memory=12g --gpus all vllm/vllm-openai --model m\n", {"docker.memory_mib": None}, "docker run --gpus all vllm/vllm-openai --model m\n"),
        ("docker run \\\n  --rm \\\n  vllm/vllm-openai --model m\n", {"docker.gpus": "all"}, "docker run \\\n  --rm \\\n  --gpus all \\\n  vllm/vllm-openai --model m\n"),
        ("vllm serve m ^\n  --dtype half\n", {"vllm.max_num_seqs": 8}, "vllm serve m ^\n  --dtype half ^\n  --max-num-seqs 8\n"),
        ("vllm serve m \\\n  --dtype half \\\n  --port 1\n", {"vllm.port": None}, "vllm serve m \\\n  --dtype half\n"),
        ("python -m sglang.launch_server --model-path m --tp 2\n", {"sglang.tp_size": 1}, "python -m sglang.launch_server --model-path m --tp 1\n"),
        ("vllm serve m\n", {"vllm.env_flashinfer_sampler": False}, "VLLM_USE_FLASHINFER_SAMPLER=0 vllm serve m\n"),
        ("bash -c 'vllm serve m --dtype half'\n", {"vllm.dtype": "auto"}, "bash -c 'vllm serve m --dtype auto'\n"),
    ],
)  # fmt: skip
def test_write(text: str, settings: dict[str, object], expected: str) -> None:
    assert command.write(text, settings) == expected  # type: ignore[arg-type]


def test_what_is_written_is_read_back() -> None:
    settings = {
        "vllm.max_num_seqs": 64,
        "vllm.gpu_memory_utilization": 0.85,
        "vllm.enable_prefix_caching": True,
        "vllm.port": 9001,
    }
    found = facts(command.write(BLOCK, settings))
    assert {k: found[k] for k in settings} == settings


def test_words_know_their_place() -> None:
    text = "A=1 vllm serve 'a b' --x \"c d\" \\\n  --y z # note\n"
    (only,) = commands(text)
    assert [w.text for w in only.words] == ["vllm", "serve", "a b", "--x", "c d", "--y", "z"]
    assert all(text[w.start : w.end].strip("'\"") == w.text for w in only.words)
