import requests
from openai import OpenAI

client = OpenAI(base_url="http://192.168.1.20:8000", api_key="x")
other = OpenAI(base_url="http://localhost/v1", api_key="x")
stream = client.chat.completions.create(
    model="DeepSeek-R1-Distill-Qwen-7B",
    messages=[{"role": "user", "content": "hi"}],
    temperature=0,
    max_tokens=300,
    stream=True,
    stream_options={"include_usage": True},
)
text = ""
for chunk in stream:
    delta = chunk.choices[0].delta.content
    text += delta
requests.post("http://192.168.1.20:8000/metrics-push", json={})
