# -*- coding: utf-8 -*-
from threading import Event, Thread

import gradio as gr
import torch
from transformers import AutoTokenizer, AutoModelForCausalLM, TextIteratorStreamer


class ChatBot:
    def __init__(self, path: str = "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"):
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, torch_dtype="auto")  # load the model
        self.model.to("cuda:0")
        self.gen_kwargs = {
            "max_new_tokens": 2048,
            "do_sample": True,
        }

    def build_prompt(self, message, history):
        prompt = ""
        for user, bot in history:
            prompt += f"User: {user}\nAssistant: {bot}\n"
        prompt += f"User: {message}\nAssistant:"
        return prompt

    def respond(self, message, history):
        prompt = self.build_prompt(message, history)
        inputs = self.tokenizer(prompt, return_tensors="pt").to("cuda:0")
        streamer = TextIteratorStreamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=120.0)
        failed = []
        stop = Event()

        def work():
            try:
                self.model.generate(**inputs, **self.gen_kwargs, temperature=0.6, top_p=0.95, streamer=streamer, stopping_criteria=[lambda *_: stop.is_set()])
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


bot = ChatBot()
demo = gr.ChatInterface(
    bot.respond,
    title="R1 7B",
)
demo.queue(default_concurrency_limit=4, max_size=20).launch(server_name="0.0.0.0", share=False)
