import json
from flask import Flask, request
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

app = Flask(__name__)
CONF = json.load(open("gen.json"))
tok = AutoTokenizer.from_pretrained("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
model = AutoModelForCausalLM.from_pretrained("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", torch_dtype=torch.bfloat16).to("cuda")

@app.post("/")
def go():
    prompt = request.json["prompt"]
    ids = tok(prompt, return_tensors="pt").to("cuda")
    out = model.generate(**ids, **CONF)
    full = tok.decode(out[0], skip_special_tokens=True)
    return {"answer": full[len(prompt):]}

app.run()
