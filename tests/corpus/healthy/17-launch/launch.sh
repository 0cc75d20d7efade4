#!/bin/sh
# current vLLM
set -eu
: "${PORT:=8000}"
exec vllm serve Qwen/Qwen2.5-7B-Instruct \
  --port "$PORT" \
  --max-model-len 16384 \
  --gpu-memory-utilization 0.9 \
  --enable-prefix-caching \
  "$@"
