"""Perplexity of texts: a forward pass, no generation."""
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

name = "Qwen/Qwen2.5-0.5B"
tok = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16).to("cuda").eval()


@torch.inference_mode()
def loss(text):
    ids = tok(text, return_tensors="pt", truncation=True, max_length=2048).input_ids.to(model.device)
    return model(ids, labels=ids).loss.item() if ids.shape[1] > 1 else 0.0


print(loss("Hello world"))
