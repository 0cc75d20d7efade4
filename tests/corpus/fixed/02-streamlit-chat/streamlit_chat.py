from threading import Event, Thread

import streamlit as st
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

st.set_page_config(page_title="R1 Chat", page_icon="🤖")
st.title("💬 DeepSeek R1 Distill")

model_path = "/data/models/DeepSeek-R1-Distill-Qwen-1.5B"


@st.cache_resource
def get_model():
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, torch_dtype=torch.bfloat16).cuda()
    return tokenizer, model


tokenizer, model = get_model()

with st.sidebar:
    max_new = st.slider("max_new_tokens", 128, 4096, 1024)
    temp = st.slider("temperature", 0.0, 1.5, 0.6)

if "messages" not in st.session_state:
    st.session_state["messages"] = [{"role": "assistant", "content": "有什么可以帮您的？"}]

for msg in st.session_state.messages:
    st.chat_message(msg["role"]).write(msg["content"])

if prompt := st.chat_input():
    st.session_state.messages.append({"role": "user", "content": prompt})
    st.chat_message("user").write(prompt)

    input_ids = tokenizer.apply_chat_template(st.session_state.messages, tokenize=False, add_generation_prompt=True)
    model_inputs = tokenizer([input_ids], return_tensors="pt").to("cuda")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=120.0)
    failed = []
    stop = Event()

    def work():
        try:
            model.generate(model_inputs.input_ids, max_new_tokens=max_new, temperature=temp, do_sample=temp > 0, streamer=streamer, stopping_criteria=[lambda *_: stop.is_set()])
        except Exception as error:
            failed.append(error)
            streamer.end()

    Thread(target=work, daemon=True).start()
    try:
        response = st.chat_message("assistant").write_stream(streamer)
    finally:
        stop.set()
    if failed:
        raise failed[0]
    st.session_state.messages.append({"role": "assistant", "content": response})
