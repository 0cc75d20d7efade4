from flask import Flask, request, jsonify
from transformers import *
import torch

app = Flask(__name__)
kw = {"torch_dtype": torch.float32, "trust_remote_code": True}
name = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
tok = AutoTokenizer.from_pretrained(name)
lm = AutoModelForCausalLM.from_pretrained(name, **kw).to("cuda")


@app.route("/gen", methods=["POST"])
def gen():
    msgs = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": request.json["q"]}]
    if (text := tok.apply_chat_template(msgs, tokenize=False, add_generation_prompt=True)):
        ids = tok(text, return_tensors="pt").to("cuda")
    out = lm.generate(**ids, max_new_tokens=2048, do_sample=False)
    return jsonify(answer=tok.decode(out[0]))


app.run("0.0.0.0", 5000)
