from transformers import TextStreamer
from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen3-4B", max_seq_length=2048, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16)
trainer = SFTTrainer(model=model, tokenizer=tokenizer, train_dataset=dataset, args=SFTConfig(max_steps=60))
trainer.train()

FastLanguageModel.for_inference(model)
text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
model.generate(**tokenizer(text, return_tensors="pt").to("cuda"), max_new_tokens=64, streamer=TextStreamer(tokenizer))
