import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tok = AutoTokenizer.from_pretrained("tiiuae/Falcon3-7B-Instruct", padding_side="left")
model = AutoModelForCausalLM.from_pretrained("tiiuae/Falcon3-7B-Instruct", torch_dtype=torch.bfloat16, device_map="auto")
texts = [tok.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True) for q in ["a", "b"]]
i = tok(texts, return_tensors="pt", padding=True).to(model.device)
o = model.generate(**i, max_new_tokens=512)
print(tok.batch_decode(o[:, i["input_ids"].shape[1]:], skip_special_tokens=True))
