import argparse
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--user", required=True)
    parser.add_argument("--system", default="Be polite.")
    parser.add_argument("--model_id", default="Qwen/Qwen2.5-3B-Instruct")
    parser.add_argument("--adapter_dir", default="adapter")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.adapter_dir, use_fast=True)
    bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    base = AutoModelForCausalLM.from_pretrained(args.model_id, quantization_config=bnb, device_map="auto")
    model = PeftModel.from_pretrained(base, args.adapter_dir)
    model.eval()
    messages = [{"role": "system", "content": args.system}, {"role": "user", "content": args.user}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    with torch.no_grad():
        outputs = model.generate(**inputs, max_new_tokens=512, do_sample=False)
        n = inputs["input_ids"].shape[1]
        print(tokenizer.decode(outputs[0][n:], skip_special_tokens=True).strip())

if __name__ == "__main__":
    main()
