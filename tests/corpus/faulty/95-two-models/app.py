import gradio as gr
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

emb_tok = AutoTokenizer.from_pretrained("BAAI/bge-small-zh-v1.5")
emb = AutoModel.from_pretrained("BAAI/bge-small-zh-v1.5", torch_dtype=torch.float32).to("cpu")   # stays as it is
tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
lm = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", torch_dtype=torch.float32).to("cuda")


def answer(q):
    with torch.no_grad():
        v = emb(**emb_tok(q, return_tensors="pt"))[0][:, 0]
    ids = tok.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda")
    out = lm.generate(**ids, max_new_tokens=256)
    text = tok.decode(out[0][ids["input_ids"].shape[1]:], skip_special_tokens=True)
    return text, float(v.norm())


gr.Interface(answer, "text", ["text", "number"]).launch()
