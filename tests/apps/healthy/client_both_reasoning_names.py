from openai import OpenAI
client = OpenAI(base_url="http://localhost:8000/v1", api_key="EMPTY", timeout=300)
stream = client.chat.completions.create(model="Qwen/Qwen3-8B", messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=4096)
for c in stream:
    if not c.choices:
        continue
    d = c.choices[0].delta
    thought = getattr(d, "reasoning_content", None) or getattr(d, "reasoning", None)
    print(thought or d.content or "", end="")
