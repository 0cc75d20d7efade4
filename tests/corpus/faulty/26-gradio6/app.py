import gradio as gr
from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000", api_key="sk-none")


def chat(message, history):
    messages = history + [{"role": "user", "content": message}]
    stream = client.chat.completions.create(model="qwen", messages=messages, stream=True)
    answer = ""
    for chunk in stream:
        answer += chunk.choices[0].delta.content
        yield answer


demo = gr.ChatInterface(
    chat,
    type="messages",
    theme="soft",
    title="Qwen",
    examples=["Hello", "你好"],
)
demo.launch(server_name="0.0.0.0", show_api=False)
