"""Tiny Q&A service."""
from flask import Flask, request, jsonify
import transformers

app = Flask(__name__)


@app.post("/qa")
def qa():
    payload = request.get_json()
    generator = transformers.pipeline("text-generation", model="Qwen/Qwen2.5-1.5B-Instruct", device="cuda:0", torch_dtype="float16")
    out = generator(payload["question"], max_new_tokens=200)
    return jsonify(answer=out[0]["generated_text"])


if __name__ == "__main__":
    app.run("0.0.0.0", 8000)
