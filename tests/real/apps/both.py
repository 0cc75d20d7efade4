"""A page and a route around one model, as people write them first: both answer when the whole text is there.

python both.py PORT MODEL
"""

import sys

import gradio as gr
import uvicorn
from fastapi import FastAPI
from transformers import AutoModelForCausalLM, AutoTokenizer

port, path = int(sys.argv[1]), sys.argv[2]
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path)
app = FastAPI()


@app.post("/ask")
def ask(question: str):
    inputs = tokenizer(question, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=2000, min_new_tokens=2000, do_sample=False)
    return {"answer": tokenizer.decode(output[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)}


def predict(prompt):
    inputs = tokenizer(prompt, return_tensors="pt")
    outputs = model.generate(**inputs, max_new_tokens=2000, min_new_tokens=2000, do_sample=False)
    return tokenizer.decode(outputs[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)


demo = gr.Interface(predict, "text", "text", api_name="predict")
uvicorn.run(gr.mount_gradio_app(app, demo, path="/page"), host="127.0.0.1", port=port)
