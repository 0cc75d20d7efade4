from fastapi import FastAPI
from transformers import pipeline
app = FastAPI()
generator = pipeline("text-generation", model="Qwen/Qwen2.5-1.5B-Instruct", device=0, torch_dtype="auto")


@app.get("/gen")
def gen(q: str, n: int = 100):
    return generator([{"role": "user", "content": q}], max_new_tokens=n)[0]["generated_text"][-1]["content"]
