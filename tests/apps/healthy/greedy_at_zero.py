from threading import Thread

import gradio as gr
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

NAME = "meta-llama/Meta-Llama-3-8B-Instruct"
tokenizer = AutoTokenizer.from_pretrained(NAME)
model = AutoModelForCausalLM.from_pretrained(NAME, dtype="auto", device_map="auto")
ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|eot_id|>")]


def reply(message, history, temperature, max_new_tokens):
    talk = [*history, {"role": "user", "content": message}]
    inputs = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt", return_dict=True).to(model.device)
    streamer = TextIteratorStreamer(tokenizer, timeout=60.0, skip_prompt=True, skip_special_tokens=True)
    options = dict(**inputs, streamer=streamer, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, eos_token_id=ends)
    if temperature == 0:
        options["do_sample"] = False
    Thread(target=model.generate, kwargs=options).start()
    parts = []
    for text in streamer:
        parts.append(text)
        yield "".join(parts)


gr.ChatInterface(
    reply,
    type="messages",
    concurrency_limit=4,
    additional_inputs=[
        gr.Slider(minimum=0, maximum=1, step=0.1, value=0.95, label="Temperature"),
        gr.Slider(minimum=128, maximum=4096, step=1, value=512, label="Max new tokens"),
    ],
).queue(max_size=32).launch()
