"""Catalogue ids and aliases; parameter counts from configurations and safetensors headers."""

import json
import struct

import pytest

from dstune.catalog import gpus, load, models
from dstune.errors import DstuneError

R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"


def _config(**changes):
    base = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 131072,
        "use_sliding_window": False,
        "sliding_window": 4096,
    }
    return {**base, **changes}


def test_r1_counts_are_the_published_ones():
    spec = models.find(R1)
    assert spec.params == 1_777_088_000
    assert spec.kv_width * spec.kv_layers * 2 == 28_672
    assert not spec.tied


@pytest.mark.parametrize(
    ("name", "home", "scheme"),
    [
        ("deepseek-r1:1.5b", R1, ""),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct", "awq-int4"),
        ("unsloth/qwen2.5-0.5b-instruct-unsloth-bnb-4bit", "Qwen/Qwen2.5-0.5B-Instruct", "bnb-nf4-unsloth"),
        ("RedHatAI/Qwen3-8B-quantized.w4a16", "Qwen/Qwen3-8B", "gptq-int4"),
        ("espressor/meta-llama.Llama-3.2-3B-Instruct_W4A16", "meta-llama/Llama-3.2-3B-Instruct", "gptq-int4"),
        ("Qwen3-14B-FP8", "Qwen/Qwen3-14B", "fp8"),
    ],
)
def test_names(name, home, scheme):
    spec = models.find(name)
    assert (spec.id, spec.quant) == (home, scheme)


def test_every_alias_of_the_recipes_leads_home():
    for file in load("models").values():
        for row in file["model"]:
            for spelling in (row["id"], *row.get("aliases", ())):
                assert models.find(spelling).id == row["id"], spelling


def test_unknown_model_suggests():
    with pytest.raises(DstuneError) as caught:
        models.find("DeepSeek-R1-Distill-Qwen-1.6B")
    assert "DeepSeek-R1-Distill-Qwen-1.5B" in caught.value.why


@pytest.mark.parametrize(
    ("name", "expected"), [("7b", "Qwen/Qwen2.5-7B-Instruct"), ("qwen3", "Qwen/Qwen3-8B"), ("gemma", "google/gemma-")]
)
def test_a_size_or_a_family_names_models_that_have_it(name: str, expected: str) -> None:
    with pytest.raises(DstuneError) as caught:
        models.find(name)
    assert expected in caught.value.why
    assert " more" in caught.value.why
    assert "dstune estimate --list-models" in caught.value.next


@pytest.mark.parametrize("name", ["9999", "xyz"])
def test_a_card_that_is_like_none_leads_to_the_list_and_not_to_some_card(name: str) -> None:
    with pytest.raises(DstuneError) as caught:
        gpus.find(name)
    assert caught.value.why == ""
    assert "dstune estimate --list-gpus" in caught.value.next
    assert "4090" not in caught.value.next


def test_the_lists_hold_every_name_that_is_taken(run_dstune) -> None:
    shown = {
        command: [line.split()[0] for line in run_dstune(*command.split()).stdout.splitlines()]
        for command in ("estimate --list-models", "recommend --list-gpus")
    }
    assert sorted(shown["estimate --list-models"]) == sorted(m.id for m in models.rows())
    assert sorted(shown["recommend --list-gpus"]) == sorted(g.id for g in gpus.rows())


def test_counts_from_the_configuration_alone():
    spec = models.from_config(_config(), name="mine")
    assert spec.params == 1_777_088_000
    assert spec.local_layers == 0


def test_every_plain_catalogue_entry_agrees_with_its_shape():
    """The formula of `from_config` against the published count of dense Qwen2, Llama and Mistral checkpoints: within 0.1 %."""
    seen = 0
    for spec in models.rows():
        if spec.architecture not in ("Qwen2ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"):
            continue
        config = _config(
            architectures=[spec.architecture],
            model_type="x",
            hidden_size=spec.hidden,
            intermediate_size=spec.intermediate,
            num_hidden_layers=spec.layers,
            num_attention_heads=spec.heads,
            num_key_value_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            vocab_size=spec.vocab,
            tie_word_embeddings=spec.tied,
        )
        seen += 1
        assert models.from_config(config).params == pytest.approx(spec.params, rel=1e-3), spec.id
    assert seen > 40


def _write(folder, config, tensors):
    (folder / "config.json").write_text(json.dumps(config))
    head, at = {}, 0
    for name, (shape, dtype, size) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw)


def test_counts_from_a_header(tmp_path):
    _write(
        tmp_path,
        _config(tie_word_embeddings=True, vocab_size=10, hidden_size=4, num_hidden_layers=1, num_attention_heads=1),
        {
            "model.embed_tokens.weight": ([10, 4], "BF16", 80),
            "model.x.weight": ([4, 7], "BF16", 56),
            "lm_head.weight": ([10, 4], "BF16", 80),
        },
    )
    spec = models.from_dir(tmp_path)
    assert spec.params == 10 * 4 + 4 * 7  # a stored copy of a tied head is not loaded twice
    assert spec.confidence == "high"
    assert spec.stored_bytes == 216


def test_pointer_file_is_no_header(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(_config()))
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3554214752\n")
    spec = models.from_dir(tmp_path)
    assert spec.params == 1_777_088_000
    assert spec.stored_bytes == 0


@pytest.mark.parametrize(
    ("quant", "scheme"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq-int4"),
        ({"quant_method": "gptq", "bits": 8}, "gptq-int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "bnb-nf4"),
        ({"quant_method": "fp8"}, "fp8"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "symmetric": True}}},
            },
            "gptq-int4",
        ),
    ],
)
def test_quantisation_of_a_config(quant, scheme):
    assert models.from_config(_config(quantization_config=quant)).quant == scheme


def test_mixture_of_experts():
    spec = models.from_config(
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "intermediate_size": 6144,
        }
    )
    known = models.find("Qwen/Qwen3-30B-A3B")
    assert spec.params == pytest.approx(known.params, rel=1e-3)
    assert spec.active == pytest.approx(known.active, rel=1e-2)


def test_latent_attention():
    spec = models.from_config(
        {
            "architectures": ["MiniCPM3ForCausalLM"],
            "hidden_size": 2560,
            "intermediate_size": 6400,
            "num_hidden_layers": 62,
            "num_attention_heads": 40,
            "num_key_value_heads": 40,
            "vocab_size": 73448,
            "tie_word_embeddings": True,
            "q_lora_rank": 768,
            "kv_lora_rank": 256,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
        }
    )
    known = models.find("openbmb/MiniCPM3-4B")
    assert spec.params == pytest.approx(known.params, rel=1e-3)
    assert spec.kv_width == known.kv_width


def test_layers_with_and_without_cache():
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 8
    spec = models.from_config(
        _config(
            num_hidden_layers=32,
            layer_types=kinds,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_conv_kernel_dim=4,
        )
    )
    assert spec.kv_layers == 8
    assert spec.state_bytes == models.find("Qwen/Qwen3.5-4B").state_bytes


def test_no_config_is_said(tmp_path):
    with pytest.raises(DstuneError) as caught:
        models.from_dir(tmp_path)
    assert "config.json" in caught.value.what
