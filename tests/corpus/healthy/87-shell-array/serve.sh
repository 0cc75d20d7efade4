#!/usr/bin/env bash
# Starts vLLM with options from an array; more from the command line.
set -euo pipefail
MODEL=${MODEL:-deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B}
args=(
  --host 0.0.0.0
  --port "${PORT:-8000}"
  --dtype bfloat16
  --max-model-len 8192
  --gpu-memory-utilization 0.90
  # the thinking in a field of its own
  --reasoning-parser deepseek_r1
)
if [[ -n "${API_KEY:-}" ]]; then
  args+=(--api-key "$API_KEY")
fi
exec vllm serve "$MODEL" "${args[@]}" "$@"
