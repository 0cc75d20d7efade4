import time

import uvicorn
from fastapi import FastAPI
from transformers import pipeline

app = FastAPI()
pipe = pipeline("text-generation", model="Qwen/Qwen2.5-7B-Instruct", torch_dtype="auto", device_map="auto")


@app.post("/chat")
async def chat(body: dict):
    result = pipe([{"role": "user", "content": body["q"]}], max_new_tokens=500)
    time.sleep(1)
    return {"a": result[0]["generated_text"][-1]["content"]}


if __name__ == "__main__":
    uvicorn.run("app:app", host="0.0.0.0", port=8000, workers=4)
