#!/usr/bin/env python
# coding=utf-8
import argparse
import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="/models/DeepSeek-R1-Distill-Qwen-1.5B")
    parser.add_argument("--port", type=int, default=7860)
    return parser.parse_args()


args = parse()
tokenizer = AutoTokenizer.from_pretrained(args.model, local_files_only=True)
model = AutoModelForCausalLM.from_pretrained(
    args.model,
    torch_dtype=torch.float32,
    low_cpu_mem_usage=True,
    local_files_only=True,
).to("cuda")

gen = dict(
    max_new_tokens=2048,
    do_sample=False,
    use_cache=False,
)


def predict(text):
    messages = [{"role": "user", "content": text}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(prompt, return_tensors="pt").to("cuda")
    outputs = model.generate(**inputs, **gen)
    return tokenizer.decode(outputs[0], skip_special_tokens=True)


iface = gr.Interface(fn=predict, inputs=gr.Textbox(lines=4), outputs="text", allow_flagging="never", queue=True)
iface.launch(server_name="0.0.0.0", server_port=args.port)
