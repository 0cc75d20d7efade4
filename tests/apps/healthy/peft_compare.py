"""Base and tuned model one after the other."""
import gc

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = "Qwen/Qwen2.5-1.5B-Instruct"
tok = AutoTokenizer.from_pretrained(BASE)


def ask(model, question):
    enc = tok.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True, return_tensors="pt").to(model.device)
    out = model.generate(**enc, max_new_tokens=200, do_sample=False, temperature=1.0)
    return tok.decode(out[0][enc["input_ids"].shape[1]:], skip_special_tokens=True)


for adapter in (None, "out/lora"):
    model = AutoModelForCausalLM.from_pretrained(BASE, torch_dtype=torch.bfloat16, device_map="cuda")
    if adapter:
        model = PeftModel.from_pretrained(model, adapter)
    print(ask(model, "Who are you?"))
    del model
    gc.collect()
    torch.cuda.empty_cache()
