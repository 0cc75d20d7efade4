"""The checkpoint's own generation_config samples (0.6 / 0.95), so do_sample need not be said."""
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
# token = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
tok = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="auto", device_map="auto")

while True:
    question = input("? ")
    messages = [{"role": "user", "content": question + "\nPlease reason step by step, and put your final answer within \\boxed{}."}]
    enc = tok.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True).to(model.device)
    out = model.generate(**enc, max_new_tokens=8192, temperature=0.6, top_p=0.95)
    text = tok.decode(out[0, enc["input_ids"].shape[1]:], skip_special_tokens=True)
    thoughts, _, answer = text.rpartition("</think>")
    print(answer.strip())
