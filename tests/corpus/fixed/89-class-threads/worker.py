from concurrent.futures import ThreadPoolExecutor
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class Worker:
    """Answers many questions at once."""

    def __init__(self, name="Qwen/Qwen2.5-1.5B-Instruct"):
        self.tok = AutoTokenizer.from_pretrained(name)
        self.model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16).to("cuda")
        self.pool = ThreadPoolExecutor(max_workers=1)

    def one(self, q: str) -> str:
        ids = self.tok.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda")
        out = self.model.generate(**ids, max_new_tokens=256)
        return self.tok.decode(out[0][ids["input_ids"].shape[1]:], skip_special_tokens=True)

    def many(self, qs):
        return list(self.pool.map(self.one, qs))


if __name__ == "__main__":
    print(Worker().many(["a", "b"]))
