import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("meta-llama/Llama-3.2-1B")
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B", torch_dtype=torch.bfloat16, device_map="cuda").eval()
rows = load_dataset("wikitext", "wikitext-2-raw-v1", split="test")
total = n = 0.0
with torch.inference_mode():
    for row in rows:
        enc = tok(row["text"], return_tensors="pt", truncation=True, max_length=2048).to("cuda")
        if enc.input_ids.shape[1] < 2:
            continue
        loss = model(**enc, labels=enc.input_ids).loss
        total += loss.item() * enc.input_ids.shape[1]
        n += enc.input_ids.shape[1]
print("ppl", torch.exp(torch.tensor(total / n)).item())
