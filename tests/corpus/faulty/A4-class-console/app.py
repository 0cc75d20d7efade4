import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class ChatBot:
    def __init__(self, path="Qwen/Qwen2.5-1.5B-Instruct"):
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.bfloat16, device_map="cuda")
        self.messages = [{"role": "system", "content": "You are a helpful assistant."}]

    def ask(self, question):
        self.messages = self.messages[:1] + [{"role": "user", "content": question}]
        ids = self.tokenizer.apply_chat_template(self.messages, return_tensors="pt", return_dict=True).to(self.model.device)
        out = self.model.generate(**ids, max_new_tokens=512)
        return self.tokenizer.decode(out[0][ids["input_ids"].shape[1]:], skip_special_tokens=True)


if __name__ == "__main__":
    bot = ChatBot()
    while True:
        print(bot.ask(input("> ")))
