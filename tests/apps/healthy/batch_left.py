"""Batch scoring of a file of questions."""
import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

name = "Qwen/Qwen2.5-7B-Instruct"
tok = AutoTokenizer.from_pretrained(name, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16, device_map={"": 0})
questions = [json.loads(line)["q"] for line in open(sys.argv[1])]

for start in range(0, len(questions), 16):
    prompts = [tok.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True) for q in questions[start : start + 16]]
    batch = tok(prompts, return_tensors="pt", padding=True).to("cuda:0")
    with torch.inference_mode():
        out = model.generate(**batch, max_new_tokens=256, do_sample=False, temperature=None, top_p=None)
    new = out[:, batch["input_ids"].shape[1]:]
    for text in tok.batch_decode(new, skip_special_tokens=True):
        print(json.dumps({"a": text.strip()}))
