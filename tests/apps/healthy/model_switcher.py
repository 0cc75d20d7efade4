"""Two models, one at a time: the old one is let go before the next is loaded."""
import gc

import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

current = {"name": None}
tokenizer = model = None


def load(name):
    global tokenizer, model
    if name == current["name"]:
        return name
    model = None
    gc.collect()
    torch.cuda.empty_cache()
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, torch_dtype="auto", device_map="cuda")
    current["name"] = name
    return name


def ask(question):
    inputs = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True, return_tensors="pt").to("cuda")
    out = model.generate(**inputs, max_new_tokens=512)
    return tokenizer.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)


load("Qwen/Qwen2.5-1.5B-Instruct")
with gr.Blocks() as demo:
    pick = gr.Dropdown(["Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-3B-Instruct"])
    status = gr.Textbox()
    pick.change(load, pick, status)
    q, a = gr.Textbox(), gr.Textbox()
    gr.Button("Ask").click(ask, q, a)
demo.launch()
