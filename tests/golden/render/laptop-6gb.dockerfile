# syntax=docker/dockerfile:1
# deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B · transformers 5.24.0 · GeForce RTX 3060 Laptop GPU 6 GB
# Written by dstune generate dockerfile.
# needs NVIDIA driver >= 525.60.13: the wheels bring CUDA 12.8 themselves, and a program of that CUDA family runs on
# every driver from 525.60.13 on. The base image has no CUDA of its own, so nothing else asks for a driver
# Keep weights and secrets out of the build: put .git *.safetensors *.gguf *.bin models/ .cache/ .env into
# .dockerignore.
#
#   docker build -t deepseek-r1-distill-qwen-1-5b .
#   docker run --rm --gpus all -p 127.0.0.1:7860:7860 -v hf-cache:/home/app/.cache/huggingface deepseek-r1-distill-qwen-1-5b

FROM python:3.12-slim-bookworm

# Triton and torch.compile build small launchers at run time and need a C compiler.
# Debian removes a version from its index when the next one comes, so a pinned apt version would break the build.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*

# Pinned: a set that resolves together for this Python and platform. The layers beneath (starlette, huggingface_hub,
# …) too, since a new major of one of them broke older pins before.
RUN pip install --no-cache-dir \
      torch==2.10.0 \
      transformers==5.24.0 \
      accelerate==1.15.0 \
      gradio==6.31.0 \
      fastapi==0.165.0 \
      starlette==1.10.0 \
      pydantic==2.14.4 \
      uvicorn==0.54.0 \
      huggingface-hub==2.4.0 \
      tokenizers==0.23.3 \
      safetensors==0.8.0 \
      numpy==2.5.5 \
      bitsandbytes==0.50.2

# A user of its own: a hole in the server then gives no root. The cache folder exists with the right owner, so that a
# new volume takes it over.
# Its number is that of the first user of most hosts, so that a mounted host cache can be written: --build-arg
# UID=$(id -u) for another.
ARG UID=1000
RUN useradd --create-home --non-unique --uid "${UID}" app \
 && mkdir -p /home/app/.cache/huggingface /home/app/app /models \
 && chown -R app:app /home/app /models

# HF_HOME is a mounted volume: weights in the image would be downloaded again with every rebuild and pull.
# The two NVIDIA variables say which cards and driver parts the container gets; an image without them starts with no
# GPU under some runtimes.
ENV HOME=/home/app \
    HF_HOME=/home/app/.cache/huggingface \
    HF_HUB_OFFLINE=0 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    GRADIO_SERVER_NAME=0.0.0.0 \
    GRADIO_SERVER_PORT=7860 \
    PYTHONUNBUFFERED=1

WORKDIR /home/app/app
# Only the program: a later change of it rebuilds this layer alone.
COPY --chown=app:app app.py ./
USER ${UID}

VOLUME ["/home/app/.cache/huggingface"]
EXPOSE 7860
# start-period: 330 s for 3.3 GiB of weights over a 100 Mbit/s line and 30 s for the engine; the first success ends it
# early.
HEALTHCHECK --interval=15s --timeout=5s --start-period=330s --retries=4 \
  CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7860/', timeout=3)"]

ENTRYPOINT ["python", "app.py"]
