import gradio as gr
import torch
from transformers import AutoTokenizer, AutoModelForCausalLM

tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", torch_dtype=torch.float16).cuda()

def respond(message, chat_history):
    msgs = []
    for u, a in chat_history:
        msgs += [{"role": "user", "content": u}, {"role": "assistant", "content": a}]
    msgs.append({"role": "user", "content": message})
    ids = tokenizer.apply_chat_template(msgs, add_generation_prompt=True, return_tensors="pt").cuda()
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=512)
    reply = tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)
    chat_history.append((message, reply))
    return "", chat_history

with gr.Blocks(theme=gr.themes.Soft()) as demo:
    chatbot = gr.Chatbot().style(height=500)
    msg = gr.Textbox()
    msg.submit(respond, [msg, chatbot], [msg, chatbot])
    gr.Button("清空").click(lambda: None, None, chatbot, queue=False)

demo.queue(concurrency_count=3).launch(enable_queue=True, server_name="0.0.0.0")
