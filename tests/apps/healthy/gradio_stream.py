"""Streaming chat over a local Qwen2.5 with Gradio."""
from threading import Thread

import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

MODEL_ID = "Qwen/Qwen2.5-1.5B-Instruct"
tokenizer = AutoTokenizer.from_pretrained(MODEL_ID)
model = AutoModelForCausalLM.from_pretrained(
    MODEL_ID,
    dtype=torch.bfloat16,
    device_map="cuda",
    attn_implementation="sdpa",
)
model.eval()


def respond(message, history):
    messages = [{"role": m["role"], "content": m["content"]} for m in history[-20:]]
    messages.append({"role": "user", "content": message})
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=60)
    kwargs = dict(**inputs, streamer=streamer, max_new_tokens=1024, do_sample=True, temperature=0.7, top_p=0.8)
    thread = Thread(target=model.generate, kwargs=kwargs, daemon=True)
    thread.start()
    answer = ""
    for piece in streamer:
        answer += piece
        yield answer


demo = gr.ChatInterface(respond, title="Qwen2.5")

if __name__ == "__main__":
    demo.queue(max_size=16, default_concurrency_limit=1).launch(server_name="127.0.0.1", server_port=7860)
