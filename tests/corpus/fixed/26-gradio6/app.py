import gradio as gr
from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="sk-none")


def chat(message, history):
    messages = history + [{"role": "user", "content": message}]
    stream = client.chat.completions.create(model="qwen", messages=messages, stream=True)
    answer = ""
    for chunk in stream:
        if not chunk.choices:
            continue
        answer += chunk.choices[0].delta.content or ""
        yield answer


demo = gr.ChatInterface(
    chat,
    title="Qwen",
    examples=["Hello", "你好"],
)
demo.queue(max_size=20, default_concurrency_limit=16).launch(server_name="0.0.0.0", theme="soft")
