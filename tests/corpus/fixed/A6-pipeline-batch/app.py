import json

import torch
from datasets import load_dataset
from tqdm import tqdm
from transformers import AutoTokenizer, pipeline
from transformers.pipelines.pt_utils import KeyDataset

MODEL = "meta-llama/Llama-2-7b-chat-hf"
tok = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
tok.pad_token = tok.eos_token
pipe = pipeline("text-generation", model=MODEL, tokenizer=tok, torch_dtype=torch.float16, device_map="auto")

ds = load_dataset("gsm8k", "main", split="test")
ds = ds.map(lambda r: {"prompt": f"[INST] {r['question']} [/INST]"})

with open("out.jsonl", "w") as f:
    for out in tqdm(pipe(KeyDataset(ds, "prompt"), batch_size=16, max_new_tokens=256, return_full_text=False)):
        f.write(json.dumps({"text": out[0]["generated_text"]}) + "\n")
