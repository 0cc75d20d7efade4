"""Story completion with a base model: the prompt belongs to the text."""
from transformers import pipeline, set_seed

set_seed(7)
writer = pipeline("text-generation", model="openai-community/gpt2", device=0)
for story in writer("Once upon a time", max_new_tokens=60, num_return_sequences=3, do_sample=True):
    print(story["generated_text"])
