# Æô¶¯ llama.cpp
$ErrorActionPreference = "Stop"
$model = "C:\models\qwen2.5-1.5b-instruct-q4_k_m.gguf"
& .\llama-server.exe `
    --model $model `
    --n-gpu-layers 99 `
    --ctx-size 8192 `
    --parallel 2 `
    --host 127.0.0.1 --port 8080
