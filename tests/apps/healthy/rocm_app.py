"""Served on a Radeon (ROCm build of torch; the device is still called cuda there)."""
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

path = "./models/Qwen2.5-3B-Instruct"
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float16, device_map="auto")
config = GenerationConfig.from_pretrained(path, max_new_tokens=600)


class Bot:
    def __init__(self):
        self.turns = []

    def ask(self, text):
        self.turns.append({"role": "user", "content": text})
        self.turns = self.turns[-12:]
        inputs = tokenizer.apply_chat_template(self.turns, tokenize=True, add_generation_prompt=True, return_tensors="pt", return_dict=True).to(model.device)
        with torch.no_grad():
            generated = model.generate(**inputs, generation_config=config)
        generated = [o[len(i):] for i, o in zip(inputs.input_ids, generated)]
        answer = tokenizer.batch_decode(generated, skip_special_tokens=True)[0]
        self.turns.append({"role": "assistant", "content": answer})
        return answer


bot = Bot()
while True:
    print(bot.ask(input("> ")))
