import os
from concurrent.futures import ThreadPoolExecutor

from flask import Flask, jsonify, request
from transformers import AutoModelForCausalLM, AutoTokenizer
import torch

app = Flask(__name__)
executor = ThreadPoolExecutor(max_workers=1)

MODEL = os.environ.get("MODEL", "Qwen/Qwen2.5-1.5B-Instruct")
tok = AutoTokenizer.from_pretrained(MODEL)
lm = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype="auto", device_map="auto")


def answer(question):
    msgs = [{"role": "user", "content": question}]
    ids = tok.apply_chat_template(msgs, add_generation_prompt=True, return_tensors="pt").to(lm.device)
    with torch.no_grad():
        out = lm.generate(ids, max_new_tokens=256)
    return tok.decode(out[0][ids.shape[-1]:], skip_special_tokens=True)


@app.route("/ask", methods=["POST"])
def ask():
    data = request.get_json(force=True)
    future = executor.submit(answer, data["question"])
    return jsonify({"answer": future.result(timeout=120)})


if __name__ == "__main__":
    app.run(host="0.0.0.0", port=5000, threaded=True)
