import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", torch_dtype=torch.bfloat16, use_cache=False)
model.gradient_checkpointing_enable()
model = get_peft_model(model, LoraConfig(r=8))
data = load_dataset("json", data_files="train.jsonl")["train"].map(lambda r: tok(r["text"], truncation=True, max_length=512))
Trainer(model=model, args=TrainingArguments(output_dir="out", bf16=True), train_dataset=data).train()
