#!/usr/bin/env bash
set -euo pipefail

# vllm 0.11.0, 2x A10
export CUDA_VISIBLE_DEVICES=0,1
export VLLM_ATTENTION_BACKEND=FLASH_ATTN
export HF_HOME=/data/hf

MODEL_DIR=${MODEL_DIR:-/data/models/DeepSeek-R1-Distill-Qwen-14B}
LOG=/var/log/vllm/$(date +%F).log

nohup python -m vllm.entrypoints.api_server \
    --model "$MODEL_DIR" \
    --served-model-name r1-14b \
    --tensor-parallel-size 2 \
    --dtype half \
    --max-model-len 16384 \
    --gpu-memory-utilization 0.92 \
    --swap-space 8 \
    --use-v2-block-manager \
    --num-scheduler-steps 8 \
    --enable-reasoning \
    --reasoning-parser deepseek_r1 \
    --disable-log-requests \
    --host 0.0.0.0 --port 8000 > "$LOG" 2>&1 &
echo "pid $!"
