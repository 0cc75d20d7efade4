import gradio as gr
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="EMPTY")


async def respond(message, history):
    messages = [{"role": "user", "content": message}]
    stream = await client.chat.completions.create(
        model="deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        messages=messages,
        temperature=0.6,
        max_tokens=4096,
        stream=True,
        top_p=0.95,
    )
    text = ""
    async for chunk in stream:
        if not chunk.choices:
            continue
        text += chunk.choices[0].delta.content or ""
        yield text


gr.ChatInterface(respond, concurrency_limit=8).queue(max_size=64).launch()
