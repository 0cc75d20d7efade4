import asyncio
from concurrent.futures import ThreadPoolExecutor

import torch
from fastapi import FastAPI
from transformers import AutoModelForCausalLM, AutoTokenizer

app = FastAPI()
pool = ThreadPoolExecutor(max_workers=4)
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", torch_dtype=torch.float16).cuda()


def run(q):
    ids = tokenizer.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_dict=True, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=512)
    return tokenizer.decode(out[0][ids["input_ids"].shape[1]:], skip_special_tokens=True)


@app.post("/")
async def root(body: dict):
    return await asyncio.get_event_loop().run_in_executor(pool, run, body["q"])
