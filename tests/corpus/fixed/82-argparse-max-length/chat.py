#!/usr/bin/env python3
import argparse
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ap = argparse.ArgumentParser()
ap.add_argument("--model", default="Qwen/Qwen2.5-1.5B-Instruct")
ap.add_argument("--max-length", type=int, default=1536)
args = ap.parse_args()

tokenizer = AutoTokenizer.from_pretrained(args.model)
model = AutoModelForCausalLM.from_pretrained(args.model, torch_dtype=torch.float16).cuda()
history = []
while True:
    history.append({"role": "user", "content": input("you> ")})
    ids = tokenizer.apply_chat_template(history, add_generation_prompt=True, return_tensors="pt").cuda()
    out = model.generate(ids, max_new_tokens=args.max_length, do_sample=True)
    reply = tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)
    history.append({"role": "assistant", "content": reply})
    print(reply)
