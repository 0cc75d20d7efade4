from threading import Thread

import gradio as gr
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

MODEL = "Qwen/Qwen3-4B"
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="auto", device_map="cuda")


def plain(content):
    return content if isinstance(content, str) else "".join(p["text"] for p in content if p["type"] == "text")


def reply(message, history):
    turns = [{"role": t["role"], "content": plain(t["content"])} for t in history[-10:]]
    inputs = tokenizer.apply_chat_template(
        [*turns, {"role": "user", "content": message}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    ).to(model.device)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=120)
    Thread(target=model.generate, kwargs={**inputs, "streamer": streamer, "max_new_tokens": 4096}, daemon=True).start()
    text = ""
    for piece in streamer:
        text += piece
        yield text


demo = gr.ChatInterface(reply, title="Qwen3", concurrency_limit=1)
demo.queue(max_size=32).launch(theme="soft")
