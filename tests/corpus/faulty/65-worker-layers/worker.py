import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

class Worker:
    def __init__(self, path):
        self.tok = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float16)
        for i in range(len(self.model.model.layers)):
            dev = "cuda:0" if i < 16 else "cuda:1"
            self.model.model.layers[i] = self.model.model.layers[i].to(dev)
        self.model.lm_head.to("cuda:1")

    @torch.no_grad()
    def run(self, q):
        enc = self.tok.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda:0")
        out = self.model.generate(**enc, max_new_tokens=256)
        return self.tok.decode(out[0][enc["input_ids"].shape[1]:], skip_special_tokens=True)

w = Worker("Qwen/Qwen2.5-14B-Instruct")
print(w.run("hi"))
