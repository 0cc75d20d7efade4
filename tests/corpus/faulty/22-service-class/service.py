import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Optional

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoModelForCausalLM, AutoTokenizer


class Query(BaseModel):
    text: str
    system: Optional[str] = None


class LLMService:
    """Keeps the model and a pool of workers."""

    def __init__(self, name: str, workers: int = 4) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(name)
        self.model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16, device_map="auto")
        self.pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="llm")

    def _run(self, text: str) -> str:
        messages = [{"role": "system", "content": "Answer in one sentence."}, {"role": "user", "content": text}]
        batch = self.tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        ).to(self.model.device)
        with torch.inference_mode():
            out = self.model.generate(**batch, max_new_tokens=2048, temperature=0.6, do_sample=True)
        return self.tokenizer.decode(out[0, batch["input_ids"].shape[1]:], skip_special_tokens=True)

    async def ask(self, text: str) -> str:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, partial(self._run, text))


app = FastAPI()
service = LLMService("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B")


@app.post("/ask")
async def ask(query: Query):
    return {"answer": await service.ask(query.text)}
