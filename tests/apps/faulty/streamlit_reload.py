import streamlit as st
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instuct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instuct", torch_dtype=torch.float16, device_map="auto")
question = st.text_input("Question")
if question:
    inputs = tokenizer(question, return_tensors="pt").to(model.device)
    out = model.generate(**inputs, max_new_tokens=200)
    st.write(tokenizer.decode(out[0], skip_special_tokens=True))
