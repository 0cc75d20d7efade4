"""What the start-up and load lines of vLLM say, over its versions (excerpts of real logs)."""

from dstune.readers.scan import scanner

V06 = """INFO 01-10 10:00:00 api_server.py:651] vLLM API server version 0.6.6.post1
INFO 01-10 10:00:00 api_server.py:652] args: Namespace(host=None, port=8000, model='org/m', dtype='half', max_model_len=4096, quantization=None, max_num_seqs=128, gpu_memory_utilization=0.9)
INFO 01-10 10:00:02 llm_engine.py:234] Initializing an LLM engine (v0.6.6.post1) with config: model='org/m', tokenizer='org/m', dtype=torch.float16, max_seq_len=4096, load_format=LoadFormat.AUTO, tensor_parallel_size=1, quantization=None, enforce_eager=True, kv_cache_dtype=auto, enable_prefix_caching=False, chunked_prefill_enabled=False,
INFO 01-10 10:00:03 selector.py:120] Using Flash Attention backend.
INFO 01-10 10:00:10 model_runner.py:1099] Loading model weights took 3.3460 GB
INFO 01-10 10:00:12 worker.py:241] model weights take 3.35GiB; non_torch_memory takes 0.04GiB; PyTorch activation peak memory takes 1.39GiB; the rest of the memory reserved for KV Cache is 8.44GiB.
INFO 01-10 10:00:12 gpu_executor.py:76] # GPU blocks: 19751, # CPU blocks: 9362
INFO 01-10 10:00:12 gpu_executor.py:80] Maximum concurrency for 4096 tokens per request: 77.15x
INFO 01-10 10:01:12 metrics.py:467] Avg prompt throughput: 10.1 tokens/s, Avg generation throughput: 55.4 tokens/s, Running: 3 reqs, Swapped: 0 reqs, Pending: 5 reqs, GPU KV cache usage: 1.4%, CPU KV cache usage: 0.0%.
INFO 01-10 10:01:12 metrics.py:483] Prefix cache hit rate: GPU: 12.50%, CPU: 0.00%
"""
V032 = """(APIServer pid=10002) INFO 11-30 09:20:54 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0
(APIServer pid=10002) INFO 11-30 09:20:54 [api_utils.py:286] non-default args: {'model_tag': 'smol-hf', 'host': '127.0.0.1', 'port': 8082, 'model': 'smol-hf', 'dtype': 'bfloat16', 'max_model_len': 2048, 'enforce_eager': True, 'served_model_name': ['smollm2'], 'max_num_seqs': 16}
(APIServer pid=10002) INFO 11-30 09:21:02 [model.py:2152] Using max model len 2048
(EngineCore pid=10520) INFO 11-30 09:21:09 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='smol-hf', speculative_config=None, tokenizer='smol-hf', dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=1, quantization=None, enforce_eager=True, kv_cache_dtype=auto, device_config=cpu, enable_prefix_caching=True, enable_chunked_prefill=True,
(EngineCore pid=10520) INFO 11-30 09:21:18 [kv_cache_utils.py:2327] CPU KV cache size: 46,592 tokens, Maximum concurrency for 2,048 tokens per request: 22.75x
(EngineCore pid=10520) INFO 11-30 09:21:19 [core.py:402] init engine (profile, create kv cache, warmup model) took 0.55 s
(APIServer pid=10002) INFO 11-30 09:21:21 [entry.py:140] Starting vLLM server on http://127.0.0.1:8082
(APIServer pid=10002) INFO 11-30 09:22:21 [loggers.py:335] Engine 000: Avg prompt throughput: 8.4 tokens/s, Avg generation throughput: 12.8 tokens/s, Running: 16 reqs, Waiting: 8 reqs, CPU KV cache usage: 4.4%, Prefix cache hit rate: 3.0%
(APIServer pid=10002) INFO 11-30 09:22:31 [loggers.py:335] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, CPU KV cache usage: 0.0%, Prefix cache hit rate: 3.0%
"""


def facts(text: str) -> dict[str, object]:
    return {f"{f.subject}.{f.name}": f.value for f in scanner("log").scan([(1, text)], "log", "x.log")[1]}


def test_0_6() -> None:
    expected = {
        "vllm.version": "0.6.6.post1", "vllm.max_model_len": 4096, "vllm.max_num_seqs": 128, "vllm.gpu_memory_utilization": 0.9, "vllm.dtype": "float16",
        "vllm.quantization_used": "None", "vllm.enforce_eager": True, "vllm.enable_prefix_caching": False, "vllm.enable_chunked_prefill": False,
        "vllm.attention": "Flash Attention", "vllm.weights_mib": 3.35 * 1024, "vllm.activation_mib": 1.39 * 1024, "vllm.kv_available_mib": 8.44 * 1024,
        "server.kv_blocks": 19751, "vllm.max_concurrency": 77.15, "server.running": 3, "server.waiting": 5, "server.kv_usage_pct": 1.4,
        "server.prefix_hit_pct": 12.5,
    }  # fmt: skip
    found = facts(V06)
    assert {k: found.get(k) for k in expected} == expected


def test_0_32() -> None:
    expected = {
        "vllm.version": "0.32.0", "vllm.max_model_len": 2048, "vllm.max_num_seqs": 16, "vllm.dtype": "bfloat16", "vllm.device": "cpu",
        "vllm.served_model_name": ["smollm2"], "server.kv_tokens": 46592, "vllm.max_concurrency": 22.75, "vllm.init_s": 0.55, "server.port": 8082,
        "server.bind": "127.0.0.1", "server.running": 16, "server.waiting": 8, "server.prefix_hit_pct": 3.0, "server.generation_tok_s": 12.8,
    }  # fmt: skip
    found = facts(V032)
    assert {k: (v.lower() if isinstance(v := found.get(k), str) else v) for k in expected} == expected


def test_graphs_quantisation_and_attention() -> None:
    text = """INFO 03-01 [gptq_marlin.py:1] The model is convertible to awq_marlin during runtime. Using awq_marlin kernel.
(EngineCore_0 pid=1) INFO 10-31 [gpu_model_runner.py:2653] Model loading took 7.6065 GiB and 2.296078 seconds
(EngineCore_0 pid=1) INFO 10-31 [gpu_worker.py:1] Available KV cache memory: 9.87 GiB
(EngineCore_0 pid=1) INFO 10-31 [kv_cache_utils.py:1] GPU KV cache size: 184,320 tokens
(EngineCore_0 pid=1) INFO 10-31 [gpu_model_runner.py:1] Graph capturing finished in 12 secs, took 0.55 GiB
(Worker pid=1) INFO 10-31 [cuda.py:1] Using TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN'].
(Worker pid=1) INFO 10-31 [cuda.py:1] Using Flash Attention backend on V1 engine.
"""
    found = facts(text)
    assert found["vllm.quantization_kernel"] == "awq_marlin"
    assert (found["vllm.weights_mib"], found["vllm.kv_available_mib"], found["vllm.graph_mib"]) == (
        7.6065 * 1024,
        9.87 * 1024,
        0.55 * 1024,
    )
    assert found["server.kv_tokens"] == 184320
    assert found["vllm.attention"] == "Flash Attention"
