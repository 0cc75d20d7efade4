"""A small chat backend for the internal wiki."""
import logging
import time
from threading import Lock

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.middleware.cors import CORSMiddleware
from pydantic import BaseModel
from transformers import AutoModelForCausalLM, AutoTokenizer

logger = logging.getLogger("wiki-chat")
app = FastAPI(title="wiki chat")
app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])

MODEL_NAME = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
tokenizer = AutoTokenizer.from_pretrained(MODEL_NAME)
model = AutoModelForCausalLM.from_pretrained(MODEL_NAME, torch_dtype=torch.float16).to("cuda")
model.eval()


class ChatRequest(BaseModel):
    prompt: str
    max_tokens: int = 512
    temperature: float = 0.6


class ChatResponse(BaseModel):
    answer: str
    seconds: float


one_at_a_time = Lock()


@app.post("/chat", response_model=ChatResponse)
def chat(req: ChatRequest):
    if not req.prompt:
        raise HTTPException(400, "empty prompt")
    start = time.time()
    messages = [
        {"role": "user", "content": "You are a helpful assistant for our wiki.\n\n" + req.prompt},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer([text], return_tensors="pt").to(model.device)
    with one_at_a_time:
        outputs = model.generate(**inputs, max_new_tokens=req.max_tokens, do_sample=True, temperature=req.temperature)
    answer = tokenizer.decode(outputs[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)
    logger.info("answered in %.1f s", time.time() - start)
    return ChatResponse(answer=answer, seconds=time.time() - start)


@app.get("/health")
def health():
    return {"status": "ok"}


if __name__ == "__main__":
    uvicorn.run("main:app", host="0.0.0.0", port=8080, workers=1)
