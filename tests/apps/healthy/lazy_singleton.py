import functools

import torch
from flask import Flask, jsonify, request
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

app = Flask(__name__)
# model = AutoModelForCausalLM.from_pretrained("x", torch_dtype=torch.float32, use_cache=False)  # first try
_model = None


def get_model():
    global _model
    if _model is None:
        quant = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_type="nf4")
        _model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-Instruct-v0.3", quantization_config=quant, device_map="auto")
    return _model


@functools.lru_cache(maxsize=1)
def get_tokenizer():
    return AutoTokenizer.from_pretrained("mistralai/Mistral-7B-Instruct-v0.3")


@app.route("/generate", methods=["POST"])
def generate():
    tokenizer, model = get_tokenizer(), get_model()
    ids = tokenizer.apply_chat_template([{"role": "user", "content": request.json["text"]}], return_tensors="pt", return_dict=True, add_generation_prompt=True)
    ids = {k: v.to("cuda") for k, v in ids.items()}
    out = model.generate(**ids, max_new_tokens=400, do_sample=True, temperature=0.8, pad_token_id=tokenizer.eos_token_id)
    text = tokenizer.batch_decode(out, skip_special_tokens=True)[0]
    return jsonify(text=text.split("[/INST]")[-1].strip())


if __name__ == "__main__":
    app.run(port=5000, threaded=False)
