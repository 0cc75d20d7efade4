#!/bin/sh
MODEL=$1
shift
vllm serve "$MODEL" --tensor-parallel-size=2 --max-model-len=32768 --gpu-memory-utilization=0.95 \
    --speculative-config '{"model": "Qwen/Qwen2.5-0.5B-Instruct", "num_speculative_tokens": 4}' --enable-chunked-prefil "$@"
