"""OpenAI-style endpoint over transformers; the stream is accumulated by the caller."""
import asyncio
import json
import time
import uuid
from contextlib import asynccontextmanager
from threading import Lock, Thread

import torch
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

state = {}
gate = Lock()


@asynccontextmanager
async def lifespan(app: FastAPI):
    name = "Qwen/Qwen3-4B-Instruct-2507"
    state["tokenizer"] = AutoTokenizer.from_pretrained(name)
    state["model"] = AutoModelForCausalLM.from_pretrained(name, dtype="auto", device_map="auto")
    yield
    state.clear()


app = FastAPI(lifespan=lifespan)


class ChatRequest(BaseModel):
    messages: list[dict]
    max_tokens: int = 1024
    temperature: float = 0.7


def token_stream(req: ChatRequest):
    tokenizer, model = state["tokenizer"], state["model"]
    inputs = tokenizer.apply_chat_template(req.messages, add_generation_prompt=True, return_dict=True, return_tensors="pt").to(model.device)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)

    def work():
        with gate:
            model.generate(**inputs, streamer=streamer, max_new_tokens=req.max_tokens, do_sample=req.temperature > 0, temperature=req.temperature or None)

    Thread(target=work, daemon=True).start()
    ident = f"chatcmpl-{uuid.uuid4().hex}"
    for piece in streamer:
        chunk = {"id": ident, "created": int(time.time()), "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": piece}}]}
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


@app.post("/v1/chat/completions")
def chat(req: ChatRequest):
    return StreamingResponse(token_stream(req), media_type="text/event-stream")


@app.get("/health")
async def health():
    await asyncio.sleep(0)
    return {"ok": True, "cuda": torch.cuda.is_available()}
