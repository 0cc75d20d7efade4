from threading import Event, Thread

import streamlit as st
import torch
from transformers import pipeline, TextIteratorStreamer

st.title("Chat")


@st.cache_resource
def load_model():
    pipe = pipeline("text-generation", model="Qwen/Qwen2.5-1.5B-Instruct", torch_dtype=torch.bfloat16, device_map="auto")
    return pipe


pipe = load_model()

if "messages" not in st.session_state:
    st.session_state.messages = []
for m in st.session_state.messages:
    st.chat_message(m["role"]).write(m["content"])

if prompt := st.chat_input("Ask"):
    st.session_state.messages.append({"role": "user", "content": prompt})
    st.chat_message("user").write(prompt)
    with st.chat_message("assistant"):
        conversation = st.session_state.messages
        streamer = TextIteratorStreamer(pipe.tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=120.0)
        failed = []
        stop = Event()

        def work():
            try:
                pipe(conversation, max_new_tokens=512, streamer=streamer, stopping_criteria=[lambda *_: stop.is_set()])
            except Exception as error:
                failed.append(error)
                streamer.end()

        Thread(target=work, daemon=True).start()
        try:
            answer = st.write_stream(streamer)
        finally:
            stop.set()
        if failed:
            raise failed[0]
    st.session_state.messages.append({"role": "assistant", "content": answer})
