# syntax=docker/dockerfile:1
# deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B · llama.cpp b8708 · jetson agx orin 64gb 64 GB
# Written by dstune generate dockerfile.
# needs JetPack 6 (L4T R36, driver 540) on the module: CUDA 12.6 in the image, built for this L4T
# Keep weights and secrets out of the build: put .git *.safetensors *.gguf *.bin models/ .cache/ .env into
# .dockerignore.
#
#   docker build --platform linux/arm64 -t deepseek-r1-distill-qwen-1-5b .
#   docker run --rm --runtime nvidia -p 127.0.0.1:8080:8080 -v hf-cache:/home/app/.cache/huggingface deepseek-r1-distill-qwen-1-5b

FROM ghcr.io/nvidia-ai-iot/llama_cpp:b8708-r36.4-tegra-aarch64-cu126-22.04

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
    LLAMA_CACHE=/home/app/.cache/huggingface/llama.cpp \
    PYTHONUNBUFFERED=1

WORKDIR /home/app
USER ${UID}

VOLUME ["/home/app/.cache/huggingface"]
EXPOSE 8080
# start-period: 300 s for 3.3 GiB of weights over a 100 Mbit/s line and 10 s for the engine; the first success ends it
# early.
HEALTHCHECK --interval=15s --timeout=5s --start-period=300s --retries=4 \
  CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=3)"]

# --host 0.0.0.0: the network side of a container; the host publishes the port on 127.0.0.1
# --alias DeepSeek-R1-Distill-Qwen-1.5B: the name that clients send as `model`
# --jinja: the model's own chat template
# --n-gpu-layers 99: all layers fit
# --ctx-size 8192: one slot
ENTRYPOINT ["llama-server"]
# Options alone, so that `docker run IMAGE --other-options` and compose's `command` replace them and never repeat the
# program.
CMD ["-hf", "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF:Q8_0", "--host", "0.0.0.0", "--port", "8080", "--alias", "DeepSeek-R1-Distill-Qwen-1.5B", "--jinja", "--n-gpu-layers", "99", "--ctx-size", "8192"]
