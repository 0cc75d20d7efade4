"""The same model behind a hand-made chat page."""

import gradio as gr
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL_PATH = "/root/.cache/huggingface/deepseek-ai/DeepSeek-R1-Distill-Qwen-1___5B"

tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(MODEL_PATH, trust_remote_code=True)
model = model.to("cuda").eval()


def chat_interface(message, history, temperature=0.6, max_tokens=1024):
    input_ids = tokenizer(message, return_tensors="pt").input_ids.to("cuda")
    with torch.no_grad():
        outputs = model.generate(
            input_ids,
            max_new_tokens=max_tokens,
            temperature=temperature,
            top_p=0.95,
            do_sample=True,
        )
    response = tokenizer.decode(outputs[0], skip_special_tokens=True)
    return response


with gr.Blocks(title="DeepSeek-R1 1.5B") as demo:
    gr.Markdown("## DeepSeek-R1-Distill-Qwen-1.5B")
    chatbot = gr.Chatbot(height=480)
    msg = gr.Textbox(label="Message")
    clear = gr.Button("Clear")

    msg.submit(chat_interface, [msg, chatbot], [chatbot])
    clear.click(lambda: None, None, chatbot, queue=False)

if __name__ == "__main__":
    demo.launch(server_name="0.0.0.0", server_port=7860)
