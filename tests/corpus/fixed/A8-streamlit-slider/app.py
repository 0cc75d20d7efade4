import streamlit as st
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

@st.cache_resource
def load():
    name = "Qwen/Qwen2.5-3B-Instruct"
    return AutoTokenizer.from_pretrained(name), AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16, device_map="auto")

tok, model = load()
with st.sidebar:
    temp = st.slider("Temperature", min_value=0.0, max_value=2.0, value=0.7)
    n = st.number_input("tokens", 16, 2048, 512)
if q := st.chat_input():
    enc = tok.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to(model.device)
    params = {"max_new_tokens": int(n), "do_sample": float(temp) > 0, "temperature": float(temp)}
    with torch.no_grad():
        out = model.generate(**enc, **params)
    st.write(tok.decode(out[0][enc["input_ids"].shape[-1]:], skip_special_tokens=True))
