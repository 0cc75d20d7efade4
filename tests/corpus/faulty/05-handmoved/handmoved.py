import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

name = "Qwen/Qwen2.5-7B-Instruct"
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float16)

# put the first 14 layers on GPU 0 and the rest on GPU 1
model.model.embed_tokens.to("cuda:0")
for i, layer in enumerate(model.model.layers):
    if i < 14:
        layer.to("cuda:0")
    else:
        layer.to("cuda:1")
model.model.norm.to("cuda:1")
model.lm_head.to("cuda:1")

while True:
    q = input("> ")
    if q in ("exit", "quit"):
        break
    text = tokenizer.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, return_tensors="pt").to("cuda:0")
    out = model.generate(**inputs, max_new_tokens=512)
    print(tokenizer.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True))
