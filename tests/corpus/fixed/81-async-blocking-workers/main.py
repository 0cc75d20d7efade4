from threading import Lock

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoModelForCausalLM, AutoTokenizer

app = FastAPI()
tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", torch_dtype="auto", device_map="auto")


class Q(BaseModel):
    text: str


one_at_a_time = Lock()


@app.post("/ask")
def ask(q: Q):
    ids = tok.apply_chat_template([{"role": "user", "content": q.text}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to(model.device)
    with one_at_a_time:
        out = model.generate(**ids, max_new_tokens=512)
    return {"answer": tok.decode(out[0][ids["input_ids"].shape[-1]:], skip_special_tokens=True)}


if __name__ == "__main__":
    uvicorn.run("main:app", host="0.0.0.0", port=8000, workers=1)
