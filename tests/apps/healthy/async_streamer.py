import asyncio
from threading import Thread

import gradio as gr
from transformers import AsyncTextIteratorStreamer, AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", dtype="auto", device_map="cuda")


async def chat(message, history):
    enc = tok.apply_chat_template([*history, {"role": "user", "content": message}], add_generation_prompt=True, return_dict=True, return_tensors="pt").to("cuda")
    streamer = AsyncTextIteratorStreamer(tok, skip_prompt=True, skip_special_tokens=True)
    Thread(target=model.generate, kwargs={**enc, "streamer": streamer, "max_new_tokens": 700}).start()
    text = ""
    async for piece in streamer:
        text += piece
        yield text
        await asyncio.sleep(0)


gr.ChatInterface(chat).queue(max_size=10, default_concurrency_limit=1).launch()
