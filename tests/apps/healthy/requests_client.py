import requests

URL = "http://127.0.0.1:8080"


def ask(text):
    r = requests.post(f"{URL}/v1/chat/completions", json={"messages": [{"role": "user", "content": text}], "max_tokens": 256}, timeout=(5, 120))
    r.raise_for_status()
    return r.json()["choices"][0]["message"]["content"]


print(ask("hello"))
