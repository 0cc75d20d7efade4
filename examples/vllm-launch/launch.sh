#!/usr/bin/env bash
# Serves the 1.5B model with vLLM on a 16 GB card, the way a much-copied guide does it. dstune doctor and dstune fix know better.
python -m vllm.entrypoints.api_server \
  --model DeepSeek-R1-Distill-Qwen-1.5B \
  --tensor-parallel-size 1 \
  --pipeline-parallel-size 1 \
  --dtype half \
  --quantization awq \
  --max-model-len 4096 \
  --max-num-seqs 128 \
  --max-num-batched-tokens 1024 \
  --gpu-memory-utilization 0.9 \
  --enforce-eager \
  --enable-prefix-caching
