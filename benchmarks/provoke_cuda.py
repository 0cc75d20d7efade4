"""Provokes CUDA failures with torch and transformers on a real card, each in a process of its own; keeps what they print.

    python benchmarks/provoke_cuda.py OUT_DIR [PART_OF_A_NAME…]

The model has the shape of DeepSeek-R1-Distill-Qwen-1.5B and random weights. Files are named <cause>--<short>.log, the cause that doctor has
to name first. Needs a CUDA card, torch and transformers; a limit on the process stands in for a small card.
"""

import os
import subprocess
import sys
import textwrap

COMMON = """
import os, sys, torch, transformers, logging
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
CONFIG = Qwen2Config(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
    vocab_size=151936, max_position_embeddings=131072, tie_word_embeddings=False, eos_token_id=151643, bos_token_id=151646)
def limit(gib):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(gib * 2**30 / total)
def model(dtype=torch.bfloat16, device="cuda", **more):
    torch.set_default_dtype(dtype)
    for k, v in more.items(): setattr(CONFIG, k, v)
    with torch.device(device):
        m = AutoModelForCausalLM.from_config(CONFIG, **({"attn_implementation": more["_attn"]} if "_attn" in more else {}))
    torch.set_default_dtype(torch.float32)
    return m.eval()
ids = lambda b, n, device="cuda": torch.randint(10, 150000, (b, n), device=device)
"""
CASES = {
    "torch-memory-cap--fp32-load-6gib": """
        logging.info("loading deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B, dtype=torch.float32")
        limit(6)
        model(torch.float32)""",
    "torch-memory-cap--prefill-batch-64": """
        limit(6)
        m = model()
        logging.info("generate: batch 64, prompt 2048")
        with torch.inference_mode(): m.generate(ids(64, 2048), max_new_tokens=8)""",
    "eager-attention-quadratic-memory--16k-prompt": """
        limit(10)
        CONFIG._attn_implementation = "eager"
        m = AutoModelForCausalLM.from_config(CONFIG, attn_implementation="eager", dtype=torch.bfloat16).cuda().eval()
        with torch.inference_mode(): m.generate(ids(1, 16384), max_new_tokens=8)""",
    "oom-fragmentation--many-odd-sizes": """
        limit(8)
        import random
        random.seed(1)
        held, big = [], []
        for i in range(700):
            held.append(torch.empty(random.choice((3, 5, 7, 9, 11)) * 2**20 + 512 * i, dtype=torch.uint8, device="cuda"))
        for i in range(0, len(held), 2): held[i] = None
        logging.info("allocated %.2f GiB reserved %.2f GiB", torch.cuda.memory_allocated()/2**30, torch.cuda.memory_reserved()/2**30)
        while True: big.append(torch.empty(900 * 2**20, dtype=torch.uint8, device="cuda"))""",
    "gpu-memory-used-by-other-process--neighbour": """
        import subprocess, time
        free, total = torch.cuda.mem_get_info()
        code = "import torch,time; x=torch.empty(%d,dtype=torch.uint8,device='cuda'); print('held',flush=True); time.sleep(60)" % (free - 3 * 2**30)
        other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        other.stdout.readline()
        try: model()
        finally: other.kill()""",
    "cuda-device-side-assert--token-out-of-range": """
        m = model()
        bad = ids(1, 16); bad[0, 7] = 151936 + 5
        with torch.inference_mode(): m.generate(bad, max_new_tokens=4)
        torch.cuda.synchronize()""",
    "fp16-activation-overflow--nan-probabilities": """
        m = model(torch.float16)
        with torch.no_grad():
            for layer in m.model.layers: layer.mlp.down_proj.weight.mul_(30000); layer.mlp.up_proj.weight.mul_(3000)
            m.lm_head.weight.mul_(3000)
        with torch.inference_mode(): m.generate(ids(1, 32), max_new_tokens=16, do_sample=True, temperature=0.6, top_p=0.95)""",
    "inputs-not-on-model-device--cpu-ids": """
        m = model()
        with torch.inference_mode(): m.generate(ids(1, 16, "cpu"), max_new_tokens=4)""",
    "weights-offloaded-to-cpu--device-map-auto": """
        import tempfile
        from accelerate import infer_auto_device_map
        d = tempfile.mkdtemp(); m = model(); m.save_pretrained(d); del m; torch.cuda.empty_cache()
        m = AutoModelForCausalLM.from_pretrained(d, dtype=torch.bfloat16, device_map="auto", max_memory={0: "2GiB", "cpu": "60GiB"})
        logging.info("hf_device_map %s", m.hf_device_map)
        with torch.inference_mode(): m.generate(ids(1, 16), max_new_tokens=8)""",
    "layers-moved-by-hand--half-on-cpu": """
        m = model()
        for layer in m.model.layers[13:]: layer.to("cpu")
        with torch.inference_mode(): m.generate(ids(1, 16), max_new_tokens=4)""",
    "flash-attn-not-installed--requested": """
        AutoModelForCausalLM.from_config(CONFIG, attn_implementation="flash_attention_2", dtype=torch.bfloat16)""",
    "oom-weights-too-big--whole-card-batch": """
        m = model()
        logging.info("generate: batch 4096, prompt 2048")
        with torch.inference_mode(): m.generate(ids(4096, 2048), max_new_tokens=8)""",
    "autograd-graph-kept--bare-forward": """
        m = model()
        kept = []
        for step in range(400):
            out = m(ids(8, 2048))
            kept.append(out.logits)
            logging.info("step %d allocated %.2f GiB", step, torch.cuda.memory_allocated() / 2**30)""",
}


def main() -> None:
    """Runs each case and writes its log."""
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    for name, body in CASES.items():
        if sys.argv[2:] and not any(part in name for part in sys.argv[2:]):
            continue
        code = COMMON + textwrap.dedent(body)
        path = os.path.join(out, f"{name}.log")
        try:
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
            text, status = done.stderr + done.stdout, str(done.returncode)
        except subprocess.TimeoutExpired as error:
            text, status = str(error.stderr), "timeout"
        with open(path, "w", encoding="utf-8") as f:
            f.write(text[-12000:])
        print(
            f"{name}: exit {status}, {len(text)} characters: {text.strip().splitlines()[-1][:150] if text.strip() else ''}",
            flush=True,
        )


if __name__ == "__main__":
    main()
