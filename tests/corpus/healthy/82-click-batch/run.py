import json
import sys

import click
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@click.command()
@click.option("--model", "name", default="Qwen/Qwen2.5-0.5B-Instruct")
@click.option("--batch-size", default=16)
@click.argument("src", type=click.File())
def main(name, batch_size, src):
    """Answer every line of SRC, batched; JSON lines on stdout."""
    tok = AutoTokenizer.from_pretrained(name, padding_side="left")
    tok.pad_token = tok.pad_token or tok.eos_token
    model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float16, device_map="auto")
    lines = [l.strip() for l in src if l.strip()]
    for at in range(0, len(lines), batch_size):
        part = lines[at : at + batch_size]
        texts = [tok.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True) for q in part]
        batch = tok(texts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
        with torch.inference_mode():
            out = model.generate(**batch, max_new_tokens=256, do_sample=False)
        for q, ids in zip(part, out[:, batch["input_ids"].shape[1] :]):
            json.dump({"q": q, "a": tok.decode(ids, skip_special_tokens=True)}, sys.stdout, ensure_ascii=False)
            print()


if __name__ == "__main__":
    main()
