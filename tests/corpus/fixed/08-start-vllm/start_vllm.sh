#!/usr/bin/env bash
set -euo pipefail

# vllm 0.11.0, 2x A10
export CUDA_VISIBLE_DEVICES=0,1
export VLLM_ATTENTION_BACKEND=FLASH_ATTN
export HF_HOME=/data/hf

MODEL_DIR=${MODEL_DIR:-/data/models/DeepSeek-R1-Distill-Qwen-14B}
LOG=/var/log/vllm/$(date +%F).log

nohup python -m vllm.entrypoints.openai.api_server \
    --model "$MODEL_DIR" \
    --served-model-name r1-14b \
    --tensor-parallel-size 2 \
    --dtype half \
    --max-model-len 16384 \
    --gpu-memory-utilization 0.92 \
    --reasoning-parser deepseek_r1 \
    --host 0.0.0.0 --port 8000 > "$LOG" 2>&1 &
echo "pid $!"
