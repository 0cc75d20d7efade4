import argparse
from datasets import load_dataset
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments
model_id = "mistralai/Mistral-7B-Instruct-v0.1"

def text_of(example):
    return f"### Instruction:\n{example['instruction']}\n\n### Response:\n{example['output']}"

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(model_id, load_in_4bit=True, device_map="auto")
    tokenizer = AutoTokenizer.from_pretrained(model_id)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    dataset = load_dataset("json", data_files="train.jsonl")

    def encode(example):
        encoding = tokenizer(text_of(example), truncation=True, padding="max_length", max_length=512)
        encoding["labels"] = encoding["input_ids"].copy()
        return encoding

    rows = dataset["train"].map(encode, remove_columns=dataset["train"].column_names)
    model = get_peft_model(model, LoraConfig(task_type=TaskType.CAUSAL_LM, r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]))
    options = TrainingArguments(output_dir="./lora-out", per_device_train_batch_size=1, gradient_accumulation_steps=4, num_train_epochs=args.epochs, fp16=True)
    Trainer(model=model, tokenizer=tokenizer, args=options, train_dataset=rows, data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False)).train()
    model.save_pretrained("./lora-adapter")

main()
