"""A client for the vLLM server in ../vllm-launch, as it is usually written first."""

from openai import OpenAI


class ChatClient:
    def __init__(self, base_url="http://localhost:8000"):
        self.client = OpenAI(base_url=base_url, api_key="none")
        self.model = "DeepSeek-R1-Distill-Qwen-1.5B"

    def chat_completion(self, messages, stream=False, temperature=0.7, max_tokens=512):
        return self.client.chat.completions.create(
            model=self.model,
            messages=messages,
            temperature=temperature,
            max_tokens=max_tokens,
            stream=stream,
        )

    def stream_chat(self, messages):
        answer = ""
        for chunk in self.client.chat.completions.create(model=self.model, messages=messages, stream=True):
            answer += chunk.choices[0].delta.content
            print(chunk.choices[0].delta.content, end="", flush=True)
        return answer


if __name__ == "__main__":
    client = ChatClient()
    client.stream_chat(
        [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "请用中文解释牛顿第一定律"},
        ]
    )
