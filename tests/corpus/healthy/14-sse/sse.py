import asyncio
import json
from contextlib import asynccontextmanager
from threading import Thread

import torch
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

MODEL_ID = "Qwen/Qwen2.5-1.5B-Instruct"
state = {}
gate = asyncio.Lock()


@asynccontextmanager
async def lifespan(app: FastAPI):
    state["tok"] = AutoTokenizer.from_pretrained(MODEL_ID)
    state["model"] = AutoModelForCausalLM.from_pretrained(
        MODEL_ID, torch_dtype=torch.bfloat16, device_map="cuda:0", attn_implementation="sdpa"
    ).eval()
    yield
    state.clear()


app = FastAPI(lifespan=lifespan)


@app.post("/v1/stream")
async def stream(request: Request):
    body = await request.json()
    tok, model = state["tok"], state["model"]
    ids = tok.apply_chat_template(
        body["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    streamer = TextIteratorStreamer(tok, skip_prompt=True, skip_special_tokens=True, timeout=60)
    await gate.acquire()
    Thread(target=model.generate, kwargs=dict(**ids, streamer=streamer, max_new_tokens=1024), daemon=True).start()

    def events():
        try:
            for piece in streamer:
                yield f"data: {json.dumps({'text': piece})}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            gate.release()

    return StreamingResponse(events(), media_type="text/event-stream")
