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
    messages = [{"role": "user", "content": prompt}]
    ids = tok.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda")
    out = model.generate(**ids, **CONF)
    full = tok.decode(out[0][ids["input_ids"].shape[1]:], skip_special_tokens=True)
    return {"answer": full}

app.run()
