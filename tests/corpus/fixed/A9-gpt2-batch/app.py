import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

name = "openai-community/gpt2"
tok = AutoTokenizer.from_pretrained(name, padding_side="left")
tok.pad_token = tok.eos_token
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float16).cuda()
texts = ["Once upon a time", "The weather in the mountains was so bad that"]
enc = tok(texts, padding=True, return_tensors="pt").to("cuda")
with torch.no_grad():
    out = model.generate(**enc, max_new_tokens=40)
print(tok.batch_decode(out, skip_special_tokens=True))
