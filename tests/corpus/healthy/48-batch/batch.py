"""Nightly summaries: many prompts, no server."""
import json
import pathlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BATCH = 16
name = "Qwen/Qwen2.5-7B-Instruct"
tok = AutoTokenizer.from_pretrained(name, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16, device_map="auto")


def prompts(rows):
    for row in rows:
        yield tok.apply_chat_template(
            [{"role": "system", "content": "Summarise in two sentences."}, {"role": "user", "content": row["text"][:8000]}],
            tokenize=False,
            add_generation_prompt=True,
        )


rows = [json.loads(line) for line in pathlib.Path("in.jsonl").read_text().splitlines()]
texts = list(prompts(rows))
with open("out.jsonl", "w") as out, torch.inference_mode():
    for start in range(0, len(texts), BATCH):
        batch = tok(texts[start:start + BATCH], return_tensors="pt", padding=True, truncation=True, max_length=6000).to(model.device)
        ids = model.generate(**batch, max_new_tokens=160, do_sample=False)
        for row, text in zip(rows[start:], tok.batch_decode(ids[:, batch["input_ids"].shape[1]:], skip_special_tokens=True)):
            out.write(json.dumps({**row, "summary": text.strip()}, ensure_ascii=False) + "\n")
