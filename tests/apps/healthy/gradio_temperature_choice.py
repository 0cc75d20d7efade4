from threading import Thread

import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

name = "Qwen/Qwen2.5-7B-Instruct"
tok = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16, device_map="auto")


def answer(message, history, temperature):
    chat = history[-8:] + [{"role": "user", "content": message}]
    ids = tok.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True).to(model.device)
    streamer = TextIteratorStreamer(tok, skip_prompt=True, skip_special_tokens=True, timeout=30)
    kw = dict(**ids, streamer=streamer, max_new_tokens=512, do_sample=temperature > 0)
    if temperature > 0:
        kw["temperature"] = temperature
    t = Thread(target=model.generate, kwargs=kw, daemon=True)
    t.start()
    text = ""
    for piece in streamer:
        text += piece
        yield text
    t.join()


gr.ChatInterface(answer, type="messages", additional_inputs=[gr.Slider(0, 1, value=0.6)], concurrency_limit=4).queue(max_size=20).launch()
