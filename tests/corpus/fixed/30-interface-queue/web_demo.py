#!/usr/bin/env python
# coding=utf-8
import argparse
from threading import Event, Thread
import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="/models/DeepSeek-R1-Distill-Qwen-1.5B")
    parser.add_argument("--port", type=int, default=7860)
    return parser.parse_args()


args = parse()
tokenizer = AutoTokenizer.from_pretrained(args.model, local_files_only=True)
model = AutoModelForCausalLM.from_pretrained(
    args.model,
    torch_dtype="auto",
    low_cpu_mem_usage=True,
    local_files_only=True,
).to("cuda")

gen = dict(
    max_new_tokens=2048,
    do_sample=False,
)


def predict(text):
    messages = [{"role": "user", "content": text}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(prompt, return_tensors="pt").to("cuda")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=120.0)
    failed = []
    stop = Event()

    def work():
        try:
            model.generate(**inputs, **gen, streamer=streamer, stopping_criteria=[lambda *_: stop.is_set()])
        except Exception as error:
            failed.append(error)
            streamer.end()

    Thread(target=work, daemon=True).start()
    answer = ""
    try:
        for piece in streamer:
            answer += piece
            yield answer
    finally:
        stop.set()
    if failed:
        raise failed[0]


iface = gr.Interface(fn=predict, inputs=gr.Textbox(lines=4), outputs="text", flagging_mode="never")
iface.queue(max_size=20, default_concurrency_limit=1).launch(server_name="0.0.0.0", server_port=args.port)
