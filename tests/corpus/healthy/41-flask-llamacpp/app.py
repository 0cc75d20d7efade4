from threading import Lock

from flask import Flask, Response, request, stream_with_context
from llama_cpp import Llama

app = Flask(__name__)
llm = Llama("/models/qwen2.5-7b-q4_k_m.gguf", n_gpu_layers=-1, n_ctx=8192, verbose=False)
lock = Lock()


@app.post("/chat")
def chat():
    body = request.get_json(force=True)

    def pieces():
        with lock:
            for part in llm.create_chat_completion(body["messages"], stream=True, max_tokens=1024):
                yield part["choices"][0]["delta"].get("content") or ""

    return Response(stream_with_context(pieces()), mimetype="text/plain")


if __name__ == "__main__":
    app.run(port=8081, threaded=True)
