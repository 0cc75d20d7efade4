import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B")
model = AutoModelForCausalLM.from_pretrained("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", torch_dtype=torch.float32, device_map="auto")
GEN = {"max_new_tokens": 256, "max_length": 1536, "use_cache": False}


def solve(question):
    messages = [{"role": "system", "content": "You are a maths teacher."}, {"role": "user", "content": question}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt").to("cuda")
    out = model.generate(**ids, do_sample=False, **GEN)
    return tokenizer.decode(out[0][ids["input_ids"].shape[1]:])


gr.Interface(fn=solve, inputs="text", outputs="text", queue=True, max_size=5).launch()
