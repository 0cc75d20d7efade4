"""The app reader on whole programs (tests/apps) and on fragments as people paste them."""

import json
from pathlib import Path

import pytest

from dstune.catalog.vocabulary import terms
from dstune.derive import derive
from dstune.diagnose import diagnose
from dstune.model import Document, Fact, Gap, family_of
from dstune.readers import read_document
from dstune.readers.app import read

APPS = Path(__file__).parent / "apps"
HEALTHY = sorted((APPS / "healthy").iterdir())
ABOUT = {"complete", "client_only", "reasoning_model", "chat_model", "model_samples_itself", "sdpa_left_to_torch"}

FAULTS = {
    "async_blocking.py": {"workers": 19, "blocking_in_async": 13},
    "bare_forward.py": {"loop_without_cache": 13, "forward_without_no_grad": 13, "work_per_token": 16, "decode_token_by_token": 17},
    "by_hand.py": {"model_id_meant": 4, "layers_moved_by_hand": 7, "padding_right": 12, "prompt_without_template": 12},
    "client_slips.py": {
        "greedy_reasoning": 9, "token_budget_small": 10, "base_url_without_v1": 4, "base_url_without_port": 5,
        "delta_content_unguarded": 16, "usage_chunk_unguarded": 16, "request_without_timeout": 18,
    },
    "float32_greedy.py": {
        "load_float32": 6, "max_length_beside_max_new_tokens": 7, "greedy_reasoning": 13, "token_budget_small": 7, "use_cache_false": 7,
        "system_prompt_on_r1": 11, "special_tokens_kept": 14, "gradio_removed_argument": 17,
    },
    "fragments.py": {"prompt_without_template": 12, "special_tokens_kept": 13, "prompt_echoed": 13, "yields_fragments": 16},
    "iterated.py": {"compile_not_reached": 7, "batch_encoding_positional": 20, "tokenizer_to_device": 5, "generate_iterated": 14, "inputs_not_moved": 14},
    "never_on_gpu.py": {"model_never_on_gpu": 7, "base_model_templated": 13, "history_grows": 12, "chatbot_gets_text": 18, "gradio_removed_argument": 25},
    "notebook.ipynb": {"load_without_dtype": 7, "generate_default_limit": 9, "prompt_without_template": 9},
    "per_request.py": {"model_loaded_in_handler": 10, "sampling_off": 19},
    "pool.py": {"inputs_not_moved": 16, "thread_pool_generate": 9},
    "streamlit_reload.py": {"model_id_meant": 6, "model_loaded_per_rerun": 6, "prompt_echoed": 11, "prompt_without_template": 9},
    "swap.py": {"old_model_kept": 10},
}  # fmt: skip


def facts(path: Path | str, text: str = "") -> list[Fact]:
    text = text or Path(path).read_text(encoding="utf-8")
    return [f for f in read(Document(str(path), "app", text)) if isinstance(f, Fact)]


def smells(text: str) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for f in facts("app.py", text):
        if f.subject == "app" and f.name not in ABOUT:
            found.setdefault(f.name, f.line)
    return found


def value(text: str, name: str) -> object:
    return next((f.value for f in facts("app.py", text) if f"{family_of(f.subject)}.{f.name}" == name), None)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_with_their_lines(name: str) -> None:
    found: dict[str, list[int | None]] = {}
    for f in facts(APPS / "faulty" / name):
        if f.subject == "app":
            found.setdefault(f.name, []).append(f.line)
    for smell, line in FAULTS[name].items():
        assert line in found.get(smell, []), f"{smell} not found at line {line}: {found}"


@pytest.mark.parametrize("path", HEALTHY, ids=lambda p: p.name)
def test_healthy_programs_have_no_error_and_no_warning(path: Path) -> None:
    seen = read_document(Document(str(path), "app", path.read_text(encoding="utf-8")))
    bad = [(f.cause, f.evidence) for f in diagnose(seen).findings if f.severity != "info"]
    assert not bad


@pytest.mark.parametrize("path", [*HEALTHY, *sorted((APPS / "faulty").iterdir())], ids=lambda p: p.name)
def test_only_declared_names(path: Path) -> None:
    known = terms()
    for f in facts(path):
        assert f"{family_of(f.subject)}.{f.name}" in known


def test_every_app_fact_can_be_emitted() -> None:
    """A smell that no program of the corpus and no fragment below shows is dead code."""
    seen = {f.name for p in [*HEALTHY, *sorted((APPS / "faulty").iterdir())] for f in facts(p) if f.subject == "app"}
    for text in FRAGMENTS:
        seen |= {f.name for f in facts("app.py", text) if f.subject == "app"}
    declared = {n.partition(".")[2] for n in terms() if n.startswith("app.")}
    assert declared <= seen, declared - seen


FRAGMENTS = {
    'from fastapi import FastAPI\napp = FastAPI()\nmodel = AutoModelForCausalLM.from_pretrained("m")\n@app.post("/chat")\ndef chat(q: str):\n    return tok.decode(model.generate(ids, max_new_tokens=9)[0])\n': "endpoint_returns_whole",
    'model = AutoModelForCausalLM.from_pretrained("m")\nout = model.generate(**inputs, max_length=1024)\n': "max_length_alone",
    'import gradio as gr\nbox = gr.Textbox().style(container=False)\n': "gradio_removed_argument",
    'import gradio as gr\ngr.Interface(fn=f, inputs=["text", "state"], outputs=["text"])\n': "gradio_lone_state",
    'pipe.generate(prompt)      # no limit\n': "generate_without_limit",
    'from transformers import AutoTokenizer, pipeline\npipe = pipeline("text-generation", model="meta-llama/Llama-2-7b-chat-hf")\nout = pipe(prompts, batch_size=8, max_new_tokens=9)\n': "pad_token_missing",
    'class Ask(BaseModel):\n    temperature: float = Field(0.8, ge=0.0)\nout = model.generate(**inputs, do_sample=True, temperature=req.temperature, max_new_tokens=9)\n': "temperature_from_zero",
    'model = AutoModelForCausalLM.from_pretrained("m", torch_dtype=torch.float16, device_map="cpu")\n': "half_on_cpu",
    'model = AutoModelForCausalLM.from_pretrained("m", load_in_8bit=True, device_map="auto")\nmodel.to("cuda")\n': "quantized_model_moved",
    'def step(x):\n    return model(x)            # no torch.no_grad\n': "forward_without_no_grad",
    'def ask(q):\n    try:\n        return model.generate(**q, max_new_tokens=9)\n    except Exception as e:\n        return str(e)\n': "error_as_answer",
    'conv.append(question); conv.append(answer)\n': "history_grows",
    'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-Coder-32B-Instruct")\n': "load_without_dtype",
    'demo.queue(max_size=64).launch(enable_queue=True, server_name="0.0.0.0")\n': "gradio_removed_argument",
    'text = ""\nfor chunk in stream:\n    text += chunk.choices[0].delta.content\n': "delta_content_unguarded",
    'btn.click(fn=answer, inputs=box, outputs=out)\ndemo.queue().launch()\n': "gradio_one_at_a_time",
    'model.to("cuda")\nids = torch.tensor([tok.encode(text)])\nmodel(ids)\n': "inputs_not_moved",
    'for _ in range(64):\n    logits = model(input_ids, use_cache=False).logits\n    input_ids = torch.cat([input_ids, logits[:, -1:].argmax(-1)], dim=1)\n': "use_cache_false",
    'out = model.generate(**inputs, temperature=0.7, max_new_tokens=10)\n': "sampling_not_asked",
    'import gradio as gr\nfrom transformers import pipeline\np = pipeline("text-generation", model="gpt2", device=0, trust_remote_code=True)\n'
    'gr.Interface(fn=lambda t: p(t, max_new_tokens=9)[0]["generated_text"], inputs="text", outputs="text", live=True).launch()\n': "interface_live",
    'from transformers import AutoModelForCausalLM as M, TextIteratorStreamer as S, AutoTokenizer as T\n'
    't = T.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", trust_remote_code=True)\n'
    'm = M.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", trust_remote_code=True, device_map="auto", dtype="auto")\n'
    's = S(t, skip_prompt=True, skip_special_tokens=True)\nids = t.apply_chat_template([{"role": "user", "content": "x"}], return_tensors="pt").to("cuda")\n'
    'm.generate(ids, streamer=s, max_new_tokens=64)\nfor piece in s:\n    print(piece)\n': "streamer_without_thread",
    'm = AutoModelForCausalLM.from_pretrained("a/b", torch_dtype="auto").cuda()\nids = tokenizer.apply_chat_template(messages, return_tensors="pt").to("cuda")\n'
    'm.generate(ids, max_new_tokens=5)\n': "template_result_positional",
    'from openai import OpenAI\nc = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="sk-abcdefghijklmnopqrstuvwx")\n': "secret_in_source",
    'import gradio as gr\nfrom transformers import AutoModelForCausalLM\nm = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B-Instruct", trust_remote_code=True)\n': "trust_remote_code_needless",
}  # fmt: skip


@pytest.mark.parametrize(("text", "smell"), FRAGMENTS.items(), ids=list(FRAGMENTS.values()))
def test_fragments(text: str, smell: str) -> None:
    assert smell in smells(text)


NEAR = {
    "commented out": '# model = AutoModelForCausalLM.from_pretrained("a/b", torch_dtype=torch.float32, use_cache=False)\nx = 1\n',
    "half afterwards": 'from transformers import AutoModelForCausalLM\nm = AutoModelForCausalLM.from_pretrained("a/b").half().cuda()\n',
    "guarded content": 'for chunk in stream:\n    piece = chunk.choices[0].delta.content\n    if piece is not None:\n        text += piece\n',
    "or empty": 'for chunk in stream:\n    print(chunk.choices[0].delta.content or "", end="")\n',
    "llama.cpp takes both": 'from openai import OpenAI\nc = OpenAI(base_url="http://127.0.0.1:8080", api_key="x")\n',
    "hosted api": 'from openai import OpenAI\nc = OpenAI(base_url="https://api.deepseek.com", api_key=key)\n',
    "no_grad by a decorator": 'import torch\n@torch.no_grad()\ndef step(x):\n    return model(x)\n',
    "no_grad around the caller": 'import torch\ndef step(x):\n    return model(x)\ndef run(x):\n    with torch.inference_mode():\n        return step(x)\n',
    "training": 'import torch\ndef step(x):\n    loss = model(x).loss\n    loss.backward()\n    return loss\n',
    "explicit greedy without temperature": 'out = model.generate(**inputs, do_sample=False, max_new_tokens=10)\n',
    "prompt cut off": 'out = model.generate(**inputs, max_new_tokens=10)\nreply = tokenizer.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)\n',
    "awaited async client": 'from openai import AsyncOpenAI\nfrom fastapi import FastAPI\napp = FastAPI()\nclient = AsyncOpenAI(base_url="http://127.0.0.1:8000/v1")\n'
    '@app.post("/")\nasync def f(q: str):\n    return await client.chat.completions.create(model="m", messages=[])\n',
    "moved in place": 'from transformers import AutoModelForCausalLM, AutoTokenizer\nt = AutoTokenizer.from_pretrained("./a")\nm = AutoModelForCausalLM.from_pretrained("./a", dtype="auto").cuda()\n'
    'b = t(p, return_tensors="pt")\nb.to("cuda")\nm.generate(**b, max_new_tokens=9)\n',
    "another size is no slip": 'from transformers import AutoModelForCausalLM\nm = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-3B-Instruct", dtype="auto")\n',
}  # fmt: skip


@pytest.mark.parametrize("text", NEAR.values(), ids=list(NEAR))
def test_near_misses(text: str) -> None:
    assert not smells(text)


def test_settings_follow_names_dicts_and_partials() -> None:
    text = """
import functools
import torch
import transformers as tf
from transformers import AutoModelForCausalLM as M
DTYPE = torch.bfloat16
OPTS = dict(torch_dtype=DTYPE, device_map="auto")
model = M.from_pretrained("Qwen/Qwen2.5-7B-Instruct", attn_implementation="eager", **OPTS)
gen = functools.partial(model.generate, max_new_tokens=2 * 256, use_cache=True)
config = {"temperature": 0.6}
config["top_p"] = 0.95
model.generate(x, **config, do_sample=True)
"""
    assert value(text, "transformers.dtype") == "bfloat16"
    assert value(text, "transformers.device_map") == "auto"
    assert value(text, "transformers.attn_implementation") == "eager"
    assert value(text, "generate.max_new_tokens") == 512
    assert value(text, "generate.top_p") == 0.95
    assert value(text, "generate.temperature") == 0.6


def test_what_does_not_parse_is_a_gap_and_the_rest_is_read() -> None:
    text = 'x = = 1\nmodel = AutoModelForCausalLM.from_pretrained("a/b", torch_dtype=torch.float32, ...\n\ndef f(:\n    pass\n'
    found = list(read(Document("app.py", "app", text)))
    assert any(isinstance(f, Gap) and "app.py:1" in f.reason for f in found)
    assert any(isinstance(f, Fact) and f.name == "load_float32" and f.line == 2 for f in found)


@pytest.mark.parametrize(
    "text", ["", "\n\n", "...", "def f(", "}{", "\x00", "if x:\n", "    return 1\n", "await f()\n", "用户：你好\n", "(" * 500]
)
def test_never_raises(text: str) -> None:
    list(read(Document("app.py", "app", text)))


def test_a_secret_is_never_echoed() -> None:
    text = 'from huggingface_hub import login\nlogin(token="hf_abcdefghijklmnopqrstuvwxyzABCDEF")\n'
    found = facts("app.py", text)
    assert any(f.name == "secret_in_source" for f in found)
    assert not any("abcdefghijklmnop" in f"{f.text}{f.value}" for f in found)


def test_a_notebook_pin_is_a_version() -> None:
    found = {f"{f.subject}.{f.name}": f.value for f in facts(APPS / "faulty" / "notebook.ipynb")}
    assert found["requirements.transformers"] == "4.45.2"


def test_functions_that_call_each_other_cost_no_explosion() -> None:
    """Parameters handed on through recursive functions: 4.6 s before constants were remembered, now milliseconds."""
    import time

    names = [f"f{i}" for i in range(12)]
    calls = "\n".join(f"    {n}(a, b, c)" for n in names)
    text = "import torch\n" + "\n".join(f"def {n}(a, b=1, c=2):\n{calls}\n    return x[a][b][c]" for n in names)
    start = time.process_time()
    list(read(Document("app.py", "app", text)))
    assert time.process_time() - start < 1.0


def test_a_program_of_many_megabytes_is_a_gap() -> None:
    found = list(read(Document("app.py", "app", "x = 1\n" * 500_000)))
    assert [type(f) for f in found] == [Gap]


LOCAL_APP = """
from transformers import AutoModelForCausalLM, AutoTokenizer
MODEL_PATH = "hf"
tok = AutoTokenizer.from_pretrained(MODEL_PATH)
model = AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype="auto")
def ask(text):
    ids = tok(text, return_tensors="pt")
    return tok.decode(model.generate(**ids, max_new_tokens=200)[0])
"""


@pytest.mark.parametrize(
    ("name", "text", "missing"),
    [
        ("chat_template.jinja", "{{ messages }}", True),
        ("tokenizer_config.json", '{"chat_template": "{{ messages }}"}', True),
        ("tokenizer_config.json", '{"eos_token": "x"}', False),
        ("config.json", '{"_name_or_path": "Qwen/Qwen2.5-1.5B-Instruct"}', True),
        ("config.json", '{"_name_or_path": "EleutherAI/pythia-1.4b"}', False),
        ("config.json", "{", False),
    ],
)
@pytest.mark.parametrize("path", ["hf", "./hf", "FOLDER/hf"])
def test_a_local_folder_tells_whether_its_model_chats(tmp_path: Path, path: str, name: str, text: str, missing: bool) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / name).write_text(text, encoding="utf-8")
    program = LOCAL_APP.replace('"hf"', repr(path.replace("FOLDER", tmp_path.as_posix())))
    found = read_document(Document(str(tmp_path / "app.py"), "app", program))
    assert bool(found.first("app", "prompt_without_template")) is missing


def test_engines_of_fragments_without_imports_and_their_argument_classes() -> None:
    def vllm(text: str) -> dict[str, object]:
        found = read_document(Document("app.py", "app", text)).facts
        return {f"{f.subject}.{f.name}": f.value for f in found if f.subject in ("vllm", "sglang", "llamacpp")}

    assert vllm('llm = LLM(model="a/b-7b", quantization="awq", dtype="half")\n') == {
        "vllm.model": "a/b-7b",
        "vllm.quantization": "awq",
        "vllm.dtype": "float16",
    }
    assert vllm("from vllm import AsyncEngineArgs\nx = AsyncEngineArgs(model='m', gpu_memory_utilization=0.2)\n") == {
        "vllm.model": "m",
        "vllm.gpu_memory_utilization": 0.2,
    }
    assert vllm("llm = VLLM(model='m', vllm_kwargs={'max_model_len': 4096})\n")["vllm.max_model_len"] == 4096
    assert vllm("llm = sgl.Engine(model_path='m', mem_fraction_static=0.3)\n")["sglang.mem_fraction_static"] == 0.3
    assert vllm("llm = Llama(model_path='m.gguf', n_ctx=4096)\n")
    # a class of the program's own, a name that was given a value, words that anything may take
    assert not vllm("class LLM:\n    pass\nllm = LLM(model='a', dtype='half')\n")
    assert not vllm("LLM = pick()\nllm = LLM(model='a', dtype='half')\n")
    assert not vllm("llm = LLM(model='a', temperature=0.2)\n")


@pytest.mark.parametrize(("device", "on_cpu"), [("cuda", False), ("cpu:0", True)])
def test_a_load_under_a_device_is_on_it(device: str, on_cpu: bool) -> None:
    text = (
        "import torch\nfrom transformers import AutoModelForCausalLM\n"
        f'with torch.device("{device}"):\n    model = AutoModelForCausalLM.from_pretrained("org/m-7b")\n'
        'model.generate(**tok(q, return_tensors="pt").to("cuda"), max_new_tokens=400)\n'
    )
    assert ("model_never_on_gpu" in smells(text)) is on_cpu


HEAD = """
from threading import Thread
from transformers import AutoModelForCausalLM, TextIteratorStreamer
m = AutoModelForCausalLM.from_pretrained("./m", dtype="auto", device_map="cuda"MORE)
"""
IN_ITS_THREAD = """
def answer(inputs):
    Thread(target=m.generate, kwargs=dict(**inputs, streamer=s)).start()
"""


@pytest.mark.parametrize(
    ("rest", "more", "expected"),
    [
        (IN_ITS_THREAD, "", "thread"),
        ("def answer(x):\n    def work():\n        m.generate(x, streamer=s)\n    Thread(target=work).start()\n", "", "thread"),
        ("def answer(x):\n    return m.generate(x)\n", "", "call"),
        (
            "def serve():\n    while True:\n        m.generate(jobs.get())\ndef main():\n    Thread(target=serve).start()\n",
            "",
            "call",
        ),
        (
            "def serve():\n    for job in iter(jobs.get, None):\n        m.generate(job)\ndef main():\n    Thread(target=serve).start()\n",
            "",
            "call",
        ),
        (
            "def work(xs):\n    for x in xs:\n        m.generate(x)\ndef answer(xs):\n    Thread(target=work, args=(xs,)).start()\n",
            "",
            "thread",
        ),
        (
            "from fastapi import FastAPI\napp = FastAPI()\ndef work():\n    for job in jobs():\n        m.generate(job)\n"
            "@app.on_event('startup')\ndef begin():\n    Thread(target=work).start()\n"
            "@app.post('/chat')\ndef chat(q: str):\n    return ask(q)\n",
            "",
            "call",
        ),
        (
            "from fastapi import FastAPI\napp = FastAPI()\ndef work(x):\n    m.generate(x)\ndef begin(x):\n    Thread(target=work, args=(x,)).start()\n"
            "@app.post('/chat')\ndef chat(q: str):\n    begin(q)\n    return StreamingResponse(s)\n",
            "",
            "thread",
        ),
        (
            "class A:\n    def __init__(self):\n        Thread(target=self.work).start()\n    def work(self):\n        for j in jobs():\n            m.generate(j)\n",
            "",
            "call",
        ),
        ("Thread(target=m.generate).start()\n", "", "call"),
        (IN_ITS_THREAD, ', attn_implementation="sdpa"', "thread"),
        (IN_ITS_THREAD, ', attn_implementation="eager"', None),
        (IN_ITS_THREAD, ", attn_implementation=chosen()", None),
        (IN_ITS_THREAD, ", use_flash_attention_2=True", None),
        (IN_ITS_THREAD, ", use_flash_attention_2=False", "thread"),
        (IN_ITS_THREAD + "m.set_attn_implementation('flash_attention_2')\n", "", None),
        (IN_ITS_THREAD + "m.set_attn_implementation('sdpa')\n", "", "thread"),
        (IN_ITS_THREAD + "config._attn_implementation = 'eager'\n", "", None),
        (IN_ITS_THREAD + "config = AutoConfig.from_pretrained('./m', attn_implementation='eager')\n", "", None),
        ("def answer(x):\n    with torch.backends.cuda.sdp_kernel(enable_math=False):\n        m.generate(x)\n", "", None),
        (IN_ITS_THREAD + "torch.backends.cuda.enable_cudnn_sdp(False)\n", "", None),
        (IN_ITS_THREAD + "os.environ['TORCH_CUDNN_SDPA_DEPRIORITIZED'] = '1'\n", "", None),
        ("def answer(x):\n    return m.generate(x, cache_implementation='static')\n", "", None),
        ("print(m)\n", "", None),
    ],
)
def test_attention_left_to_torch(rest: str, more: str, expected: str | None) -> None:
    assert value(HEAD.replace("MORE", more) + rest, "app.sdpa_left_to_torch") == expected


@pytest.mark.parametrize("there", [', device_map="cpu"', ""])
def test_on_the_cpu_attention_is_not_left_to_cudnn(there: str) -> None:
    text = HEAD.replace(', device_map="cuda"MORE', there) + IN_ITS_THREAD
    assert value(text, "app.sdpa_left_to_torch") is None
    assert value(text + "m.cuda()\n", "app.sdpa_left_to_torch") == "thread"


def saved(*outputs: dict[str, object], source: str = "print(1)") -> Document:
    """A notebook whose second cell has these outputs."""
    cells = [
        {"cell_type": "markdown", "source": ["CUDA out of memory? Restart: `CUDA error: device-side assert triggered`"]},
        {"cell_type": "code", "execution_count": 7, "source": [source], "outputs": outputs},
    ]
    return Document("chat.ipynb", "app", json.dumps({"cells": cells, "nbformat": 4}, indent=1))


FAILED = {
    "output_type": "error",
    "ename": "OutOfMemoryError",
    "evalue": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.74 GiB of which 1.1 GiB is free.",
    "traceback": [
        "\x1b[0;31m---------------------------------------------------------------------------\x1b[0m",
        "\x1b[0;31mOutOfMemoryError\x1b[0m                          Traceback (most recent call last)",
        "Cell \x1b[0;32mIn[7], line 1\x1b[0m\n\x1b[0;32m----> 1\x1b[0m out \x1b[38;5;241m=\x1b[39m model.generate(**inputs)\n",
        "File \x1b[0;32m~/x.py:9\x1b[0m, in f\x1b[0;34m(x)\x1b[0m\n\x1b[1;32m      8\x1b[0m     raise ValueError('CUDA error: device-side assert triggered')\n\x1b[0;32m----> 9\x1b[0m g(x)\n",
        "\x1b[0;31mOutOfMemoryError\x1b[0m: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.74 GiB of which 1.1 GiB is free.",
    ],
}


def test_a_saved_error_is_evidence_of_its_cell() -> None:
    hits = read_document(saved(FAILED)).hits
    assert {(h.source, h.kind) for h in hits} == {("chat.ipynb In [7]", "log")}
    found = diagnose(derive(read_document(saved(FAILED)))).findings
    alone = diagnose(derive(read_document(Document("x.log", "log", f"{FAILED['ename']}: {FAILED['evalue']}")))).findings
    assert [f.cause for f in found if f.severity == "error"] == [f.cause for f in alone if f.severity == "error"] != []


def test_what_a_program_of_a_notebook_prints_is_its_log() -> None:
    line = "RuntimeError: CUDA error: device-side assert triggered\n"
    assert read_document(saved({"output_type": "stream", "name": "stderr", "text": [line]})).hits
    assert not read_document(saved({"output_type": "execute_result", "data": {"text/plain": [line]}})).hits


@pytest.mark.parametrize("outputs", [[{"output_type": "error"}], [None], [{"output_type": "stream"}], "x"])
def test_odd_outputs_are_no_fault(outputs: object) -> None:
    cells = [{"cell_type": "code", "source": "1", "outputs": outputs}, None, {"cell_type": "code", "source": "2"}]
    assert not read_document(Document("a.ipynb", "app", json.dumps({"cells": cells}))).hits


ASKED = """
import gradio as gr
from transformers import AutoModelForCausalLM, AutoTokenizer
tok = AutoTokenizer.from_pretrained("./m")
model = AutoModelForCausalLM.from_pretrained("./m", device_map="auto")
def ask(q):
    return tok.decode(model.generate(**tok(q, return_tensors="pt").to("cuda"), max_new_tokens=9)[0])
ask("hi")
"""


@pytest.mark.parametrize(("more", "expected"), [("", None), ('gr.Interface(ask, "text", "text").launch()\n', True)])
def test_a_trial_call_beside_a_page_hides_no_echo(more: str, expected: bool | None) -> None:
    assert value(ASKED + more, "app.prompt_echoed") is expected
