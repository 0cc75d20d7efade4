#!/bin/bash
set -e
export CUDA_VISIBLE_DEVICES=0,1
python -m sglang.launch_server \
    --model-path Qwen/Qwen2.5-14B-Instruct \
    --tp 2 \
    --mem-fraction-static 0.85 \
    --context-length 16384 \
    --host 0.0.0.0 --port 30000 2>&1 | tee sglang.log
