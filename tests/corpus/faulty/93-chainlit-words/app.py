import chainlit as cl
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16).to("cuda")


@cl.on_message
async def main(message: cl.Message):
    prompt = f"User: {message.content}\nAssistant:"
    inputs = tokenizer(prompt, return_tensors="pt").to("cuda")
    outputs = model.generate(**inputs, max_new_tokens=1024, temperature=0.6, top_p=0.95, do_sample=True)
    answer = tokenizer.decode(outputs[0], skip_special_tokens=True)
    await cl.Message(content=answer.split("Assistant:")[-1]).send()
