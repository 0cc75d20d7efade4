import gradio as gr, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer
from threading import Thread
tok = AutoTokenizer.from_pretrained("google/gemma-2-9b-it")
model = AutoModelForCausalLM.from_pretrained("google/gemma-2-9b-it", torch_dtype=torch.bfloat16, device_map="auto")
def chat(message, history, temperature, top_p):
    msgs = [{"role": m["role"], "content": m["content"]} for m in history[-8:]] + [{"role": "user", "content": message}]
    enc = tok.apply_chat_template(msgs, add_generation_prompt=True, return_tensors="pt", return_dict=True).to(model.device)
    s = TextIteratorStreamer(tok, skip_prompt=True, skip_special_tokens=True, timeout=60)
    Thread(target=model.generate, kwargs=dict(**enc, streamer=s, max_new_tokens=512, do_sample=True, temperature=temperature, top_p=top_p)).start()
    out = ""
    for t in s:
        out += t
        yield out
gr.ChatInterface(chat, type="messages", additional_inputs=[gr.Slider(0.05, 1.5, 0.7, label="Temperature"), gr.Slider(0, 1, 0.9, label="top_p")], concurrency_limit=2).queue(max_size=10).launch()
