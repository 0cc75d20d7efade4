# %% [markdown]
# # Perplexity of a small model
# %%
!pip install -q "transformers>=4.51" accelerate
# %%
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

name = "Qwen/Qwen2.5-0.5B"
tok = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16, device_map="cuda").eval()
# %%
with torch.inference_mode():
    ids = tok("The capital of France is Paris.", return_tensors="pt").input_ids.to(model.device)
    print(model(ids, labels=ids).loss.exp())
# %%
!nvidia-smi
