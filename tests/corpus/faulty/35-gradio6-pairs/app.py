import gradio as gr
from functools import partial
from transformers import pipeline

pipe = pipeline("text-generation", model="Qwen/Qwen2.5-0.5B-Instruct", device=0)
gen = partial(pipe, max_length=1024, do_sample=True)


def user(message, history):
    return "", history + [[message, None]]


def bot(history):
    message = history[-1][0]
    out = gen([{"role": "user", "content": message}])
    history[-1][1] = out[0]["generated_text"][-1]["content"]
    return history


with gr.Blocks(theme="soft", css="footer {display:none}") as demo:
    chatbot = gr.Chatbot(show_copy_button=True, bubble_full_width=False, height=500)
    msg = gr.Textbox().style(container=False)
    clear = gr.Button("Clear")
    msg.submit(user, [msg, chatbot], [msg, chatbot], queue=False).then(bot, chatbot, chatbot)
    clear.click(lambda: None, None, chatbot, queue=False)

demo.queue(concurrency_count=2, max_size=20)
demo.launch(enable_queue=True, server_port=7860)
