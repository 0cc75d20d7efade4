from threading import Event, Thread

import gradio as gr
import torch
from transformers import AutoTokenizer, AutoModelForCausalLM, TextIteratorStreamer

tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", torch_dtype=torch.float16).cuda()

def respond(message, chat_history):
    msgs = []
    for u, a in chat_history:
        msgs += [{"role": "user", "content": u}, {"role": "assistant", "content": a}]
    msgs.append({"role": "user", "content": message})
    ids = tokenizer.apply_chat_template(msgs, add_generation_prompt=True, return_tensors="pt").cuda()
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=120.0)
    failed = []
    stop = Event()

    def work():
        try:
            model.generate(ids, max_new_tokens=512, streamer=streamer, stopping_criteria=[lambda *_: stop.is_set()])
        except Exception as error:
            failed.append(error)
            streamer.end()

    Thread(target=work, daemon=True).start()
    reply = ""
    try:
        for piece in streamer:
            reply += piece
            yield "", chat_history + [(message, reply)]
    finally:
        stop.set()
    if failed:
        raise failed[0]

with gr.Blocks(theme=gr.themes.Soft()) as demo:
    chatbot = gr.Chatbot(height=500)
    msg = gr.Textbox()
    msg.submit(respond, [msg, chatbot], [msg, chatbot])
    gr.Button("清空").click(lambda: None, None, chatbot, queue=False)

demo.queue(default_concurrency_limit=3, max_size=20).launch(server_name="0.0.0.0")
