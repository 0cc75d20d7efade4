#!/bin/sh
MODEL=$1
shift
vllm serve "$MODEL" --tensor-parallel-size=2 --max-model-len=32768 --gpu-memory-utilisation=0.95 \
    --speculative-model Qwen/Qwen2.5-0.5B-Instruct --num-speculative-tokens 4 --enable-chunked-prefil "$@"
