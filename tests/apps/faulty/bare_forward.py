import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("Qwen/Qwen3-0.6B")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype=torch.bfloat16)
model.to("cuda")


def step(text):
    ids = tok(tok.apply_chat_template([{"role": "user", "content": text}], tokenize=False), return_tensors="pt").input_ids
    ids = ids.to("cuda")
    for _ in range(128):
        logits = model(ids).logits
        token = logits[0, -1].argmax()
        ids = torch.cat([ids, token.view(1, 1)], dim=1)
        torch.cuda.empty_cache()
        yield tok.decode(token)
