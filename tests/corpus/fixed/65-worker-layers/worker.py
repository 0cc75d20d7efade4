import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

class Worker:
    def __init__(self, path):
        self.tok = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float16, device_map="auto")

    @torch.no_grad()
    def run(self, q):
        enc = self.tok.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda:0")
        out = self.model.generate(**enc, max_new_tokens=256)
        return self.tok.decode(out[0][enc["input_ids"].shape[1]:], skip_special_tokens=True)

w = Worker("Qwen/Qwen2.5-14B-Instruct")
print(w.run("hi"))
