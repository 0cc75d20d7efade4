"""The same model behind an Interface with sliders."""

import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model_path = "/root/.cache/huggingface/deepseek-ai/DeepSeek-R1-Distill-Qwen-1___5B"
tokenizer = AutoTokenizer.from_pretrained(model_path)
model = AutoModelForCausalLM.from_pretrained(model_path, device_map="auto")


def predict(prompt, temperature, max_new_tokens):
    inputs = tokenizer(prompt, return_tensors="pt")
    input_ids = inputs["input_ids"].to(model.device)
    with torch.no_grad():
        outputs = model.generate(
            input_ids,
            max_new_tokens=int(max_new_tokens),
            temperature=temperature,
            top_p=0.95,
            do_sample=True,
        )
    return tokenizer.decode(outputs[0], skip_special_tokens=True)


demo = gr.Interface(
    fn=predict,
    inputs=[
        gr.Textbox(lines=4, label="Prompt"),
        gr.Slider(0, 1, value=0.6, label="Temperature"),
        gr.Slider(1, 4096, value=2048, step=1, label="New tokens"),
    ],
    outputs="text",
)

demo.launch(server_port=7860)
