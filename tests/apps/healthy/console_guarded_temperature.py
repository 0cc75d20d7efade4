import os

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

path = os.environ.get("MODEL", "Qwen/Qwen2.5-3B-Instruct")
temperature = float(os.environ.get("TEMPERATURE", "0"))
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.bfloat16).to("cuda").eval()
streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
sampling = {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}

while True:
    question = input("> ")
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to("cuda")
    with torch.inference_mode():
        model.generate(**ids, streamer=streamer, max_new_tokens=1024, **sampling)
