import streamlit as st
import torch
from transformers import pipeline

st.title("Chat")
pipe = pipeline("text-generation", model="Qwen/Qwen2.5-1.5B-Instruct", torch_dtype=torch.bfloat16, device_map="auto")

if "messages" not in st.session_state:
    st.session_state.messages = []
for m in st.session_state.messages:
    st.chat_message(m["role"]).write(m["content"])

if prompt := st.chat_input("Ask"):
    st.session_state.messages.append({"role": "user", "content": prompt})
    st.chat_message("user").write(prompt)
    with st.chat_message("assistant"):
        out = pipe(st.session_state.messages, max_new_tokens=512)
        answer = out[0]["generated_text"][-1]["content"]
        st.write(answer)
    st.session_state.messages.append({"role": "assistant", "content": answer})
