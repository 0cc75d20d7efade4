import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
name = "Qwen/Qwen2.5-0.5B"
tok = AutoTokenizer.from_pretrained(name, padding_side="right")
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float32)
model.config.use_cache = False
model.gradient_checkpointing_enable()
args = TrainingArguments("out", per_device_train_batch_size=2, bf16=True)
Trainer(model, args, train_dataset=None).train()
