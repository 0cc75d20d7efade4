from flask import Flask, request, jsonify
from transformers import *
import torch

app = Flask(__name__)
kw = {"torch_dtype": "auto"}
name = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
tok = AutoTokenizer.from_pretrained(name)
lm = AutoModelForCausalLM.from_pretrained(name, **kw).to("cuda")


@app.route("/gen", methods=["POST"])
def gen():
    msgs = [{"role": "user", "content": "You are helpful.\n\n" + request.json["q"]}]
    if (text := tok.apply_chat_template(msgs, tokenize=False, add_generation_prompt=True)):
        ids = tok(text, return_tensors="pt").to("cuda")
    out = lm.generate(**ids, max_new_tokens=2048, do_sample=True, temperature=0.6, top_p=0.95)
    return jsonify(answer=tok.decode(out[0][ids["input_ids"].shape[1]:], skip_special_tokens=True))


app.run("0.0.0.0", 5000)
