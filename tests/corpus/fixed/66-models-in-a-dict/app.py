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
    messages = [{"role": "user", "content": prompt}]
    inputs = ml["tok"].apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True).to(ml["model"].device)
    out = ml["model"].generate(**inputs, max_new_tokens=512)
    return ml["tok"].decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)
