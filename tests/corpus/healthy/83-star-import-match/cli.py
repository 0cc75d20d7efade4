from transformers import *
import torch

cfg = dict(torch_dtype=torch.bfloat16, device_map="auto")
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", **cfg)
pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)


def reply(command):
    match command.split(maxsplit=1):
        case ["/quit"]:
            raise SystemExit
        case ["/ask", text]:
            out = pipe([{"role": "user", "content": text}], max_new_tokens=256)
            return out[0]["generated_text"][-1]["content"]
        case _:
            return "?"


while (line := input("> ")):
    print(reply(line))
