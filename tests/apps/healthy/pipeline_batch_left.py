import torch
from transformers import AutoTokenizer, pipeline

name = "Qwen/Qwen2.5-7B-Instruct"
tok = AutoTokenizer.from_pretrained(name, padding_side="left")
pipe = pipeline("text-generation", model=name, tokenizer=tok, torch_dtype=torch.bfloat16, device_map="auto")
chats = [[{"role": "user", "content": line.strip()}] for line in open("questions.txt")]
for out in pipe(chats, batch_size=8, max_new_tokens=256, do_sample=False):
    print(out[0]["generated_text"][-1]["content"])
