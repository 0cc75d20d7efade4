import gradio as gr, torch
from transformers import AutoTokenizer, AutoModelForCausalLM, TextIteratorStreamer
from threading import Thread
tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", torch_dtype=torch.bfloat16, device_map="cuda")

def chat(message, history):
	ids = tok.apply_chat_template([{"role": "user", "content": message}], add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda")
	streamer = TextIteratorStreamer(tok, skip_prompt=True, skip_special_tokens=True)
	Thread(target=model.generate, kwargs=dict(**ids, streamer=streamer, max_new_tokens=512)).start()
	for piece in streamer:
		yield piece	# fragment

gr.ChatInterface(chat, type="messages").queue(concurrency_count=4, max_size=20).launch()
