from threading import Thread
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

def rinna(messages):
    prompt = ""
    for m in messages:
        prompt += f"{m.role}: {m.content}<NL>"
    return prompt + "システム: "

class Model:
    def __init__(self, *, config):
        self.models, self.tokenizers = {}, {}
        for row in config.models:
            if not row.enabled:
                continue
            tokenizer = AutoTokenizer.from_pretrained(row.path, use_fast=False, **row.tokenizer_kwargs)
            model = AutoModelForCausalLM.from_pretrained(row.path, **row.model_kwargs)
            for name in row.names:
                self.models[name], self.tokenizers[name] = model, tokenizer

    def generate(self, *, request):
        tokenizer, model = self.tokenizers[request.model], self.models[request.model]
        ids = tokenizer.encode(rinna(request.messages), add_special_tokens=False, return_tensors="pt")
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
        kwargs = dict(streamer=streamer, do_sample=True, max_new_tokens=256, temperature=request.temperature, pad_token_id=tokenizer.pad_token_id)
        Thread(target=model.generate, args=[ids.to(model.device)], kwargs=kwargs).start()
        for text in streamer:
            if text:
                yield text.replace("<NL>", "\n").rstrip("</s>")
