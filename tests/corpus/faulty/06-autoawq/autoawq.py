from awq import AutoAWQForCausalLM
from transformers import AutoTokenizer, TextStreamer

quant_path = "Qwen/Qwen2.5-7B-Instruct-AWQ"

# Load model
model = AutoAWQForCausalLM.from_quantized(quant_path, fuse_layers=True)
tokenizer = AutoTokenizer.from_pretrained(quant_path, trust_remote_code=True)
streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)

messages = [{"role": "user", "content": "Tell me about AWQ."}]
tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt").cuda()
generation_output = model.generate(tokens, streamer=streamer, max_new_tokens=512)
