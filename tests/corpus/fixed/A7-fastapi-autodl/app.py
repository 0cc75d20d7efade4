"""RAG 问答服务"""
import os
from threading import Lock

os.environ["CUDA_VISIBLE_DEVICES"] = "0"
import torch
import uvicorn
from fastapi import FastAPI
from transformers import AutoModelForCausalLM, AutoTokenizer

DEVICE = "cuda:0"
app = FastAPI()

one_at_a_time = Lock()


@app.post("/")
def create_item(item: dict):
    prompt = item["prompt"]
    messages = [{"role": "system", "content": "你是一个助手"}, {"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    model_inputs = tokenizer([text], return_tensors="pt").to(DEVICE)
    with one_at_a_time:
        generated = model.generate(model_inputs.input_ids, max_new_tokens=512)
    generated = [o[len(i):] for i, o in zip(model_inputs.input_ids, generated)]
    return {"response": tokenizer.batch_decode(generated, skip_special_tokens=True)[0]}


if __name__ == "__main__":
    path = "/root/autodl-tmp/Qwen1.5-7B-Chat"
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, device_map="auto", torch_dtype=torch.bfloat16)
    uvicorn.run("app:app", host="0.0.0.0", port=6006, workers=1)
