import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

print("GPU:", torch.cuda.is_available())
tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-7B")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", torch_dtype=torch.bfloat16)
history = []


def chat(message, shown):
    history.append({"role": "user", "content": message})
    prompt = tok.apply_chat_template(history, tokenize=False, add_generation_prompt=True)
    ids = tok(prompt, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=300)
    reply = tok.decode(out[0, ids["input_ids"].shape[1]:], skip_special_tokens=True)
    history.append({"role": "assistant", "content": reply})
    return reply


with gr.Blocks() as demo:
    box = gr.Textbox()
    bot = gr.Chatbot()
    box.submit(chat, [box, bot], bot)
demo.launch(enable_queue=True)
