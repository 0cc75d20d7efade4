"""Prompts, batches and sampling as programs write them in many ways: the fault is seen in each, its near miss in none."""

import pytest

from tests.test_reader_app import smells

TRANSFORMERS = "from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig\nimport torch\n"


def _loaded(model: str) -> str:
    return (
        f'{TRANSFORMERS}tok = AutoTokenizer.from_pretrained("{model}")\n'
        f'model = AutoModelForCausalLM.from_pretrained("{model}", torch_dtype=torch.bfloat16, device_map="auto")\n'
    )


QWEN, MISTRAL = _loaded("Qwen/Qwen2.5-7B-Instruct"), _loaded("mistralai/Mistral-7B-Instruct-v0.3")
TEMPLATED = (
    'text = tok.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True)\n'
    'x = tok(text, return_tensors="pt").to(model.device)\n'
)
OPENAI = 'from openai import OpenAI\nclient = OpenAI(base_url="http://localhost:8000/v1", api_key=key)\n'
ASK = 'messages=[{"role": "user", "content": q}]'
VLLM = 'from vllm import LLM, SamplingParams\nllm = LLM(model="Qwen/Qwen2.5-7B-Instruct")\n'

SEEN = {
    "turns in plain words": (QWEN + 'x = tok(f"User: {q}\\nAssistant:", return_tensors="pt").to("cuda")\nmodel.generate(**x, max_new_tokens=512)\n', "prompt_without_template"),
    "the text of a list": (QWEN + 'm = [{"role": "user", "content": q}]\nx = tok(str(m), return_tensors="pt").to("cuda")\nmodel.generate(**x, max_new_tokens=512)\n', "prompt_without_template"),
    "the list in an f-string": (VLLM + 'm = [{"role": "user", "content": q}]\nllm.generate(f"{m}", SamplingParams(max_tokens=99))\n', "prompt_without_template"),
    "a question for vLLM's generate": (VLLM + 'llm.generate(["What is 2 + 2?"], SamplingParams(max_tokens=256))\n', "prompt_without_template"),
    "a question for the completion route": (OPENAI + 'client.completions.create(model="Qwen/Qwen2.5-7B-Instruct", prompt="Hello, who are you?", max_tokens=256)\n', "prompt_without_template"),
    "a base model at the chat route": (OPENAI + f'client.chat.completions.create(model="meta-llama/Llama-3.1-8B", {ASK}, max_tokens=300)\n', "base_model_templated"),
    "a base model in vLLM's chat": ('from vllm import LLM, SamplingParams\nllm = LLM(model="google/gemma-2-9b")\nllm.chat([{"role": "user", "content": q}], SamplingParams(max_tokens=300))\n', "base_model_templated"),
    "a slice of prompts": (QWEN + TEMPLATED + 'for i in range(0, len(texts), 8):\n    b = tok(texts[i : i + 8], return_tensors="pt", padding=True).to("cuda")\n    model.generate(**b, max_new_tokens=64)\n', "padding_right"),
    "batches of a loader": (QWEN + TEMPLATED + 'from torch.utils.data import DataLoader\nloader = DataLoader(data, batch_size=8)\nfor texts_of_batch in loader:\n    b = tok(texts_of_batch, return_tensors="pt", padding="longest").to("cuda")\n    model.generate(**b, max_new_tokens=64)\n', "padding_right"),
    "a configuration that does not ask to sample": (MISTRAL + TEMPLATED + "c = GenerationConfig(temperature=1.2, top_p=0.9, max_new_tokens=256)\nmodel.generate(**x, generation_config=c)\n", "sampling_not_asked"),
    "one beam": (MISTRAL + TEMPLATED + "model.generate(**x, temperature=0.8, num_beams=1, max_new_tokens=256)\n", "sampling_not_asked"),
    "a small budget for Ollama": ('import ollama\nollama.chat(model="qwen3:8b", messages=m, options={"num_predict": 128})\n', "token_budget_small"),
    "a small budget for gpt-oss": (OPENAI + f'client.chat.completions.create(model="openai/gpt-oss-20b", {ASK}, max_tokens=64)\n', "token_budget_small"),
    "a small budget in LangChain": ('from langchain_openai import ChatOpenAI\nllm = ChatOpenAI(model="deepseek-r1", base_url=url, max_tokens=200)\n', "token_budget_small"),
    "greedy through Ollama": ('import ollama\nollama.generate(model="deepseek-r1:14b", prompt=q, options={"temperature": 0})\n', "greedy_reasoning"),
    "greedy in a request's JSON": ('import requests\nrequests.post(url, json={"model": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "messages": m, "temperature": 0.0})\n', "greedy_reasoning"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "smell"), SEEN.values(), ids=list(SEEN))
def test_seen(text: str, smell: str) -> None:
    assert smell in smells(text)


NEAR = {
    "older models have words for turns": (_loaded("lmsys/vicuna-7b-v1.5") + 'x = tok(f"USER: {q} ASSISTANT:", return_tensors="pt").to("cuda")\nmodel.generate(**x, max_new_tokens=512)\n', "prompt_without_template"),
    "the text of a list is printed": (QWEN + TEMPLATED + 'm = [{"role": "user", "content": q}]\nprint(str(m))\nmodel.generate(**x, max_new_tokens=512)\n', "prompt_without_template"),
    "a templated prompt for vLLM": (VLLM + 'p = llm.get_tokenizer().apply_chat_template([{"role": "user", "content": "What is it?"}], tokenize=False)\nllm.generate([p])\n', "prompt_without_template"),
    "marks by hand for vLLM": (VLLM + 'llm.generate(["<|im_start|>user\\nWho are you?<|im_end|>\\n<|im_start|>assistant\\n"])\n', "prompt_without_template"),
    "code is completed": (OPENAI + 'client.completions.create(model="Qwen/Qwen2.5-Coder-7B-Instruct", prompt="def add(a, b):", suffix="return c", max_tokens=64)\n', "prompt_without_template"),
    "a base model is completed": (OPENAI + 'client.completions.create(model="meta-llama/Llama-3.1-8B", prompt="Once upon a time", max_tokens=64)\n', "prompt_without_template"),
    "a chat model at the chat route": (OPENAI + f'client.chat.completions.create(model="meta-llama/Llama-3.1-8B-Instruct", {ASK}, max_tokens=300)\n', "base_model_templated"),
    "slices padded on the left": (QWEN.replace('Instruct")\n', 'Instruct", padding_side="left")\n', 1) + 'for i in range(0, len(texts), 8):\n    b = tok(texts[i : i + 8], return_tensors="pt", padding=True).to("cuda")\n    model.generate(**b, max_new_tokens=64)\n', "padding_right"),
    "one text, cut": (QWEN + TEMPLATED + 'b = tok(text[:2000], return_tensors="pt", padding=True).to("cuda")\nmodel.generate(**b, max_new_tokens=64)\n', "padding_right"),
    "a configuration that samples": (MISTRAL + TEMPLATED + "c = GenerationConfig(temperature=1.2, do_sample=True, max_new_tokens=256)\nmodel.generate(**x, generation_config=c)\n", "sampling_not_asked"),
    "beams": (MISTRAL + TEMPLATED + "model.generate(**x, temperature=0.8, num_beams=4, max_new_tokens=256)\n", "sampling_not_asked"),
    "Ollama is told not to think": ('import ollama\nollama.chat(model="qwen3:8b", messages=m, think=False, options={"num_predict": 128})\n', "token_budget_small"),
    "a template is told not to think": (OPENAI + f'client.chat.completions.create(model="Qwen/Qwen3-8B", {ASK}, max_tokens=64, extra_body={{"chat_template_kwargs": {{"enable_thinking": False}}}})\n', "token_budget_small"),
    "a model that does not think": ('import ollama\nollama.chat(model="llama3.1:8b", messages=m, options={"num_predict": 128, "temperature": 0})\n', "token_budget_small"),
    "gpt-oss may be greedy": (OPENAI + f'client.chat.completions.create(model="openai/gpt-oss-20b", {ASK}, temperature=0, max_tokens=4096)\n', "greedy_reasoning"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "smell"), NEAR.values(), ids=list(NEAR))
def test_near_misses(text: str, smell: str) -> None:
    assert smell not in smells(text)
