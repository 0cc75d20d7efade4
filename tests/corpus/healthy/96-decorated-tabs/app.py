import functools, logging, time
import gradio as gr
import torch
from threading import Thread
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

log = logging.getLogger(__name__)

def timed(fn):
    @functools.wraps(fn)
    def inner(*a, **k):
        t0 = time.perf_counter()
        yield from fn(*a, **k)
        log.info("%.1f s", time.perf_counter() - t0)
    return inner

@functools.lru_cache(maxsize=1)
def load():
    name = "Qwen/Qwen2.5-1.5B-Instruct"
    return AutoTokenizer.from_pretrained(name), AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16, device_map="cuda")

@timed
def respond(message, history):
	tok, model = load()
	msgs = [*history, {"role": "user", "content": message}][-9:]
	ids = tok.apply_chat_template(msgs, add_generation_prompt=True, return_tensors="pt", return_dict=True).to(model.device)
	streamer = TextIteratorStreamer(tok, skip_prompt=True, skip_special_tokens=True, timeout=60)
	Thread(target=model.generate, kwargs={**ids, "streamer": streamer, "max_new_tokens": 512}, daemon=True).start()
	text = ""
	for piece in streamer:
		text += piece
		yield text

demo = gr.ChatInterface(respond, type="messages")
if __name__ == "__main__":
    demo.queue(max_size=16, default_concurrency_limit=1).launch()
