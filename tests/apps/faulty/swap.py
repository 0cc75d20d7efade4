import gradio as gr
from transformers import AutoModelForCausalLM, AutoTokenizer

model = tokenizer = None


def switch(name):
    global model, tokenizer
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, torch_dtype="auto", device_map="cuda")
    return name


with gr.Blocks() as demo:
    pick = gr.Dropdown(["a/b", "c/d"])
    pick.change(switch, pick, pick)
demo.launch()
