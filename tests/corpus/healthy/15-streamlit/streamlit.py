from threading import Thread

import streamlit as st
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer


@st.cache_resource(show_spinner="loading …")
def load(name: str):
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, device_map="auto")
    return tokenizer, model


tokenizer, model = load("Qwen/Qwen3-1.7B")
st.title("Qwen3")
history = st.session_state.setdefault("history", [])

for turn in history:
    with st.chat_message(turn["role"]):
        st.markdown(turn["content"])

if question := st.chat_input("Ask"):
    history.append({"role": "user", "content": question})
    with st.chat_message("user"):
        st.markdown(question)
    inputs = tokenizer.apply_chat_template(
        history[-12:], add_generation_prompt=True, return_tensors="pt", return_dict=True, enable_thinking=False
    ).to(model.device)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    worker = Thread(target=model.generate, kwargs={**inputs, "streamer": streamer, "max_new_tokens": 768})
    worker.start()
    with st.chat_message("assistant"):
        answer = st.write_stream(streamer)
    worker.join()
    history.append({"role": "assistant", "content": answer})
