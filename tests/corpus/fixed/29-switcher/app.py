import gc
from threading import Event, Thread

import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

MODELS = {
    "small": "Qwen/Qwen2.5-1.5B-Instruct",
    "big": "Qwen/Qwen2.5-7B-Instruct",
}
tokenizer = AutoTokenizer.from_pretrained(MODELS["small"])
model = AutoModelForCausalLM.from_pretrained(MODELS["small"], torch_dtype=torch.bfloat16, device_map="cuda")


def switch(which):
    global model, tokenizer
    tokenizer = AutoTokenizer.from_pretrained(MODELS[which])
    model = None  # the old one goes first
    gc.collect()
    torch.cuda.empty_cache()
    model = AutoModelForCausalLM.from_pretrained(MODELS[which], torch_dtype=torch.bfloat16, device_map="cuda")
    return f"loaded {which}"


def answer(message, history):
    inputs = tokenizer.apply_chat_template([{"role": "user", "content": message}], add_generation_prompt=True, return_dict=True, return_tensors="pt").to(model.device)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=120.0)
    failed = []
    stop = Event()

    def work():
        try:
            model.generate(**inputs, max_new_tokens=512, streamer=streamer, stopping_criteria=[lambda *_: stop.is_set()])
        except Exception as error:
            failed.append(error)
            streamer.end()

    Thread(target=work, daemon=True).start()
    text = ""
    try:
        for piece in streamer:
            text += piece
            yield text
    finally:
        stop.set()
    if failed:
        raise failed[0]


with gr.Blocks() as demo:
    pick = gr.Radio(list(MODELS), value="small", label="Model")
    state = gr.Textbox(label="state")
    pick.change(switch, pick, state)
    gr.ChatInterface(answer)

demo.queue(max_size=16, default_concurrency_limit=1).launch()
