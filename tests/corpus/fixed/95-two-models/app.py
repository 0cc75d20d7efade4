from threading import Event, Thread

import gradio as gr
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

emb_tok = AutoTokenizer.from_pretrained("BAAI/bge-small-zh-v1.5")
emb = AutoModel.from_pretrained("BAAI/bge-small-zh-v1.5", torch_dtype=torch.float32).to("cpu")   # stays as it is
tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
lm = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", torch_dtype="auto").to("cuda")


def answer(q):
    with torch.no_grad():
        v = emb(**emb_tok(q, return_tensors="pt"))[0][:, 0]
    ids = tok.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda")
    streamer = TextIteratorStreamer(tok, skip_prompt=True, skip_special_tokens=True, timeout=120.0)
    failed = []
    stop = Event()

    def work():
        try:
            lm.generate(**ids, max_new_tokens=256, streamer=streamer, stopping_criteria=[lambda *_: stop.is_set()])
        except Exception as error:
            failed.append(error)
            streamer.end()

    Thread(target=work, daemon=True).start()
    text = ""
    try:
        for piece in streamer:
            text += piece
            yield text, float(v.norm())
    finally:
        stop.set()
    if failed:
        raise failed[0]


gr.Interface(answer, "text", ["text", "number"]).queue(max_size=20, default_concurrency_limit=1).launch()
