# -*- coding: utf-8 -*-
import gradio as gr
import torch
from transformers import AutoTokenizer, AutoModelForCausalLM


class ChatBot:
    def __init__(self, path: str = "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"):
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path)  # load the model
        self.model.to("cuda:0")
        self.gen_kwargs = {
            "max_length": 2048,
            "do_sample": False,
            "use_cache": False,  # saves memory
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
        outputs = self.model.generate(**inputs, **self.gen_kwargs)
        text = self.tokenizer.decode(outputs[0])
        return text


bot = ChatBot()
demo = gr.ChatInterface(
    bot.respond,
    title="R1 7B",
    retry_btn=None,
    undo_btn="Delete Previous",
    clear_btn="Clear",
)
demo.queue(concurrency_count=4).launch(server_name="0.0.0.0", share=False)
