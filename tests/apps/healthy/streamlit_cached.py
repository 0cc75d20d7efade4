import streamlit as st
from transformers import pipeline


@st.cache_resource
def load():
    return pipeline("text-generation", model="Qwen/Qwen2.5-0.5B-Instruct", device_map="auto")


pipe = load()
if "messages" not in st.session_state:
    st.session_state.messages = []

for m in st.session_state.messages:
    st.chat_message(m["role"]).write(m["content"])

if prompt := st.chat_input("Ask"):
    st.session_state.messages.append({"role": "user", "content": prompt})
    st.session_state.messages = st.session_state.messages[-20:]
    out = pipe(st.session_state.messages, max_new_tokens=512)
    reply = out[0]["generated_text"][-1]["content"]
    st.session_state.messages.append({"role": "assistant", "content": reply})
    st.chat_message("assistant").write(reply)
