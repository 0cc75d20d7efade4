# llama.cpp on the desktop
$model = "D:\models\Qwen2.5-7B-Instruct-Q4_K_M.gguf"
& "C:\llama\llama-server.exe" `
    -m $model `
    -ngl 99 `
    -c 8192 `
    --host 127.0.0.1 `
    --port 8080
