import os
from functools import lru_cache
import gradio as gr
from vllm import LLM, SamplingParams

@lru_cache(maxsize=1)
def engine() -> LLM:
    return LLM(os.environ.get("MODEL", "Qwen/Qwen2.5-7B-Instruct"), max_model_len=8192)

def answer(message, history):
    turns = [{"role": t["role"], "content": t["content"]} for t in history[-12:]] + [{"role": "user", "content": message}]
    return engine().chat(turns, SamplingParams(max_tokens=512, temperature=0.7))[0].outputs[0].text

if __name__ == "__main__":
    gr.ChatInterface(answer, type="messages", concurrency_limit=1).queue(max_size=20).launch()
