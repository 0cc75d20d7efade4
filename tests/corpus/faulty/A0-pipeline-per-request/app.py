from fastapi import FastAPI
from transformers import pipeline
app = FastAPI()
@app.get("/gen")
def gen(q: str, n: int = 100):
    generator = pipeline("text-generation", model="Qwen/Qwen2.5-1.5B-Instruct", device=0)
    return generator(q, max_length=n)[0]["generated_text"]
