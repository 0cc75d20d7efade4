from threading import Thread

import gradio as gr
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

name = "Qwen/Qwen2.5-1.5B-Instruct"
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype="auto").cuda()


def chat(message, history):
    inputs = tokenizer(message, return_tensors="pt").to("cuda")
    streamer = TextIteratorStreamer(tokenizer)
    Thread(target=model.generate, kwargs=dict(inputs, streamer=streamer, max_new_tokens=300)).start()
    for new_text in streamer:
        yield new_text


gr.ChatInterface(chat).launch()
