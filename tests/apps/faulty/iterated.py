import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

tokenizer = AutoTokenizer.from_pretrained("/data/Qwen2.5-3B-Instruct")
tokenizer.to("cuda")
model = AutoModelForCausalLM.from_pretrained("/data/Qwen2.5-3B-Instruct", torch_dtype=torch.float16, device_map="auto")
model = torch.compile(model)
streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)


def stream(prompt):
    text = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, return_tensors="pt")
    for token in model.generate(**inputs, streamer=streamer, max_new_tokens=100):
        print(tokenizer.decode(token))


def once(prompt):
    text = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
    return model.generate(tokenizer(text, return_tensors="pt").to("cuda"), max_new_tokens=100)
