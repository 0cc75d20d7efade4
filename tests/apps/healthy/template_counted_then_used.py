import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.float16 if device == "cuda" else torch.float32
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", torch_dtype=dtype).to(device)
tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")
print(len(tok.apply_chat_template([{"role": "user", "content": "x"}])))
enc = tok.apply_chat_template([{"role": "user", "content": "x"}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to(device)
print(tok.decode(model.generate(**enc, max_new_tokens=64)[0][enc["input_ids"].shape[1]:], skip_special_tokens=True))
