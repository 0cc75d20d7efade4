"""What must never leave: tokens, passwords, names of people and machines."""

import pytest

from dstune.redact import hashed, redact


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUv", "AbCdEfGhIjKlMnOpQrStUv"),
        ("Authorization: Bearer sk-1234567890abcdefgh", "1234567890abcdefgh"),
        ('api_key="abcdef1234567890"', "abcdef1234567890"),
        ("vllm serve m --api-key topsecretkey", "topsecretkey"),
        ("https://bob:hunter22@proxy.local:3128", "hunter22"),
        ("/home/liwei/models/x", "liwei"),
        (r"C:\Users\zhang\model", "zhang"),
        ("mail wang@example.com now", "wang@example.com"),
        ("GPU-8d0f3c1a-4b62-4c7e-9a55-0b1c2d3e4f50", "8d0f3c1a"),
        ("modelscope login ms-01234567-89ab-cdef-0123-456789abcdef", "89ab"),
        ("MODELSCOPE_API_TOKEN: 0123456789abcdef0123", "0123456789abcdef0123"),
    ],
)
def test_secret_goes(text: str, secret: str) -> None:
    assert secret not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_new_tokens=2048",
        "eos_token_id=151643",
        "tokenizer = AutoTokenizer",
        "api_key=None",
        "token: $HF_TOKEN",
        "/home/user/app.py",
        "GPU 0: 23.65 GiB",
        "    hf_hub_download(",
        "hf_quantizer.validate_environment(",
        "code --install-extension ms-python.python",
    ],
)
def test_harmless_stays(text: str) -> None:
    assert redact(text) == text


def test_hash_is_stable_and_short() -> None:
    assert hashed("GPU-1") == hashed("GPU-1") != hashed("GPU-2")
    assert len(hashed("GPU-1")) == 8
