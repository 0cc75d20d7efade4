#!/bin/sh
# 从 Word 复制来的命令
vllm serve “Qwen/Qwen2.5-1.5B-Instruct” –-max-model-len 8192 \ 
  --gpu-memory-utilization 0.9
huggingface-cli download Qwen/Qwen2.5-1.5B-Instruct --local-dir "~/models/qwen" --local-dir-use-symlinks False
