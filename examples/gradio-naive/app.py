"""A chat page around DeepSeek-R1-Distill-Qwen-1.5B, as it is usually written first."""

import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL_PATH = "/root/.cache/huggingface/deepseek-ai/DeepSeek-R1-Distill-Qwen-1___5B"

tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(MODEL_PATH, trust_remote_code=True).to("cuda")


def predict(message, history):
    input_ids = tokenizer(message, return_tensors="pt").input_ids.to("cuda")
    with torch.no_grad():
        outputs = model.generate(
            input_ids,
            max_new_tokens=2048,
            temperature=0.6,
            top_p=0.95,
            do_sample=True,
        )
    response = tokenizer.decode(outputs[0], skip_special_tokens=True)
    return response


demo = gr.Interface(
    fn=predict,
    inputs=[gr.Textbox(label="Question"), gr.State()],
    outputs=[gr.Textbox(label="Answer")],
    title="DeepSeek-R1 1.5B",
)

if __name__ == "__main__":
    demo.launch(server_name="0.0.0.0", server_port=7860)
