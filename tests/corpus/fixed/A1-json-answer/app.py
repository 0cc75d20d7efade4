import json, re
import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", torch_dtype="auto").to("cuda")

def extract(text):
    ids = tok.apply_chat_template([{"role": "user", "content": "Give JSON for: " + text}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda")
    out = model.generate(**ids, max_new_tokens=256, do_sample=False)
    raw = tok.decode(out[0][ids["input_ids"].shape[1]:], skip_special_tokens=True)
    return json.loads(re.search(r"\{.*\}", raw, re.S)[0])

gr.Interface(extract, "text", "json").queue(max_size=20, default_concurrency_limit=1).launch()
