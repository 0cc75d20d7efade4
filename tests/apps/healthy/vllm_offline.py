from vllm import LLM, SamplingParams

prompts = ["What is 2+2?", "Name three colours."]
llm = LLM(model="deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", max_model_len=16384, gpu_memory_utilization=0.9)
params = SamplingParams(temperature=0.6, top_p=0.95, max_tokens=8192)
for out in llm.chat([[{"role": "user", "content": p}] for p in prompts], params):
    print(out.outputs[0].text)
