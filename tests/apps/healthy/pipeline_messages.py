import gradio as gr
import torch
from transformers import pipeline

pipe = pipeline("text-generation", model="Qwen/Qwen3-1.7B", dtype=torch.bfloat16, device=0)


def answer(message, history):
    turns = [{"role": t["role"], "content": t["content"]} for t in history][-10:] + [{"role": "user", "content": message}]
    result = pipe(turns, max_new_tokens=2048, return_full_text=False)
    return result[0]["generated_text"].split("</think>")[-1].strip()


gr.ChatInterface(fn=answer).queue(max_size=20).launch(server_name="0.0.0.0", auth=("me", "secret"))
