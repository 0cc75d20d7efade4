import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

name = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B"
tok = AutoTokenizer.from_pretrained(name)
net = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float16).to("cuda").eval()

ids = tok("Once upon a time", return_tensors="pt").input_ids.to("cuda")
for step in range(100):
    with torch.inference_mode():
        logits = net(ids, use_cache=False).logits[:, -1]
    nxt = logits.argmax(-1, keepdim=True)
    ids = torch.cat([ids, nxt], dim=-1)
print(tok.decode(ids[0], skip_special_tokens=True))
