import os
import threading

import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

MODEL = os.environ.get("MODEL_PATH", "/models/DeepSeek-R1-Distill-Qwen-1___5B")

tok = AutoTokenizer.from_pretrained(MODEL)
llm = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype="auto").to("cuda").eval()


def user_turn(text, history):
    return "", history + [{"role": "user", "content": text}]


def bot_turn(history, temperature, limit):
    prompt = tok.apply_chat_template(
        [{"role": m["role"], "content": m["content"]} for m in history],
        tokenize=False,
        add_generation_prompt=True,
    )
    enc = tok(prompt, return_tensors="pt", add_special_tokens=False).to(llm.device)
    streamer = TextIteratorStreamer(tok, skip_prompt=True, skip_special_tokens=True)
    threading.Thread(
        target=llm.generate,
        kwargs={**enc, "streamer": streamer, "max_new_tokens": int(limit), "temperature": max(float(temperature), 0.1), "top_p": 0.95, "do_sample": True},
    ).start()
    history = history + [{"role": "assistant", "content": ""}]
    for chunk in streamer:
        history[-1]["content"] += chunk
        yield history


with gr.Blocks() as demo:
    chat = gr.Chatbot()
    box = gr.Textbox()
    temp = gr.Slider(0.1, 1.0, 0.6)
    limit = gr.Slider(1024, 16384, 4096, step=256)
    box.submit(user_turn, [box, chat], [box, chat], queue=False).then(bot_turn, [chat, temp, limit], chat)
    gr.Button("Clear").click(lambda: [], None, chat)

demo.queue(max_size=8)
demo.launch(server_name="0.0.0.0", server_port=7860)
