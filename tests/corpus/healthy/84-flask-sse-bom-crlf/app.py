# -*- coding: utf-8 -*-
# 流式接口：每个请求一个生成线程，信号量保证同一时间只有一个在跑
from threading import BoundedSemaphore, Thread

import torch
from flask import Flask, Response, request, stream_with_context
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

app = Flask(__name__)
路径 = "Qwen/Qwen2.5-1.5B-Instruct"
tokenizer = AutoTokenizer.from_pretrained(路径)
model = AutoModelForCausalLM.from_pretrained(路径, torch_dtype=torch.bfloat16).to("cuda").eval()
gate = BoundedSemaphore(1)


@app.post("/chat")
def chat():
    问题 = request.get_json()["prompt"]
    ids = tokenizer.apply_chat_template([{"role": "user", "content": 问题}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=60.0)

    @stream_with_context
    def events():
        with gate:
            Thread(target=model.generate, kwargs=dict(ids, streamer=streamer, max_new_tokens=512), daemon=True).start()
            for piece in streamer:
                yield f"data: {piece}\n\n"

    return Response(events(), mimetype="text/event-stream")


if __name__ == "__main__":
    app.run(host="0.0.0.0", port=5000, threaded=True)
