import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B-AWQ")
tok = AutoTokenizer.from_pretrained("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B-AWQ")
for i, layer in enumerate(model.model.layers):
    layer.to("cuda:0" if i < 14 else "cpu")
cached = getattr(model.model.layers, "28")


def run(prompts):
    batch = tok(prompts, padding=True, return_tensors="pt")
    return tok.batch_decode(model.generate(**batch, max_new_tokens=4000))
