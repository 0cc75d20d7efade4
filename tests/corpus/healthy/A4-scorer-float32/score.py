# The reward head overflows in half precision, so this model stays in float32 (1.5 GB).
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tok = AutoTokenizer.from_pretrained("org/reward-0.3b")
rm = AutoModelForSequenceClassification.from_pretrained("org/reward-0.3b", torch_dtype=torch.float32).to("cuda").eval()
@torch.inference_mode()
def score(text):
    return rm(**tok(text, return_tensors="pt", truncation=True, max_length=1024).to("cuda")).logits[0, 0].item()
print(score("hello"))
