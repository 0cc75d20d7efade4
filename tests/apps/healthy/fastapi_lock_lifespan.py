import asyncio
from contextlib import asynccontextmanager

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoModelForCausalLM, AutoTokenizer

state = {}


@asynccontextmanager
async def lifespan(app):
    name = "Qwen/Qwen2.5-3B-Instruct"
    state["tok"] = AutoTokenizer.from_pretrained(name)
    state["model"] = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, device_map="cuda")
    state["lock"] = asyncio.Lock()
    yield
    state.clear()


app = FastAPI(lifespan=lifespan)


class Body(BaseModel):
    text: str


def run(text):
    tok, model = state["tok"], state["model"]
    enc = tok.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda")
    with torch.inference_mode():
        out = model.generate(**enc, max_new_tokens=300)
    return tok.decode(out[0, enc["input_ids"].size(1):], skip_special_tokens=True)


@app.post("/ask")
async def ask(body: Body):
    async with state["lock"]:
        return {"answer": await asyncio.to_thread(run, body.text)}
