import gradio as gr
import spaces
import torch
from threading import Thread
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer
tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", torch_dtype=torch.bfloat16).to("cuda")

@spaces.GPU(duration=60)
def chat(message, history, temperature):
    ids = tok.apply_chat_template([*history, {"role": "user", "content": message}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda")
    s = TextIteratorStreamer(tok, skip_prompt=True, skip_special_tokens=True, timeout=60)
    Thread(target=model.generate, kwargs=dict(ids, streamer=s, max_new_tokens=512, do_sample=temperature > 0, temperature=temperature or None)).start()
    yield from accumulate(s)

def accumulate(stream):
    text = ""
    for piece in stream:
        text += piece
        yield text

gr.ChatInterface(chat, type="messages", additional_inputs=[gr.Slider(0, 1.5, 0.7)]).queue(max_size=10).launch()
