from threading import Lock

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from transformers import AutoModelForCausalLM, AutoTokenizer
import torch, gc

app = FastAPI()

one_at_a_time = Lock()


tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", torch_dtype=torch.float16)
model = model.to("cuda")


@app.get("/generate")
def generate(prompt: str, model_name: str = "Qwen/Qwen2.5-0.5B-Instruct"):
    messages = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True).to("cuda")
    with one_at_a_time:
        out = model.generate(**inputs, max_new_tokens=300)
    result = tokenizer.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)
    del model
    gc.collect()
    torch.cuda.empty_cache()
    return JSONResponse({"result": result})
