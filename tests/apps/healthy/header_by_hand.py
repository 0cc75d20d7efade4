import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-7B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B-Instruct", torch_dtype=torch.bfloat16, device_map="auto")
SUFFIX = "<|im_start|>assistant\n"
def ask(q):
    t = tok.apply_chat_template([{"role": "user", "content": q}], tokenize=False) + SUFFIX
    i = tok(t, return_tensors="pt").to(model.device)
    o = model.generate(**i, max_new_tokens=512)
    return tok.decode(o[0][i["input_ids"].shape[1]:], skip_special_tokens=True)
print(ask("hi"))
