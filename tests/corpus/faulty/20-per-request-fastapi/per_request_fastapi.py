from fastapi import FastAPI
from fastapi.responses import JSONResponse
from transformers import AutoModelForCausalLM, AutoTokenizer
import torch, gc

app = FastAPI()

@app.get("/generate")
async def generate(prompt: str, model_name: str = "Qwen/Qwen2.5-0.5B-Instruct"):
    tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", torch_dtype=torch.float16)
    model = model.to("cuda")
    messages = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt").to("cuda")
    out = model.generate(inputs, max_new_tokens=300)
    result = tokenizer.decode(out[0], skip_special_tokens=True)
    del model
    gc.collect()
    torch.cuda.empty_cache()
    return JSONResponse({"result": result})
