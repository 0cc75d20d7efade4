"""Streaming API: one worker thread per answer, a semaphore around the card."""
import asyncio
from contextlib import asynccontextmanager
from threading import Thread

import torch
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

NAME = "Qwen/Qwen2.5-1.5B-Instruct"
state = {}
gate = asyncio.Semaphore(1)


@asynccontextmanager
async def lifespan(app: FastAPI):
    state["tok"] = AutoTokenizer.from_pretrained(NAME)
    state["model"] = AutoModelForCausalLM.from_pretrained(NAME, torch_dtype=torch.bfloat16, device_map="cuda")
    yield
    state.clear()


app = FastAPI(lifespan=lifespan)


class Ask(BaseModel):
    prompt: str
    max_tokens: int = 512


@app.post("/chat")
async def chat(ask: Ask):
    tok, model = state["tok"], state["model"]
    ids = tok.apply_chat_template(
        [{"role": "user", "content": ask.prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    streamer = TextIteratorStreamer(tok, skip_prompt=True, skip_special_tokens=True, timeout=60)

    async def body():
        async with gate:
            Thread(target=model.generate, kwargs=dict(**ids, streamer=streamer, max_new_tokens=ask.max_tokens), daemon=True).start()
            loop = asyncio.get_running_loop()
            done = object()
            while (piece := await loop.run_in_executor(None, next, streamer, done)) is not done:
                yield piece

    return StreamingResponse(body(), media_type="text/plain; charset=utf-8")
