from fastapi import FastAPI
from transformers import AutoModelForCausalLM, AutoTokenizer

app = FastAPI()
ml = {}


@app.on_event("startup")
def load():
    ml["tok"] = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
    ml["model"] = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", torch_dtype="auto", device_map="cuda")


@app.post("/ask")
def ask(prompt: str):
    inputs = ml["tok"](prompt, return_tensors="pt")
    out = ml["model"].generate(**inputs, max_length=512, use_cache=False)
    return ml["tok"].decode(out[0], skip_special_tokens=False)
