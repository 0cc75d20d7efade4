#!/bin/bash
usage() {
  echo "usage: $0 MODEL   starts: vllm serve MODEL --disable-log-requests"
  exit 2
}
[[ $# -ge 1 ]] || usage
serve() {
  local model=$1; shift
  vllm serve "$model" \
    --max-model-len "${LEN:-8192}" \
    ${API_KEY:+--api-key "$API_KEY"} \
    "$@"
}
if nvidia-smi -L | grep -q T4; then
  serve "$@" --dtype half
else
  serve "$@"
fi
