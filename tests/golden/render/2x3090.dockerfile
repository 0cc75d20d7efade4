# syntax=docker/dockerfile:1
# deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B · vllm 0.32.0 · 2 × GeForce RTX 3090 24 GB
# Written by dstune generate dockerfile.
# needs NVIDIA driver >= 580.65.06: the image is built on CUDA 13.0 and is labelled so; on an older driver the
# container toolkit refuses it ("unsatisfied condition: cuda>=13.0"). dstune generate --driver N picks what starts on
# driver N
# Keep weights and secrets out of the build: put .git *.safetensors *.gguf *.bin models/ .cache/ .env into
# .dockerignore.
#
#   docker build -t deepseek-r1-distill-qwen-1-5b .
#   docker run --rm --gpus 2 --shm-size 2g -p 127.0.0.1:8000:8000 -v hf-cache:/home/app/.cache/huggingface deepseek-r1-distill-qwen-1-5b

FROM vllm/vllm-openai:v0.32.0

# A user of its own: a hole in the server then gives no root. The cache folder exists with the right owner, so that a
# new volume takes it over.
# Its number is that of the first user of most hosts, so that a mounted host cache can be written: --build-arg
# UID=$(id -u) for another.
ARG UID=1000
RUN useradd --create-home --non-unique --uid "${UID}" app \
 && mkdir -p /home/app/.cache/huggingface /models \
 && chown -R app:app /home/app /models

# HF_HOME is a mounted volume: weights in the image would be downloaded again with every rebuild and pull.
# The two NVIDIA variables say which cards and driver parts the container gets; an image without them starts with no
# GPU under some runtimes.
ENV HOME=/home/app \
    HF_HOME=/home/app/.cache/huggingface \
    HF_HUB_OFFLINE=0 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1

WORKDIR /home/app
USER ${UID}

VOLUME ["/home/app/.cache/huggingface"]
EXPOSE 8000
# start-period: 420 s for 3.3 GiB of weights over a 100 Mbit/s line and 120 s for the engine; the first success ends
# it early.
HEALTHCHECK --interval=15s --timeout=5s --start-period=420s --retries=4 \
  CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=3)"]

# --host 0.0.0.0: the network side of a container; the host publishes the port on 127.0.0.1
# --served-model-name DeepSeek-R1-Distill-Qwen-1.5B: the name that clients send as `model`
# --reasoning-parser deepseek_r1: splits <think>…</think> from the answer
# --dtype bfloat16: the checkpoint's own type
# --max-model-len 8192: 8,192 tokens cost 224 MiB
# --gpu-memory-utilization 0.9: the rest is the CUDA context
# --max-num-seqs 32: as many as asked for
# --tensor-parallel-size 2: each layer split over the cards
ENTRYPOINT ["vllm", "serve"]
# Options alone, so that `docker run IMAGE --other-options` and compose's `command` replace them and never repeat the
# program.
CMD ["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "--host", "0.0.0.0", "--port", "8000", "--served-model-name", "DeepSeek-R1-Distill-Qwen-1.5B", "--reasoning-parser", "deepseek_r1", "--dtype", "bfloat16", "--max-model-len", "8192", "--gpu-memory-utilization", "0.9", "--max-num-seqs", "32", "--tensor-parallel-size", "2"]
