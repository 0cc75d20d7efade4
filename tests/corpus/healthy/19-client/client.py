import os

import gradio as gr
from openai import OpenAI

client = OpenAI(base_url=os.getenv("LLM_URL", "http://127.0.0.1:8000/v1"), api_key=os.getenv("LLM_KEY", "none"))


def predict(message, history):
    messages = [{"role": m["role"], "content": m["content"]} for m in history] + [{"role": "user", "content": message}]
    stream = client.chat.completions.create(model="r1", messages=messages, stream=True, temperature=0.6, max_tokens=4096)
    text = ""
    for chunk in stream:
        if not chunk.choices:
            continue
        text += chunk.choices[0].delta.content or ""
        yield text


gr.ChatInterface(predict, type="messages", concurrency_limit=16).queue(max_size=64).launch(server_name="0.0.0.0")
