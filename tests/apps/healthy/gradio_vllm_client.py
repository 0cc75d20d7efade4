import gradio as gr
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")


def chat(message, history):
    messages = [{"role": h["role"], "content": h["content"]} for h in history] + [{"role": "user", "content": message}]
    stream = client.chat.completions.create(model="qwen", messages=messages, max_tokens=2048, stream=True)
    partial = ""
    for chunk in stream:
        delta = chunk.choices[0].delta.content if chunk.choices else None
        if delta:
            partial = partial + delta
            yield partial


gr.ChatInterface(chat, concurrency_limit=16).queue(max_size=64).launch(server_name="0.0.0.0")
