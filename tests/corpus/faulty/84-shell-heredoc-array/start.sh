#!/bin/bash
# 部署脚本
set -e
cat > /tmp/notice.txt <<'EOF'
python -m vllm.entrypoints.api_server --model old   # this text is only shown
EOF
cat /tmp/notice.txt
export CUDA_VISIBLE_DEVICES=0
OPTS=(--dtype bfloat16 --max-model-len 8192)
python3 -m vllm.entrypoints.api_server \
    --model Qwen/Qwen2.5-1.5B-Instruct \
    "${OPTS[@]}" \
    --disable-log-requests \
    --port 8000 2>&1 | tee vllm.log
