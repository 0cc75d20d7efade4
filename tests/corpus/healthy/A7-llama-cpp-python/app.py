from llama_cpp import Llama
import gradio as gr
llm = Llama(model_path="q.gguf", n_gpu_layers=-1, n_ctx=8192, verbose=False)
def chat(message, history):
    text = ""
    for part in llm.create_chat_completion([*history, {"role": "user", "content": message}], stream=True, max_tokens=512):
        text += part["choices"][0]["delta"].get("content") or ""
        yield text
gr.ChatInterface(chat, type="messages").queue(max_size=20, default_concurrency_limit=1).launch()
