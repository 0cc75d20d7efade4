import argparse
from peft import PeftModel
from own.harness import load_model_and_config

def load(path):
    model, tokenizer = load_model_and_config("mistral")
    model = PeftModel.from_pretrained(model, path, adapter_name="episodic")
    model.set_adapter("episodic")
    model.gradient_checkpointing_disable()
    return model, tokenizer

def generate(model, tokenizer, prompt, max_new_tokens=300, temperature=0.0):
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, return_tensors="pt").to(model.device)
    outputs = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=temperature > 0, temperature=temperature if temperature > 0 else None, pad_token_id=tokenizer.eos_token_id)
    return tokenizer.decode(outputs[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True).strip()

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--adapter", required=True)
    model, tokenizer = load(parser.parse_args().adapter)
    while True:
        prompt = input("probe> ").strip()
        if prompt == "/quit":
            break
        print(generate(model, tokenizer, prompt))

main()
