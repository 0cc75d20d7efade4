import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

class Judge:
    """Scores answers; builds the full dialogue and looks at log-probabilities."""
    def __init__(self, name="Qwen/Qwen2.5-7B-Instruct"):
        self.tok = AutoTokenizer.from_pretrained(name)
        self.lm = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16, device_map="auto")

    @torch.inference_mode()
    def score(self, q, a):
        chat = [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
        ids = self.tok.apply_chat_template(chat, return_tensors="pt", return_dict=True).to(self.lm.device)
        return -self.lm(**ids, labels=ids["input_ids"]).loss.item()
