#!/bin/bash
IMAGE=vllm/vllm-openai:v0.9.2
docker pull $IMAGE
docker stop vllm || true
docker run -d --rm \
    --name vllm \
    -p 8000:8000 \
    -v ~/.cache/huggingface:/root/.cache/huggingface \
    $IMAGE \
    --model Qwen/Qwen2.5-32B-Instruct \
    --tensor-parallel-size 4 \
    --use-v2-block-manager
docker logs -f vllm
