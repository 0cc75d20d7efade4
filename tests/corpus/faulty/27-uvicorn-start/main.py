from fastapi import FastAPI
from transformers import AutoModelForCausalLM, AutoTokenizer

app = FastAPI()
tok = AutoTokenizer.from_pretrained("Qwen/Qwen3-4B")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-4B", dtype="auto", device_map="cuda")


@app.get("/ask")
def ask(q: str):
    enc = tok.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda")
    out = model.generate(**enc, max_new_tokens=4096)
    return {"a": tok.decode(out[0][enc["input_ids"].shape[1]:], skip_special_tokens=True)}
