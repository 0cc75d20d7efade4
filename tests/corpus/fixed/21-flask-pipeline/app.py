"""Tiny Q&A service."""
from flask import Flask, request, jsonify
import transformers

app = Flask(__name__)


generator = transformers.pipeline("text-generation", model="Qwen/Qwen2.5-1.5B-Instruct", device="cuda:0", torch_dtype="float16")


@app.post("/qa")
def qa():
    payload = request.get_json()
    out = generator([{"role": "user", "content": payload["question"]}], max_new_tokens=200)
    return jsonify(answer=out[0]["generated_text"][-1]["content"])


if __name__ == "__main__":
    app.run("0.0.0.0", 8000)
