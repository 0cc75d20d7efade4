#!/bin/bash
# this cluster stays on 0.6.6 until the driver is updated
pip install vllm==0.6.6.post1
vllm serve Qwen/Qwen2.5-7B-Instruct --swap-space 8 --num-scheduler-steps 8 --disable-log-requests
