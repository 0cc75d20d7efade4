import gradio as gr
from llama_cpp import Llama

llm = Llama(model_path="/models/qwen2.5-1.5b-instruct-q4_k_m.gguf", n_gpu_layers=-1, n_ctx=8192)


def reply(message, history):
    messages = [{"role": m["role"], "content": m["content"]} for m in history] + [{"role": "user", "content": message}]
    text = ""
    for part in llm.create_chat_completion(messages, stream=True, max_tokens=1024, temperature=0.7):
        text += part["choices"][0]["delta"].get("content", "")
        yield text


gr.ChatInterface(reply).launch()
