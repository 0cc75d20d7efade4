"""The failures of `provoke` on transformers, llama.cpp, Gradio, and of clients."""

from __future__ import annotations

import json
import subprocess
import urllib.request

from tests.real import servers
from tests.real.provocations import ALL, LFS, ONLINE, USER, busy_port, failure
from tests.real.provoke import GGUF, MODEL, Box, changed, free_port, python

# transformers


@failure("torch-cpu-only-wheel--transformers")
def _(box: Box) -> None:
    box.script(
        "vllm",
        f"from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained({str(MODEL)!r}).to('cuda')\n",
    )


@failure("flash-attn-not-installed--transformers")
def _(box: Box) -> None:
    box.script(
        "vllm",
        f"import torch\nfrom transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained({str(MODEL)!r}, dtype=torch.bfloat16, attn_implementation='flash_attention_2')\n",
    )


@failure("hub-offline-cache-miss--transformers")
def _(box: Box) -> None:
    source = "from transformers import AutoTokenizer\ntokenizer = AutoTokenizer.from_pretrained('deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B')\n"
    box.script("vllm", source, {"HF_HOME": str(box.folder / "hf")})


@failure("network-proxy-blocked--transformers")
def _(box: Box) -> None:
    source = "from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B')\n"
    box.script("vllm", source, {"HF_HOME": str(box.folder / "hf"), **ONLINE}, 300)


@failure("quantization-package-missing--transformers")
def _(box: Box) -> None:
    box.script(
        "vllm",
        f"from transformers import AutoModelForCausalLM, BitsAndBytesConfig\nmodel = AutoModelForCausalLM.from_pretrained({str(MODEL)!r}, quantization_config=BitsAndBytesConfig(load_in_4bit=True))\n",
    )


@failure("tokenizer-dependency-missing--transformers")
def _(box: Box) -> None:
    model = box.model()
    for name in ("tokenizer.json", "special_tokens_map.json"):
        (model / name).unlink(missing_ok=True)
    changed(model / "tokenizer_config.json", tokenizer_class="LlamaTokenizer")
    (model / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02" * 3)
    (box.folder / "sitecustomize.py").write_text(
        "import sys\nsys.modules['sentencepiece'] = None\nsys.modules['tiktoken'] = None\n"
    )
    source = f"from transformers import AutoTokenizer\ntokenizer = AutoTokenizer.from_pretrained({str(model)!r})\n"
    box.script("vllm", source, {"PYTHONPATH": str(box.folder)})


@failure("batch-padding-side--transformers")
def _(box: Box) -> None:
    box.script(
        "vllm",
        f"""from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({str(MODEL)!r}, padding_side="right")
tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained({str(MODEL)!r})
inputs = tokenizer(["What is 2^10? Please reason step by step.", "Hi"], return_tensors="pt", padding=True)
out = model.generate(**inputs, max_new_tokens=16)
print(tokenizer.batch_decode(out, skip_special_tokens=True))
""",
    )


@failure("sampling-disabled-temperature-ignored--transformers")
def _(box: Box) -> None:
    box.script(
        "vllm",
        f"""from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({str(MODEL)!r})
model = AutoModelForCausalLM.from_pretrained({str(MODEL)!r})
inputs = tokenizer("What is 2^10?", return_tensors="pt")
out = model.generate(**inputs, max_new_tokens=16, do_sample=False, temperature=0.6, top_p=0.95)
print(tokenizer.decode(out[0], skip_special_tokens=True))
""",
    )


@failure("fp16-activation-overflow--transformers-sampling")
def _(box: Box) -> None:
    box.script(
        "vllm",
        f"""import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({str(MODEL)!r})
model = AutoModelForCausalLM.from_pretrained({str(MODEL)!r}, dtype=torch.float16)
for layer in model.model.layers[:4]:
    layer.mlp.down_proj.weight.data *= 3000  # activations as large as those of models trained in bfloat16
inputs = tokenizer("What is 2^10?", return_tensors="pt")
out = model.generate(**inputs, max_new_tokens=32, do_sample=True, temperature=0.6)
print(tokenizer.decode(out[0], skip_special_tokens=True))
""",
    )


@failure("served-model-name-mismatch--transformers-serve")
def _(box: Box) -> None:
    port = free_port()
    ask = {"model": "deepseek-r1", "messages": [USER], "stream": True}
    box.server(servers.transformers(port), port, "/health", lambda url: box.ask(f"{url}/v1/chat/completions", ask))


@failure("port-in-use--transformers-serve")
def _(box: Box) -> None:
    with busy_port() as port:
        box.run(servers.transformers(port), timeout=60)


@failure("host-ram-oom-kill--transformers-ulimit")
def _(box: Box) -> None:
    (box.folder / "app.py").write_text(
        f"from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained({str(MODEL)!r}, dtype='float32')\nimport torch\ncache = torch.zeros(30, 2, 64, 3, 131072, 64)\n"
    )
    box.run(["bash", "-c", f"ulimit -v 6000000; {python('vllm')} app.py"], timeout=60)


@failure("torchvision-torch-mismatch--transformers")
def _(box: Box) -> None:
    target = box.folder / "extra"
    quiet = ["-m", "pip", "install", "-q", "--no-deps", "--target", str(target), "torchvision==0.21.0"]
    subprocess.run([python("vllm"), *quiet], check=True, capture_output=True)
    source = "from transformers import LlamaForCausalLM, AutoImageProcessor, CLIPImageProcessorFast\n"
    box.script("vllm", "import torchvision\n" + source, {"PYTHONPATH": str(target)})


# llama.cpp


@failure("model-path-not-found--llamacpp")
def _(box: Box) -> None:
    command = servers.llamacpp(free_port())
    command[command.index("--model") + 1] = "/data/models/deepseek-r1.gguf"
    box.run(command, timeout=40)


@failure("model-download-truncated--llamacpp")
def _(box: Box) -> None:
    file = box.folder / "DeepSeek-R1-Distill-Qwen-1.5B-Q4_K_M.gguf"
    file.write_bytes(GGUF.read_bytes()[:50_000_000])
    command = servers.llamacpp(free_port())
    command[command.index("--model") + 1] = str(file)
    box.run(command, timeout=40)


@failure("git-lfs-pointer-files--llamacpp")
def _(box: Box) -> None:
    file = box.folder / "DeepSeek-R1-Distill-Qwen-1.5B-Q4_K_M.gguf"
    file.write_text(LFS)
    command = servers.llamacpp(free_port())
    command[command.index("--model") + 1] = str(file)
    box.run(command, timeout=40)


@failure("request-exceeds-context--llamacpp")
def _(box: Box) -> None:
    port = free_port()
    command = servers.llamacpp(port)
    command[command.index("--n_ctx") + 1] = "512"
    ask = {"model": "smollm2", "messages": [{"role": "user", "content": "the quick brown fox " * 300}]}
    box.server(command, port, "/v1/models", lambda url: box.ask(f"{url}/v1/chat/completions", ask))


@failure("port-in-use--llamacpp")
def _(box: Box) -> None:
    with busy_port() as port:
        box.run(servers.llamacpp(port), timeout=40)


@failure("llamacpp-interrupts-requests--server")
def _(box: Box) -> None:
    port = free_port()
    command = [c for c in servers.llamacpp(port) if c not in ("--interrupt_requests", "false")]
    body = {
        "model": "smollm2",
        "stream": True,
        "max_tokens": 400,
        "messages": [{"role": "user", "content": "Tell me a long story."}],
    }

    def asks(url: str) -> None:

        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        first = urllib.request.urlopen(request, timeout=30)
        first.read(600)
        box.ask(f"{url}/v1/chat/completions", {**body, "max_tokens": 8, "stream": False})
        try:
            first.read()
        except Exception as error:
            box.say(f"client: {type(error).__name__}: {error}")

    box.server(command, port, "/v1/models", asks)


# Gradio

CHAT = "import gradio as gr\n\ndef chat(message, history):\n    yield message\n\n"


@failure("gradio-removed-argument--queue")
def _(box: Box) -> None:
    box.script("gradio6", CHAT + "demo = gr.ChatInterface(chat)\ndemo.queue(concurrency_count=4)\ndemo.launch()\n")


@failure("gradio-removed-argument--chatbot-height")
def _(box: Box) -> None:
    box.script("gradio6", CHAT + "demo = gr.ChatInterface(chat, retry_btn=None, undo_btn=None)\ndemo.launch()\n")


@failure("gradio-removed-argument--style")
def _(box: Box) -> None:
    box.script("gradio6", CHAT + "with gr.Blocks() as demo:\n    gr.Chatbot().style(height=500)\ndemo.launch()\n")


@failure("port-in-use--gradio")
def _(box: Box) -> None:
    with busy_port() as port:
        box.script("gradio6", CHAT + f"gr.ChatInterface(chat).launch(server_name='127.0.0.1', server_port={port})\n")


@failure("bind-address-not-available--gradio")
def _(box: Box) -> None:
    box.script("gradio6", CHAT + "gr.ChatInterface(chat).launch(server_name='203.0.113.7', server_port=7860)\n")


@failure("gradio-share-tunnel-missing--offline")
def _(box: Box) -> None:
    box.script(
        "gradio6",
        CHAT + f"gr.ChatInterface(chat).launch(share=True, server_port={free_port()}, prevent_thread_lock=True)\n",
        ONLINE,
    )


@failure("gradio-localhost-starlette--unpinned")
def _(box: Box) -> None:
    box.script("gradio4_unpinned", CHAT + f"gr.ChatInterface(chat).launch(server_port={free_port()})\n", timeout=60)


@failure("proxy-intercepts-localhost--gradio4")
def _(box: Box) -> None:
    proxy = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    box.say("$ env | grep -i proxy\n" + "\n".join(f"{k}={v}" for k, v in proxy.items()))
    box.script("gradio4", CHAT + f"gr.ChatInterface(chat).launch(server_port={free_port()})\n", proxy, timeout=60)


@failure("gradio-pydantic-break--gradio4")
def _(box: Box) -> None:
    target = box.folder / "extra"
    subprocess.run(
        [python("gradio4"), "-m", "pip", "install", "-q", "--target", str(target), "pydantic==2.11.7"],
        check=True,
        capture_output=True,
    )
    port = free_port()
    (box.folder / "app.py").write_text(
        CHAT + f"gr.Interface(lambda image: image, gr.Image(), gr.Image()).launch(server_port={port})\n"
    )

    def asks(url: str) -> None:
        box.say(f"$ curl {url}/info")
        try:
            urllib.request.urlopen(f"{url}/info", timeout=10)
        except OSError as error:
            box.say(str(error))

    box.server([python("gradio4"), "app.py"], port, "/config", asks, {"PYTHONPATH": str(target)})


# Clients


@failure("server-not-running--openai-client")
def _(box: Box) -> None:
    source = f"from openai import OpenAI\nclient = OpenAI(base_url='http://127.0.0.1:{free_port()}/v1', api_key='-', max_retries=0)\nprint(client.models.list())\n"
    box.script("vllm", source)


@failure("localhost-ipv6--curl")
def _(box: Box) -> None:
    port = free_port()

    def asks(url: str) -> None:
        box.run(["curl", "-sv", "--max-time", "3", f"http://[::1]:{port}/v1/models"])

    box.server(servers.llamacpp(port), port, "/v1/models", asks)


__all__ = ["ALL"]
