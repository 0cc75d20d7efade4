"""What must never leave: tokens, passwords, names of people and machines."""

import pytest

from dstune.redact import hashed, printable, redact


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
        ('launch(auth=("admin", "hunter2hunter2"))', "hunter2hunter2"),
        ("launch(auth=[('admin', 'hunter2hunter2')])", "hunter2hunter2"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENG", "wJalrXUtnFEMIK7MDENG"),
        ("DB_PASS=hunter2hunter2", "hunter2hunter2"),
        ("'api_key': ['hunter2hunter2']", "hunter2hunter2"),
        ('CMD ["vllm", "--api-key", "hunter2hunter2"]', "hunter2hunter2"),
        ("curl -u admin:hunter2hunter2 http://h", "hunter2hunter2"),
        ('key = "0a1b2c3d4e5f60718293"', "0a1b2c3d4e5f60718293"),
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
        "docker run -u 1000:1000 --user 0:0 x",
        'gr.Button(key="submit-button")',
        "bypass=abcdefgh",
    ],
)
def test_harmless_stays(text: str) -> None:
    assert redact(text) == text


def test_a_terminal_obeys_nothing() -> None:
    assert not set(printable("a\x1b]0;title\x07\x1b[2J\x9b31m\x08\u202e\x1bPq")) & set("\x1b\x07\x9b\x08\u202e")
    assert printable("\x1b[31mred\x1b[0m\tx\n中文") == "\x1b[31mred\x1b[0m\tx\n中文"


def test_hash_is_stable_and_short() -> None:
    assert hashed("GPU-1") == hashed("GPU-1") != hashed("GPU-2")
    assert len(hashed("GPU-1")) == 8
