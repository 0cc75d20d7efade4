#!/usr/bin/env bash
cd "$(dirname "$0")"
source .venv/bin/activate
export HF_HOME=/data/hf
exec gunicorn main:app \
  --worker-class uvicorn.workers.UvicornWorker \
  --workers 1 \
  --timeout 300 \
  --bind 0.0.0.0:8000
