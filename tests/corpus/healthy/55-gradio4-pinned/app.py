import gradio as gr
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")


def answer(message, history):
    messages = []
    for user, bot in history[-8:]:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": bot}]
    messages.append({"role": "user", "content": message})
    text = ""
    for chunk in client.chat.completions.create(model="qwen", messages=messages, stream=True, max_tokens=1024):
        if chunk.choices and chunk.choices[0].delta.content:
            text += chunk.choices[0].delta.content
            yield text


gr.ChatInterface(answer, retry_btn=None, undo_btn=None, concurrency_limit=8, theme="soft").queue(max_size=40).launch()
