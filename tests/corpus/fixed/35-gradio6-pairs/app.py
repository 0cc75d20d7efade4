import gradio as gr
from functools import partial
from transformers import pipeline

pipe = pipeline("text-generation", model="Qwen/Qwen2.5-0.5B-Instruct", device=0)
gen = partial(pipe, max_new_tokens=1024, do_sample=True)


def plain(content):
    """The text of a message: Gradio hands it on as text or as parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def user(message, history):
    return "", history + [{"role": "user", "content": message}]


def bot(history):
    message = plain(history[-1]["content"])
    out = gen([{"role": "user", "content": message}])
    history.append({"role": "assistant", "content": out[0]["generated_text"][-1]["content"]})
    return history


with gr.Blocks(theme="soft", css="footer {display:none}") as demo:
    chatbot = gr.Chatbot(height=500, buttons=["copy"])
    msg = gr.Textbox(container=False)
    clear = gr.Button("Clear")
    msg.submit(user, [msg, chatbot], [msg, chatbot], queue=False).then(bot, chatbot, chatbot)
    clear.click(lambda: None, None, chatbot, queue=False)

demo.queue(default_concurrency_limit=2, max_size=20)
demo.launch(server_port=7860)
