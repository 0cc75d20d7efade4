from threading import Thread

import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

MODEL_ID = "meta-llama/Llama-3.1-8B-Instruct"
tokenizer = AutoTokenizer.from_pretrained(MODEL_ID)
model = AutoModelForCausalLM.from_pretrained(MODEL_ID, torch_dtype=torch.bfloat16, device_map="auto")


def predict(message, history, temperature, max_new_tokens):
    messages = history[-10:] + [{"role": "user", "content": message}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True).to(model.device)
    streamer = TextIteratorStreamer(tokenizer, timeout=60.0, skip_prompt=True, skip_special_tokens=True)
    kwargs = dict(inputs, streamer=streamer, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_p=0.9)
    Thread(target=model.generate, kwargs=kwargs).start()
    text = ""
    for piece in streamer:
        text += piece
        yield text


demo = gr.ChatInterface(
    predict,
    type="messages",
    concurrency_limit=2,
    additional_inputs=[
        gr.Slider(minimum=0, maximum=1, value=0.7, step=0.1, label="Temperature"),
        gr.Slider(128, 2048, value=512, step=64, label="Max new tokens"),
    ],
)
demo.queue(max_size=16).launch()
