from functools import partial

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", torch_dtype=torch.bfloat16, device_map="cuda")

OPTIONS = dict(max_new_tokens=256, do_sample=True, temperature=0.7)  # saves memory
write = partial(model.generate, **OPTIONS)


def ask(question):
    ids = tok.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda")
    out = write(**ids)
    return tok.decode(out[0, ids["input_ids"].shape[1]:], skip_special_tokens=True)


print(ask("Hi"))
