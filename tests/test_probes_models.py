"""Model directories: real safetensors headers, broken downloads of every kind, tokenizers, caches."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from dstune.model import Gap
from dstune.probes import model_files, models
from dstune.probes.reading import Options

QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 28,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "eos_token_id": 151643,
    "transformers_version": "4.44.0",
}
BYTE_LEVEL = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}]},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": None, "vocab": {"a": 0}, "merges": []},
}


def tensors(shapes: dict[str, tuple[str, list[int]]]) -> bytes:
    """A safetensors file with these tensors, all zero."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in shapes.items():
        size = {"BF16": 2, "F32": 4, "I32": 4}[dtype]
        for n in shape:
            size *= n
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(table).encode()
    return struct.pack("<Q", len(header)) + header + bytes(end)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole small model."""
    base = tmp_path / "DeepSeek-R1-Distill-Qwen-1.5B"
    base.mkdir()
    (base / "config.json").write_text(json.dumps(QWEN))
    (base / "model.safetensors").write_bytes(tensors({"a": ("BF16", [100, 10]), "b": ("BF16", [24])}))
    (base / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "eos_token_id": 151643})
    )
    (base / "tokenizer.json").write_text(json.dumps(BYTE_LEVEL))
    (base / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "LlamaTokenizerFast",
                "eos_token": {"content": "<|end|>"},
                "added_tokens_decoder": {"151643": {"content": "<|end|>"}},
                "model_max_length": 16384,
                "chat_template": "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}",
            }
        )
    )
    return base


def facts(folder: Path, layout: str = "plain") -> dict[str, Any]:
    return {i.name: getattr(i, "value", i) for i in models.read(str(folder), "model", layout)}


def test_whole_model(folder: Path) -> None:
    read = facts(folder)
    assert read["architecture"] == "Qwen2ForCausalLM"
    assert (read["layers"], read["kv_heads"], read["head_dim"]) == (28, 2, 128)
    assert read["dtype"] == read["weights_dtype"] == "bfloat16"
    assert read["parameters"] == 1024
    assert read["quantization"] == "none"
    assert "sliding_window" not in read  # it is switched off
    for broken in ("truncated_files", "lfs_pointers", "empty_files", "broken_links", "missing_shards"):
        assert read[broken] == [], broken
    assert read["generation_temperature"] == 0.6
    assert read["eos_mismatch"] is False
    assert read["chat_template"] is True
    assert read["template_opens_think"] is True
    assert read["model_max_length"] == 16384


def test_llama_class_on_a_byte_level_tokenizer(folder: Path) -> None:
    read = facts(folder)
    assert (read["tokenizer_kind"], read["tokenizer_byte_level"]) == ("BPE", True)
    assert read["tokenizer_class_mismatch"] is True
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "Qwen2Tokenizer"}))
    assert facts(folder)["tokenizer_class_mismatch"] is False


def test_truncated_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert facts(folder)["truncated_files"] == ["model.safetensors"]
    path.write_bytes(path.read_bytes()[:20])
    assert facts(folder)["truncated_files"] == ["model.safetensors"]


def test_lfs_pointers_and_empty_files(folder: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 3554214752\n"
    (folder / "model.safetensors").write_text(pointer)
    (folder / "generation_config.json").write_text("")
    read = facts(folder)
    assert read["lfs_pointers"] == ["model.safetensors"]
    assert read["truncated_files"] == []
    assert read["empty_files"] == ["generation_config.json"]


def test_missing_shard_and_tensor(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    read = facts(folder)
    assert read["missing_shards"] == ["model-00002-of-00002.safetensors"]
    assert read["tensors_missing"] == 1


def test_shard_missing_without_an_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00002-of-00003.safetensors")
    missing, _ = model_files.missing_shards(str(folder), model_files.files_of(str(folder)))
    assert missing == ["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"]


def test_torch_archive_cut_short(folder: Path) -> None:
    import zipfile

    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "x" * 1000)
    assert facts(folder)["truncated_files"] == []
    path.write_bytes(path.read_bytes()[:500])
    assert facts(folder)["truncated_files"] == ["pytorch_model.bin"]


def test_quantised_checkpoint(folder: Path) -> None:
    quant = {"quant_method": "awq", "bits": 4, "group_size": 128}
    (folder / "config.json").write_text(json.dumps({**QWEN, "quantization_config": quant}))
    (folder / "model.safetensors").write_bytes(tensors({"qweight": ("I32", [64, 64]), "norm": ("BF16", [8])}))
    read = facts(folder)
    assert (read["quantization"], read["quantization_bits"], read["quantization_group"]) == ("awq", 4, 128)
    assert "parameters" not in read  # packed words are no parameters


def test_end_token_that_generation_does_not_stop_at(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert facts(folder)["eos_mismatch"] is True


def test_template_in_its_own_file(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert facts(folder)["chat_template"] is False
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert facts(folder)["chat_template"] is True


def test_broken_json_is_a_gap(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": [')
    items = list(models.read(str(folder), "model"))
    assert any(isinstance(i, Gap) and i.name == "architecture" for i in items)


def test_modelscope_escaping(tmp_path: Path) -> None:
    real = tmp_path / "DeepSeek-R1-Distill-Qwen-1___5B"
    real.mkdir()
    wanted = tmp_path / "DeepSeek-R1-Distill-Qwen-1.5B"
    read = facts(wanted)
    assert read["exists"] is False
    assert read["escaped_twin"] == str(real)
    assert facts(real)["escaped_path"] is True


def test_hub_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = tmp_path / "hub/models--deepseek-ai--DeepSeek-R1-Distill-Qwen-1.5B"
    snapshot = repo / "snapshots/abc123"
    (repo / "blobs").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs/main").write_text("abc123")
    snapshot.mkdir(parents=True)
    for file in folder.iterdir():
        (repo / "blobs" / file.name).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(repo / "blobs" / file.name)
    (snapshot / "gone.safetensors").symlink_to(repo / "blobs/gone")
    (repo / "blobs/0123.incomplete").write_bytes(b"x")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "none"))
    read = {i.name: getattr(i, "value", i) for i in models.probe(Options())}
    assert read["id"] == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    assert (read["layout"], read["incomplete_downloads"]) == ("hf_cache", 1)
    assert read["broken_links"] == ["gone.safetensors"]
    assert read["parameters"] == 1024
    assert list(models.probe(Options(cache=False))) == []


def test_modelscope_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "scope/hub/models/deepseek-ai"
    place.mkdir(parents=True)
    folder.rename(place / "DeepSeek-R1-Distill-Qwen-1___5B")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "scope"))
    read = {i.name: getattr(i, "value", i) for i in models.probe(Options())}
    assert read["id"] == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    assert (read["layout"], read["escaped_path"]) == ("modelscope", True)


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 7, struct.pack("<Q", 1 << 40), struct.pack("<Q", 4) + b"nope", struct.pack("<Q", 2) + b"[]"]
)
def test_no_safetensors_header(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    assert model_files.safetensors_header(str(path)) is None


def _gguf(pairs: dict[str, Any], data: bytes) -> bytes:
    def text(t: str) -> bytes:
        return struct.pack("<Q", len(t)) + t.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, 2, len(pairs))
    for key, value in pairs.items():
        out += text(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + text(value)
        elif isinstance(value, list):
            out += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        else:
            out += struct.pack("<II", 4, value)
    for name, offset in (("a", 0), ("b", 64)):
        out += text(name) + struct.pack("<IQQIQ", 2, 4, 8, 1, offset)
    return out + bytes(-len(out) % 32) + data


def test_gguf_file(tmp_path: Path) -> None:
    pairs = {
        "general.architecture": "qwen2", "general.file_type": 15, "qwen2.block_count": 28, "qwen2.context_length": 131072,
        "qwen2.embedding_length": 1536, "qwen2.attention.head_count": 12, "qwen2.attention.head_count_kv": 2,
        "tokenizer.ggml.tokens": ["a", "b", "c"], "tokenizer.chat_template": "{{ messages }}",
    }  # fmt: skip
    path = tmp_path / "model-Q4_K_M.gguf"
    path.write_bytes(_gguf(pairs, bytes(128)))
    for read in (facts(tmp_path), facts(path)):
        assert (read["model_type"], read["layers"], read["kv_heads"], read["head_dim"]) == ("qwen2", 28, 2, 128)
        assert (read["quantization"], read["vocab_size"], read["max_position_embeddings"]) == ("Q4_K_M", 3, 131072)
        assert (read["parameters"], read["chat_template"], read["truncated_files"]) == (64, True, [])
    path.write_bytes(_gguf(pairs, bytes(60)))
    assert facts(path)["truncated_files"] == [path.name]
    path.write_bytes(path.read_bytes()[:100])
    assert facts(tmp_path)["truncated_files"] == [path.name]
