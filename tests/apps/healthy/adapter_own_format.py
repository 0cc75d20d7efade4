import json
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
BASE = "meta-llama/Meta-Llama-3-8B-Instruct"

def errors():
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(BASE, load_in_4bit=True, device_map="auto", torch_dtype=torch.float16)
    model = PeftModel.from_pretrained(model, "outputs/nlu-lora")
    model.eval()
    with open("prompts.jsonl") as f:
        data = [json.loads(line) for line in f if line.strip()]
    for item in data[-50:]:
        prompt = f"Extract JSON.\n\nQuery: {item['prompt']}\n\nResponse:"
        inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
        with torch.no_grad():
            outputs = model.generate(**inputs, max_new_tokens=128, do_sample=False)
        res = tokenizer.decode(outputs[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)
        print(json.loads(res[res.find("{"):res.rfind("}") + 1]))

errors()
