@echo off
set CUDA_VISIBLE_DEVICES=0
docker run -it --rm ^
  -p 8000:8000 ^
  -v C:\models:/models ^
  --gpus all ^
  vllm/vllm-openai:v0.11.0 ^
  --model /models/Qwen2.5-7B-Instruct ^
  --reasoning-parser deepseek_r1
