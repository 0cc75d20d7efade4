"""Small model on the CPU: this box has no GPU."""
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.set_num_threads(8)
NAME = "HuggingFaceTB/SmolLM2-360M-Instruct"
tokenizer = AutoTokenizer.from_pretrained(NAME)
model = AutoModelForCausalLM.from_pretrained(NAME, torch_dtype=torch.float32)
model.eval()


def complete(text: str) -> str:
    ids = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=128, do_sample=False)
    return tokenizer.decode(out[0][ids["input_ids"].shape[-1]:], skip_special_tokens=True)


if __name__ == "__main__":
    print(complete("Hello"))
