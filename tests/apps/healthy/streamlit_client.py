"""Page over a vLLM server; the stream's pieces are accumulated by st.write_stream."""
import streamlit as st
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="EMPTY", timeout=120)
st.session_state.setdefault("history", [])


def pieces(messages):
    stream = client.chat.completions.create(model="qwen2.5-7b", messages=messages, stream=True, max_tokens=1024)
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


if text := st.chat_input():
    st.session_state.history.append({"role": "user", "content": text})
    answer = st.write_stream(pieces(st.session_state.history[-16:]))
    st.session_state.history.append({"role": "assistant", "content": answer})
